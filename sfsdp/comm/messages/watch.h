// SPDX-License-Identifier: BSD-3-Clause
// Who is missing, where the ranks of a group share no memory: a thread of each rank tells the store once a second what the
// rank is doing, however long its ops take. A rank that waits reads what the one that it waits for has told.
//
// Load: a message of each rank per second, and two more while it waits; a store that serves 4096 ranks takes some 10 000
// messages a second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/messages/store.h"

namespace sfsdp::comm {

// A rank's place in one group.
struct Progress {
  std::atomic<uint64_t> entered = 0;
  std::atomic<uint64_t> finished = 0;
};

// In the store.
std::string progress_key(int rank);
std::string goodbye_key(int rank);

class Heartbeat {
 public:
  // `connection` is used by the heartbeat's thread alone.
  Heartbeat(std::unique_ptr<Store> connection, int rank);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // `group`: unique among the groups of the world, the same on all its ranks.
  std::shared_ptr<Progress> add(const std::string& group);
  // What the rank is doing, as it is told under progress_key: who leaves tells it once more.
  std::string text() const;

 private:
  void run();
  std::string told() const;

  std::unique_ptr<Store> connection_;
  int rank_;
  mutable std::mutex mutex_;
  std::condition_variable wanted_;
  std::map<std::string, std::shared_ptr<Progress>> groups_;
  bool stop_ = false;
  std::thread thread_;
};

struct FoundCause {
  enum class Kind : uint8_t { None, Failed, Aborted };
  Kind kind = Kind::None;
  std::string text;
};

// Where and in which call a rank waits.
struct Wait {
  const CallSite& site;
  const std::string& group;  // its key in the store
  uint64_t sequence = 0;
  int64_t waited_ms = 0;
};

// While a call takes long: whether it is in vain. Kind None: `peer`, a rank of the group, lives. Two requests to the store.
FoundCause look_at_peer(Store& store, const Wait& wait, int peer);
// A call has failed here: why, in words that all ranks of the group agree on.
//   error: what the transport said, used if nobody is missing
//   timed_out: this rank has waited for as long as it may; else the connection to a peer broke
FoundCause find_cause(Store& store, const Wait& wait, const std::string& error, bool timed_out);

// A message of `peer`, a rank of the world, is of another call than `call`, which this rank makes: what the two call, in words that
// all ranks of the group agree on. The peer finds the same, unless it waits for no message: then it is not waited for long.
FoundCause find_disagreement(Store& store, const Wait& wait, int peer, const std::string& call);

}  // namespace sfsdp::comm
