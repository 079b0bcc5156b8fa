// SPDX-License-Identifier: BSD-3-Clause
// A collective as messages and the order check see it: the same words on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// Thrown on a rank whose collective was ended because a rank had called abort(): a consequence, not a cause.
class AbortedError : public CommError {
 public:
  using CommError::CommError;
};

enum class CallKind : uint8_t { AllGather, ReduceScatter, AllReduce, Broadcast, Barrier };

struct Call {
  CallKind kind = CallKind::Barrier;
  int64_t bytes = 0;               // of the larger of input and output
  std::optional<ir::DType> dtype;  // of a reduction
  ReduceOp op = ReduceOp::Sum;
  int root = 0;  // of a broadcast, in the group
  CallInfo info;

  // "reduce_scatter %b3.rs of 16777216 bytes, f32 sum": two ranks make the same call if these are equal.
  std::string text() const;
  // The hash of the whole text, which may be cut where it is sent or shared.
  uint64_t hash() const;
};

// The calls of Communicator's functions; they check sizes, dtype and root first, so that no peer waits in vain.
Call all_gather_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info);
Call reduce_scatter_call(size_t in_bytes, size_t out_bytes, int size, ir::DType dtype, ReduceOp op,
                         const CallInfo& info);
Call all_reduce_call(size_t bytes, ir::DType dtype, ReduceOp op, const CallInfo& info);
Call broadcast_call(size_t bytes, int root, int size, const CallInfo& info);
Call barrier_call(const CallInfo& info);

// Where a call is made. Ranks in messages are global: what a reader finds in logs is RANK.
struct CallSite {
  std::string group;       // "dp_shard"
  std::vector<int> ranks;  // global, in group order
  int rank = 0;            // in the group
  int world_size = 1;

  int global_rank() const { return ranks[static_cast<size_t>(rank)]; }
};

// Checks that `ranks` are different ranks of the world, `global_rank` among them.
CallSite make_call_site(const std::string& group, const std::vector<int>& ranks, int global_rank, int world_size);

// "CommError on rank 5 of 8: reduce_scatter %b3.rs over dp_shard, sequence 41, 16777216 bytes\n  " + cause
std::string error_text(const CallSite& site, const Call& call, uint64_t sequence, const std::string& cause);

// "ranks disagree: rank 0 calls ..., rank 2 calls ...": two ranks of a group, and the texts of their calls.
std::string disagreement_text(int first_rank, const std::string& first, int rank, const std::string& call);

// What a rank did that did not answer.
struct Silence {
  int rank = 0;           // global
  uint64_t finished = 0;  // the last sequence number it finished in the group
};

// "no answer from rank 2 in 30000 ms; it finished sequence 38, all others 40; read rank 2's log"
//   others_min, others_max: what the others have finished, the slowest and the fastest of them
//   why: what is known beyond the silence of the first rank, such as "its process 4711 is gone", else ""
std::string silence_text(const std::vector<Silence>& silent, uint64_t others_min, uint64_t others_max,
                         int64_t waited_ms, const std::string& why);

}  // namespace sfsdp::comm
