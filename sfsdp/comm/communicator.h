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

// One group of ranks. Every rank of the group makes the same calls in the same order. Calls block until done.
// Each call has a sequence number (from 1), counted per communicator; errors are CommError and name rank, group,
// collective, sequence number, bytes and, where known, the rank that is missing and what it did last.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "dp_shard"

  // out = every rank's `in`, in rank order: out.size() == size() * in.size().
  virtual void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) = 0;
  // in = size() equal chunks; out = the sum of everyone's chunk rank(). Sums in rank order; bf16 accumulates in f32.
  virtual void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                              const CallInfo& info) = 0;
  virtual void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) = 0;
  virtual void broadcast(std::span<std::byte> data, int root, const CallInfo& info) = 0;
  virtual void barrier(const CallInfo& info) = 0;
  // Ends all waiting calls on this rank with CommError; the group is unusable afterwards.
  virtual void abort(const std::string& reason) = 0;
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
  // Memory of this rank that its peers on this host read in place, when a call of a group that is there already is given a part of
  // it; null where they cannot. Not a collective call.
  virtual std::shared_ptr<GrowingMemory> make_window(int64_t reserved_bytes);
  // Communicator::abort on every group of this rank, those not yet made included: the peers learn of it at once.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sfsdp::comm
