// SPDX-License-Identifier: BSD-3-Clause
// The board of one group of ranks on one host: every rank writes what it is about to do, and waits until all have
// written the same. It lies in memory that all of them see, so it serves threads of a process and processes alike, and
// knows at any time who is missing, what they did last, and whether they are still alive.
//
// Naive idea: a barrier is a counter and a condition variable. What breaks it: a process that dies inside
// pthread_cond_wait leaves the variable so that the next signal hangs. Hence a futex, and a mutex that survives its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/peer_process.h"

namespace sfsdp::comm {

struct BoardMemory;

class Board {
 public:
  // For ranks that are threads of this process.
  static std::unique_ptr<Board> in_process(int size);
  // For processes: creates `path`, which must not exist, or opens one that a peer has created. Every rank then claims
  // its place; when all have, the file may be unlinked. Throws CommError with the system's reason.
  static std::unique_ptr<Board> create_file(const std::string& path, int size);
  static std::unique_ptr<Board> open_file(const std::string& path, int size);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Before the first call: whose death this rank's silence would be.
  void claim(int rank);
  // How long this rank looks for the others before it sleeps: worth it where each has a core of its own. 0 at first.
  void spin(int64_t microseconds) { spin_us_ = microseconds; }

  // Blocks until every rank of the group has entered its call of this sequence number (from 1, counted by the caller).
  // Called by one thread at a time per rank.
  //   throws: CommError on all ranks if they do not enter the same call, if one of them is dead, has left or is stopped for
  //           2 s, or after timeout_ms; AbortedError if a peer has aborted
  void enter(const CallSite& site, const Call& call, uint64_t sequence, int64_t timeout_ms);
  // The call is done on this rank.
  void finish(const CallSite& site, const Call& call, uint64_t sequence);
  // Blocks until every rank gets here, between enter and finish: they read each other's memory.
  void meet(const CallSite& site, const Call& call, uint64_t sequence, int64_t timeout_ms);

  // While a transfer that the board does not see takes long, `waited_ms` so far: throws as enter does if a rank that has not
  // finished call `sequence` is dead, stopped or has left, or if the group has failed.
  void look(const CallSite& site, const Call& call, uint64_t sequence, int64_t waited_ms);
  // A transfer that the board does not see has failed on this rank, after `waited_ms`: finds out why, tells all ranks, throws.
  // If the peer whose connection broke is known, it has `grace_ms` to be seen dead.
  [[noreturn]] void throw_failure(const CallSite& site, const Call& call, uint64_t sequence,
                                  const std::string& transfer_error, int64_t waited_ms, int64_t grace_ms);

  // This and all later calls on the board end with AbortedError that carries the reason. First abort or failure wins.
  void abort(int global_rank, const std::string& reason);
  // This rank makes no more calls; who waits for one is told.
  void leave(int rank);

 private:
  struct Deleter {
    size_t mapped_bytes = 0;
    void operator()(BoardMemory* memory) const;
  };
  class Lock;

  explicit Board(std::unique_ptr<BoardMemory, Deleter> memory);
  static std::unique_ptr<Board> map_file(const std::string& path, int size, int flags);

  void wait(const CallSite& site, const Call& call, uint64_t sequence, uint64_t phase, int64_t timeout_ms);
  std::string disagreement(const CallSite& site, uint64_t phase) const;
  std::string why_gone(int rank);
  std::string lost(const CallSite& site, uint64_t phase, int64_t waited_ms);
  void fail_if_gone(const CallSite& site, uint64_t sequence, int64_t waited_ms);
  std::string silence(const CallSite& site, uint64_t phase, int64_t waited_ms, const std::string& why,
                      int lost_rank) const;
  void fail(const std::string& cause);
  void wake();
  [[noreturn]] void throw_failed(const CallSite& site, const Call& call, uint64_t sequence) const;

  std::unique_ptr<BoardMemory, Deleter> memory_;
  std::vector<PeerWatch> watches_;  // by rank
  int64_t spin_us_ = 0;
};

}  // namespace sfsdp::comm
