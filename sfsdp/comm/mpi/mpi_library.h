// SPDX-License-Identifier: BSD-3-Clause
// MPI as this process has it: libsfsdp_mpi.so, loaded where mpirun or srun has started the process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "sfsdp/comm/mpi/mpi_functions.h"

namespace sfsdp::comm {

// Started when made, stopped when it goes, unless `end_by` says otherwise: MPI waits for all ranks then. One that the program has
// started itself goes on.
// Where MPI lets one thread at a time call it, calls go through a lock. Calls after an error of MPI are allowed.
class Mpi {
 public:
  //   throws: UserError where the plug-in is missing, is of another version, or MPI does not start, or serves one thread alone
  Mpi();
  explicit Mpi(const SfsdpMpiFunctions& functions);
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const { return started_.rank; }
  int world_size() const { return started_.world_size; }
  int local_ranks() const { return started_.local_ranks; }
  int local_cores() const { return started_.local_cores; }
  std::string library() const { return functions_->library(); }
  // LeaveRunning: peers may be gone, and this process ends without a goodbye to MPI.
  enum class End { Stop, LeaveRunning };
  void end_by(End end) { end_ = end; }
  // `count` tags that no world of this process has had; the same on all ranks, as they make their worlds in the same order.
  int take_tags(int count);

  // A message on its way. Errors of these are TransportError with MPI's words.
  using Request = SfsdpMpiRequest*;
  Request send(const void* data, size_t bytes, int to, int tag);
  Request receive(void* data, size_t bytes, int from, int tag);
  // Whether it is done; the request is gone then.   received: set for a message that has come
  bool test(Request& request, size_t& received);
  enum class Way : uint8_t { Sent, Received };
  struct Message {
    Request request = nullptr;
    Way way = Way::Sent;
  };
  // Ends messages after a failure. One that is waited for is taken back, unless its data has begun to come; that one, and one that
  // is sent, end when the peer goes on, which may be stopped. So this waits no longer than `patience`, for all together.
  //   returns: whether all have ended; the requests of the others stay with MPI, which may use their memory as long as the process
  //            lives
  bool end(std::span<Message* const> messages, std::chrono::milliseconds patience);
  struct Arrived {
    bool any = false;
    int from = 0;
    size_t bytes = 0;
  };
  Arrived probe(int tag);

 private:
  void start();
  template <class Call>
  int call(Call call);
  void check(int error) const;

  void* library_ = nullptr;  // never closed: MPI's threads run in it
  const SfsdpMpiFunctions* functions_;
  SfsdpMpiStarted started_ = {};
  int next_tag_ = 1;
  End end_ = End::Stop;
  std::mutex mutex_;
};

// Whether mpirun or srun has started this process with others, and no other rendezvous is asked for (WORLD_SIZE).
//   env: std::getenv, or a test's
using GetEnv = std::function<const char*(const char*)>;
bool is_started_by_mpi(const GetEnv& env);
// Which rank such a process is, by torchrun's names (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), as far as its launcher
// has said it.
std::map<std::string, std::string> ranks_by_torchruns_names(const GetEnv& env);
// Whether is_started_by_mpi holds for this process, whose environment then has torchrun's names too. Before threads are started.
bool adopt_ranks_of_mpi();

}  // namespace sfsdp::comm
