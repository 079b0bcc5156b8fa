// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/communicator.h"

#include <numeric>

#include "sfsdp/base/cores.h"
#include "sfsdp/comm/call.h"

namespace sfsdp::comm {

void Communicator::run(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) {
  call.check(rank(), size(), in, out);
  run_checked(call, in, out);
}

void Communicator::all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) {
  run(all_gather_call(in.size(), out.size(), size(), info), in, out);
}

void Communicator::all_gather_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts,
                                const CallInfo& info) {
  run(all_gather_v_call(counts, size(), info), in, out);
}

void Communicator::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                                  const CallInfo& info) {
  run(reduce_scatter_call(in.size(), out.size(), size(), dtype, op, info), in, out);
}

void Communicator::reduce_scatter_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts,
                                    ir::DType dtype, ReduceOp op, const CallInfo& info) {
  run(reduce_scatter_v_call(counts, size(), dtype, op, info), in, out);
}

void Communicator::all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) {
  run(all_reduce_call(data.size(), dtype, op, info), data, data);
}

void Communicator::broadcast(std::span<std::byte> data, int root, const CallInfo& info) {
  run(broadcast_call(data.size(), root, size(), info), data, data);
}

void Communicator::barrier(const CallInfo& info) { run(barrier_call(info), {}, {}); }

void Communicator::all_to_all(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) {
  run(all_to_all_call(in.size(), out.size(), size(), info), in, out);
}

void Communicator::all_to_all_v(std::span<const std::byte> in, Counts to, std::span<std::byte> out, Counts from,
                                const CallInfo& info) {
  run(all_to_all_v_call(to, from, size(), info), in, out);
}

void Communicator::permute(std::span<const std::byte> in, std::span<std::byte> out, std::span<const RankPair> pairs,
                           const CallInfo& info) {
  run(permute_call(out.size(), pairs, size(), info), in, out);
}

void Communicator::gather_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, int root,
                            const CallInfo& info) {
  run(gather_v_call(counts, root, size(), info), in, out);
}

void Communicator::scatter_v(std::span<const std::byte> in, std::span<std::byte> out, Counts counts, int root,
                             const CallInfo& info) {
  run(scatter_v_call(counts, root, size(), info), in, out);
}

std::shared_ptr<Communicator> CommWorld::all_ranks(const std::string& name) {
  std::vector<int> ranks(static_cast<size_t>(world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(name, ranks);
}

int64_t CommWorld::cores_of_host() const { return usable_cores(); }

std::shared_ptr<GrowingMemory> CommWorld::make_window(int64_t /*reserved_bytes*/) { return nullptr; }

}  // namespace sfsdp::comm
