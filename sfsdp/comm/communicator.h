// SPDX-License-Identifier: BSD-3-Clause
// Collectives over byte spans among the ranks of one ordered list of mesh axes. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/growing_memory.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::comm {

using ir::ReduceOp;

// Names a collective in errors and in the order check: what it is for, and which one it is.
struct CallInfo {
  std::string name;         // value name in the plan, "%layers.0.wq.full"
  std::string module_path;  // "layers.0.attention"
};

// A rank that sends and one that receives, both in the group.
struct RankPair {
  int from = 0;
  int to = 0;
};

class Call;  // call.h

// One group of ranks. Every rank of the group makes the same calls in the same order. Calls block until done.
// Each call has a sequence number (from 1), counted per communicator; errors are CommError and name rank, group,
// collective, sequence number, bytes and, where known, the rank that is missing and what it did last.
// One thread at a time makes calls of a group; different groups of a world may be used by different threads at once.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "dp_shard"

  // Makes a call that has been described before; who makes it again and again describes it once.
  //   out: of an all_reduce and a broadcast `in` itself
  //   throws: InternalError before any peer waits, if the spans are not as described
  void run(const Call& call, std::span<const std::byte> in, std::span<std::byte> out);

  // The same, described on the way. Counts and sizes are bytes; a count may be 0. Unless said otherwise `in` and `out` do
  // not overlap.
  using Counts = std::span<const int64_t>;

  // out = every rank's `in`, in rank order: out.size() == size() * in.size(). `in` may be its own part of `out`.
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info);
  // The same of uneven parts: rank r gives counts[r] bytes, all know all counts.
  void all_gather_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, const CallInfo& info);
  // in = size() equal chunks; out = the sum of everyone's chunk rank(). Sums in rank order; bf16 accumulates in f32.
  // `out` may be that chunk.
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                      const CallInfo& info);
  // The same of uneven chunks: rank r gets counts[r] bytes, whole elements.
  void reduce_scatter_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, ir::DType dtype,
                        ReduceOp op, const CallInfo& info);
  void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info);
  void broadcast(std::span<std::byte> data, int root, const CallInfo& info);
  void barrier(const CallInfo& info);
  // in = size() equal chunks, a chunk for each rank; out = the chunks that the ranks have for this one, in rank order.
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info);
  // The same of uneven chunks: to[r] bytes go to rank r, from[r] come from it. What rank i sends to j must be what j expects
  // from i: otherwise all ranks get a CommError with both numbers, before a byte of data is written.
  void all_to_all_v(std::span<const std::byte> in, Counts to, std::span<std::byte> out, Counts from,
                    const CallInfo& info);
  // For each pair, out of rank `to` = in of rank `from`. A rank sends at most once and receives at most once; the `out` of
  // one that does not receive stays as it is. All ranks list the same pairs in the same order, and have in.size() == out.size().
  void permute(std::span<const std::byte> in, std::span<std::byte> out, std::span<const RankPair> pairs,
               const CallInfo& info);
  // On `root` out = every rank's `in`, counts[r] bytes of rank r, in rank order; empty on the others. The root's `in` may be
  // its own part of `out`.
  void gather_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, int root, const CallInfo& info);
  // out = the part rank() of the `in` of `root`, counts[r] bytes for rank r; `in` is empty on the others. The root's `out`
  // may be its own part of `in`.
  void scatter_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, int root,
                 const CallInfo& info);

  // Ends all waiting calls on this rank with CommError; the group is unusable afterwards.
  virtual void abort(const std::string& reason) = 0;

 protected:
  // What a backend implements: `call` fits the group and the spans.
  virtual void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) = 0;
};

// The communicators of one rank: makes the one for an ordered axis list when first asked (collectively). When it goes,
// the other ranks are told that this one makes no more calls.
class CommWorld {
 public:
  virtual ~CommWorld() = default;
  virtual int rank() const = 0;  // global
  virtual int world_size() const = 0;
  // Ranks of the group that this rank belongs to, in group order; `name` is unique per group kind ("dp_shard").
  // Every rank of the world calls this with its own group in the same order.
  virtual std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;
  // The group `name` of all ranks.
  std::shared_ptr<Communicator> all_ranks(const std::string& name);
  // How long a call waits for the other ranks, from the next call on: the first step, in which ranks still compile and
  // load, needs more than those after it.
  virtual void set_timeout_ms(int64_t timeout_ms) = 0;
  // How the groups made so far exchange data: "shared memory", "tcp", "shared memory and tcp", "threads".
  virtual std::string_view transport() const = 0;
  // Ranks of the world that are on this host, this one among them, and the cores that they may use together.
  virtual int64_t ranks_of_host() const { return 1; }
  virtual int64_t cores_of_host() const;
  // Memory of this rank that its peers on this host read in place, when a call of a group that is there already is given a part of
  // it; null where they cannot. Not a collective call.
  virtual std::shared_ptr<GrowingMemory> make_window(int64_t reserved_bytes);
  // Communicator::abort on every group of this rank, those not yet made included: the peers learn of it at once.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sfsdp::comm
