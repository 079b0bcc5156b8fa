// SPDX-License-Identifier: BSD-3-Clause
// Who is missing, where the ranks of a group share no memory: each rank tells the store, once a second, what it is
// doing. The call itself costs two atomic stores. Torch-free header.
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
#include "sfsdp/comm/gloo/rendezvous.h"

namespace sfsdp::comm {

// A rank's place in one group.
struct Progress {
  std::atomic<uint64_t> entered = 0;
  std::atomic<uint64_t> finished = 0;
};

class Heartbeat {
 public:
  // `connection` is used by the heartbeat's thread alone.
  Heartbeat(std::unique_ptr<Rendezvous> connection, int rank);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // `group`: unique among the groups of the world, the same on all its ranks.
  std::shared_ptr<Progress> add(const std::string& group);
  void beat_now();

 private:
  void run();

  std::unique_ptr<Rendezvous> connection_;
  int rank_;
  std::mutex mutex_;
  std::condition_variable wanted_, done_;
  std::map<std::string, std::shared_ptr<Progress>> groups_;
  uint64_t beats_wanted_ = 0, beats_done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

struct FoundCause {
  enum class Kind : uint8_t { Failed, Aborted };
  Kind kind = Kind::Failed;
  std::string text;
};

// A call of `group` has failed here: why, in words that all its ranks agree on. Takes some heartbeats.
//   waited_ms:      how long this rank had waited
//   transfer_error: what the transport said, used if nobody is missing
FoundCause find_cause(Rendezvous& store, Heartbeat& heartbeat, const CallSite& site, const std::string& group,
                      uint64_t sequence, int64_t waited_ms, const std::string& transfer_error);

}  // namespace sfsdp::comm
