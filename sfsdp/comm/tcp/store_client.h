// SPDX-License-Identifier: BSD-3-Clause
// A rank's connection to the store (store_server.h). One request at a time; from any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/comm/tcp/handshake.h"
#include "sfsdp/comm/tcp/job_token.h"
#include "sfsdp/comm/tcp/socket.h"

namespace sfsdp::comm {

// All requests throw SocketError when the store has gone, or has not answered in time: rank 0 hangs. That is 10 s, for get
// and for last words 3 s: who looks whether others live, or has failed, must not be held up by a rank 0 that is stopped.
class StoreClient {
 public:
  //   throws: RefusedError, SocketError
  StoreClient(const Address& store, const JobToken& token, int rank, Purpose purpose, Clock::time_point deadline);

  // What the key held before is lost. A value is cut after 64 KiB.
  enum class Patience : uint8_t { Usual, LastWords };
  void set(const std::string& key, const std::string& value, Patience patience = Patience::Usual);
  // What the key holds then: the first value that anybody has set.
  std::string set_first(const std::string& key, const std::string& value, Patience patience = Patience::Usual);
  struct Value {
    std::string text;
    int64_t age_ms = 0;  // since it was last set, by the store's clock
  };
  // Nothing if nobody has set the key.
  std::optional<Value> get(const std::string& key);
  // The values of prefix + number, as soon as all are there, or after wait_ms, or once "aborted" is set; nullopt where there
  // is none.
  std::vector<std::optional<std::string>> collect(const std::string& prefix, const std::vector<int>& numbers,
                                                  int64_t wait_ms);

  // From any thread: ends a request that waits for its answer, and the connection.
  void interrupt();

 private:
  std::string ask(const std::string& frame, int64_t patience_ms);

  std::mutex mutex_;
  Fd fd_;
  bool lost_ = false;  // the connection is shut down
};

}  // namespace sfsdp::comm
