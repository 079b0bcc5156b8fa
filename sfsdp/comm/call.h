// SPDX-License-Identifier: BSD-3-Clause
// A collective as its caller describes it, and as backends, messages and the order check see it: the same on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/comm/chunks.h"
#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// Thrown on a rank whose collective was ended because a rank had called abort(): a consequence, not a cause.
class AbortedError : public CommError {
 public:
  using CommError::CommError;
};

enum class CallKind : uint8_t {
  AllGather,
  ReduceScatter,
  AllReduce,
  Broadcast,
  Barrier,
  AllToAll,
  AllToAllV,
  Permute,
  AllGatherV,
  ReduceScatterV,
  GatherV,
  ScatterV,
};

// What a caller says of a call; the functions below fill it.
struct CallWords {
  CallKind kind = CallKind::Barrier;
  int size = 0;          // of the group; 0: any
  ByteChunks sent = {};  // what the ranks gather, scatter or reduce, by rank; of an all_to_all what goes to each rank
  ByteChunks received = {};             // of an all_to_all: what comes from each rank
  std::vector<RankPair> pairs = {};     // of a permute
  std::optional<ir::DType> dtype = {};  // of a reduction
  ReduceOp op = ReduceOp::Sum;
  int root = 0;  // in the group
  CallInfo info;
};

// One call, which may be made many times: nothing is computed or allocated for its description then. Does not change.
class Call {
 public:
  explicit Call(CallWords words);

  CallKind kind() const { return words_.kind; }
  int64_t bytes() const { return bytes_; }  // of the larger of input and output
  const std::optional<ir::DType>& dtype() const { return words_.dtype; }
  ReduceOp op() const { return words_.op; }
  int root() const { return words_.root; }
  const CallInfo& info() const { return words_.info; }

  // "reduce_scatter %b3.rs of 16777216 bytes, f32 sum": two ranks make the same call if these are equal. What ranks of an
  // all_to_all_v send differs by nature and is not in it: counts_disagreement compares that.
  const std::string& text() const { return text_; }
  // The hash of the whole text, which may be cut where it is sent or shared.
  uint64_t hash() const { return hash_; }

  // Throws InternalError unless a rank of a group of `size` can make the call with these spans.
  void check(int rank, int size, std::span<const std::byte> in, std::span<const std::byte> out) const;

  // How the data of a reduction is cut among the ranks.
  const ByteChunks& chunks() const { return words_.sent; }
  // Where data is moved: the part of rank `from`'s input that rank `to` gets, and where in the output of `to` it comes
  // from `from`. Nobody but the rank itself knows the parts of an all_to_all_v: `from` or `to` is then this rank.
  Range sent(int from, int to) const;
  Range received(int from, int to) const;
  // Whether ranks other than `rank`, or it itself, read its input.
  bool is_read(int rank) const;
  // For an all_to_all_v: the bytes to each rank, then those from each rank.
  std::vector<int64_t> counts(int size) const;

 private:
  size_t in_bytes(int rank) const;
  size_t out_bytes(int rank) const;
  // A rank's own part is its input or its output, and all parts are the other.
  bool moves_one_part() const;
  // Whether that part lies where all parts have it.
  bool lies_in_place(int rank, std::span<const std::byte> in, std::span<const std::byte> out) const;
  std::string make_text() const;

  CallWords words_;
  std::vector<int> to_, from_;  // of a permute, by rank; -1: none
  int64_t bytes_ = 0;
  std::string text_;
  uint64_t hash_ = 0;
};

// The calls of Communicator's functions; they check sizes, counts, dtype and root first, so that no peer waits in vain.
//   size: of the group
Call all_gather_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info);
Call reduce_scatter_call(size_t in_bytes, size_t out_bytes, int size, ir::DType dtype, ReduceOp op,
                         const CallInfo& info);
Call all_reduce_call(size_t bytes, ir::DType dtype, ReduceOp op, const CallInfo& info);
Call broadcast_call(size_t bytes, int root, int size, const CallInfo& info);
Call barrier_call(const CallInfo& info);
Call all_to_all_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info);
Call all_to_all_v_call(std::span<const int64_t> to, std::span<const int64_t> from, int size, const CallInfo& info);
Call permute_call(size_t bytes, std::span<const RankPair> pairs, int size, const CallInfo& info);
Call all_gather_v_call(std::span<const int64_t> counts, int size, const CallInfo& info);
Call reduce_scatter_v_call(std::span<const int64_t> counts, int size, ir::DType dtype, ReduceOp op,
                           const CallInfo& info);
Call gather_v_call(std::span<const int64_t> counts, int root, int size, const CallInfo& info);
Call scatter_v_call(std::span<const int64_t> counts, int root, int size, const CallInfo& info);

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

// Compares what all ranks of a group have as counts of an all_to_all_v; `rows`: by rank, Call::counts of each.
//   returns: "ranks disagree: rank 1 sends 128 bytes to rank 2, which expects 64 from it ...", or ""
std::string counts_disagreement(const CallSite& site, std::span<const std::span<const int64_t>> rows);

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
