// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/memory_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/offsets.h"

namespace sfsdp::plan {

using ir::Graph, ir::Op, ir::Value;

namespace {

// The plan shows the last micro-batch. Sums are alive from its first op; what was made before the loop and is read in it
// lives to its end, what is sent meanwhile until the first micro-batch has waited for it.
void live_through_repetitions(const Graph& graph, std::vector<Buffer>& buffers) {
  int64_t first = -1, last = -1;
  std::unordered_set<const Value*> read;
  for (int64_t i = 0; i < std::ssize(graph.ops()); ++i) {
    const Op& op = *graph.ops()[static_cast<size_t>(i)];
    if (!ir::is_repeated(op.section)) continue;
    if (first < 0) first = i;
    last = i;
    for (const Value* operand : op.operands)
      if (operand) read.insert(ir::storage_of(operand));
  }
  for (Buffer& b : buffers) {
    const bool sum = b.value->producer()->is("accumulate");
    if (sum) b.first = first;
    if (sum || (b.first < first && b.last >= first && read.contains(b.value))) b.last = std::max(b.last, last);
  }
}

// Positions from the first op of a kernel to its last.
struct Span {
  int64_t first = 0, last = 0;
};

// By position: of the op's kernel, or the op alone.
std::vector<Span> spans_of(const cost::Kernels& kernels) {
  std::vector<Span> by_kernel(kernels.ops.size(), {-1, -1}), spans;
  for (size_t i = 0; i < kernels.of.size(); ++i) {
    if (kernels.of[i] < 0) continue;
    Span& span = by_kernel[static_cast<size_t>(kernels.of[i])];
    span = {span.first < 0 ? static_cast<int64_t>(i) : span.first, static_cast<int64_t>(i)};
  }
  for (size_t i = 0; i < kernels.of.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    spans.push_back(kernels.of[i] < 0 ? Span{at, at} : by_kernel[static_cast<size_t>(kernels.of[i])]);
  }
  return spans;
}

}  // namespace

std::vector<Buffer> find_buffers(const Graph& graph, const MemoryOptions& options) {
  std::unordered_map<const Value*, size_t> index;
  std::vector<Buffer> buffers;
  std::unordered_set<const Value*> outside;  // state, and what replaces it in its own memory
  const cost::Kernels kernels = cost::kernels_of(graph);
  const std::vector<Span> spans = spans_of(kernels);
  const auto inside = cost::values_inside(graph, kernels);
  const auto read = [&](const Value* value, int64_t at) {
    if (const auto found = index.find(ir::storage_of(value)); found != index.end()) {
      int64_t& last = buffers[found->second].last;
      last = std::max(last, at);
    }
  };
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    for (const Value* operand : op.operands)
      if (operand) read(operand, spans[i].last);
    if (ir::is_wait(op) && !options.blocking)  // what a collective sends is read until it is done
      for (const Value* sent : op.operands[0]->producer()->operands) read(sent, spans[i].last);
    const auto donated = ir::donated_operands(op);
    for (size_t r = 0; r < op.results().size(); ++r) {
      const Value* value = op.results()[r].get();
      if (op.is("param", "state", "constant", "scalar")) {
        outside.insert(value);
        continue;
      }
      if (ir::aliased_operand(op) >= 0) continue;
      if (r < donated.size()) {  // takes over the operand's memory
        const Value* from = ir::storage_of(op.operands[static_cast<size_t>(donated[r])]);
        const auto found = index.find(from);
        if (found != index.end()) index[value] = found->second;
        continue;
      }
      if (inside.contains(value)) continue;
      index[value] = buffers.size();
      buffers.push_back({.value = value,
                         .bytes = round_up(std::max<int64_t>(value->type().bytes(), 1), options.alignment),
                         .first = spans[i].first,
                         .last = spans[i].last});
    }
  }
  const auto keep = [&](const Value* value) {
    const auto found = index.find(ir::storage_of(value));
    if (found != index.end()) buffers[found->second].last = static_cast<int64_t>(graph.ops().size());
  };
  for (const Value* output : graph.outputs) keep(output);
  for (const ir::Carry& carry : graph.carries) keep(carry.next);
  if (graph.micro_batches > 1) live_through_repetitions(graph, buffers);
  std::ranges::stable_sort(buffers, {}, &Buffer::first);
  return buffers;
}

int64_t state_bytes(const Graph& graph, int64_t alignment) {
  int64_t bytes = 0;
  for (const auto& op : graph.ops())
    if (op->is("param", "state")) bytes += round_up(op->result()->type().bytes(), alignment);
  return bytes;
}

MemoryPlan plan_memory(const Graph& graph, const MemoryOptions& options) {
  MemoryPlan plan;
  plan.buffers = find_buffers(graph, options);
  plan.state_bytes = state_bytes(graph, options.alignment);
  const Peak peak = live_peak(plan.buffers);
  const bool hopeless = options.enough_bytes > 0 && plan.state_bytes + peak.bytes > options.enough_bytes;
  plan.arena_bytes = assign_offsets(
      plan.buffers, hopeless ? std::numeric_limits<int64_t>::max() : options.enough_bytes - plan.state_bytes);
  plan.live_bytes = peak.bytes;
  plan.peak_position = peak.position;
  return plan;
}

std::vector<Share> alive_at(const MemoryPlan& plan, int64_t position,
                            const std::function<std::string(const Value&)>& name_of) {
  std::map<std::string, int64_t> sums;
  for (const Buffer& b : plan.buffers)
    if (b.first <= position && position <= b.last) sums[name_of(*b.value)] += b.bytes;
  std::vector<Share> shares;
  for (const auto& [name, bytes] : sums) shares.push_back({name, bytes});
  std::ranges::stable_sort(shares, std::greater<>(), &Share::bytes);
  return shares;
}

std::string check_memory_plan(const MemoryPlan& plan, int64_t alignment) {
  // Over time: what is alive, by address.
  std::vector<const Buffer*> by_first;
  for (const Buffer& b : plan.buffers) by_first.push_back(&b);
  std::ranges::stable_sort(by_first, {}, &Buffer::first);
  std::multimap<int64_t, const Buffer*> ends;   // alive, by last
  std::map<int64_t, const Buffer*> at_address;  // alive, by offset
  const auto name = [](const Buffer& b) { return concat('%', b.value->name()); };
  for (const Buffer* b : by_first) {
    while (!ends.empty() && ends.begin()->first < b->first) {
      at_address.erase(ends.begin()->second->offset);
      ends.erase(ends.begin());
    }
    if (b->offset < 0 || b->offset % alignment != 0)
      return concat(name(*b), " lies at ", b->offset, "\n  expected a multiple of ", alignment);
    if (b->offset + b->bytes > plan.arena_bytes)
      return concat(name(*b), " ends at ", b->offset + b->bytes, "\n  expected at most the arena's ", plan.arena_bytes);
    const auto next = at_address.lower_bound(b->offset);
    const Buffer* clash = nullptr;
    if (next != at_address.end() && next->first < b->offset + b->bytes) clash = next->second;
    if (next != at_address.begin() && std::prev(next)->first + std::prev(next)->second->bytes > b->offset)
      clash = std::prev(next)->second;
    if (clash)
      return concat(name(*b), " and ", name(*clash), " overlap at address ", std::max(b->offset, clash->offset),
                    " while both are alive\n  expected disjoint addresses");
    at_address.emplace(b->offset, b);
    ends.emplace(b->last, b);
  }
  return "";
}

}  // namespace sfsdp::plan
