// SPDX-License-Identifier: BSD-3-Clause
// Keys and values that all ranks of a run share, however they reach the rank that holds them.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace sfsdp::comm {

// What the transport says: a peer is gone, or does not answer in time.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All requests throw TransportError when the store has gone, or has not answered in time: rank 0 hangs. That is 10 s, for get
// and for last words 3 s: who looks whether others live, or has failed, must not be held up by a rank 0 that is stopped.
class Store {
 public:
  static constexpr int64_t kPatienceMs = 10'000;
  // How long a rank waits that looks whether others live: a stopped host of the store is to be named within 5 s.
  static constexpr int64_t kLookPatienceMs = 3'000;
  enum class Patience : uint8_t { Usual, LastWords };
  static int64_t patience_ms(Patience patience) {
    return patience == Patience::LastWords ? kLookPatienceMs : kPatienceMs;
  }

  virtual ~Store() = default;
  // What the key held before is lost. A value is cut after 64 KiB.
  virtual void set(const std::string& key, const std::string& value, Patience patience = Patience::Usual) = 0;
  // What the key holds then: the first value that anybody has set.
  virtual std::string set_first(const std::string& key, const std::string& value,
                                Patience patience = Patience::Usual) = 0;
  struct Value {
    std::string text;
    int64_t age_ms = 0;  // since it was last set, by the store's clock
  };
  // Nothing if nobody has set the key.
  virtual std::optional<Value> get(const std::string& key) = 0;
  // From any thread: ends a request that waits for its answer, and all later ones.
  virtual void interrupt() = 0;
};

}  // namespace sfsdp::comm
