// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/memory_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/in_place.h"
#include "sfsdp/plan/lanes.h"
#include "sfsdp/plan/offsets.h"
#include "sfsdp/plan/storage_layout.h"
#include "sfsdp/plan/views.h"

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
    b.carried = b.value->producer()->is("accumulate");
    if (b.carried) b.first = first;
    if (b.carried || (b.first < first && b.last >= first && read.contains(b.value))) b.last = std::max(b.last, last);
  }
}

// What a body reads that is made before its loop, the next trip reads too. What the body makes lives in one trip.
void live_through_loops(const Graph& graph, std::vector<Buffer>& buffers) {
  for (const ir::Loop& loop : ir::loops_of(graph)) {
    const auto first = static_cast<int64_t>(loop.first), last = static_cast<int64_t>(loop.last);
    for (Buffer& b : buffers)
      if (b.first < first && b.last > first) b.last = std::max(b.last, last);
  }
}

int64_t alignment_of(Region region, const cost::Target& target) {
  return region == Region::Window ? target.window_alignment : target.alignment;
}

// What lies in storage of its own, or in the program.
bool is_kept(const Op& op) { return op.is("param", "state", "constant", "scalar"); }

// Memory that collectives read and write, by the value that has it first.
ir::ValueTable<char> touched_by_collectives(const Graph& graph) {
  ir::ValueTable<char> touched(graph);
  for (const auto& op : graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    for (const Value* operand : op->operands) touched[ir::memory_of(operand)] = 1;
    for (const auto& result : op->results()) touched[ir::memory_of(result.get())] = 1;
  }
  return touched;
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

// Bytes from the begin of a pack's result to an operand.
int64_t offset_in(const Op& pack, size_t operand) {
  return pack.attr<std::vector<int64_t>>("offsets")[operand] * size_in_bytes(pack.result()->type().dtype);
}

// State where the layout has it. What it has not: in the graph's order after that, in region state, as the window's other
// addresses are in use by earlier plans. Without a layout, what collectives send begins the window. Then constants.
void place_kept(const Graph& graph, const MemoryOptions& options, MemoryPlan& plan) {
  const auto bytes_of = [&](Region region) -> int64_t& { return plan.region_bytes[static_cast<size_t>(region)]; };
  std::map<std::string_view, const StateEntry*> entries;
  const bool decided = options.layout && !options.layout->entries.empty();
  if (decided) {
    for (const StateEntry& entry : options.layout->entries) {
      entries.emplace(entry.name, &entry);
      bytes_of(entry.region) = std::max(bytes_of(entry.region), entry.offset + entry.bytes);
    }
  }
  const auto sent = touched_by_collectives(graph);
  for (const auto& op : graph.ops()) {
    const bool is_state = op->is("param", "state");
    if (!is_state && !op->is("constant", "scalar")) continue;
    Buffer buffer{
        .value = op->result(), .last = std::ssize(graph.ops()), .region = is_state ? Region::State : Region::Constant};
    const auto known = is_state ? entries.find(op->attr<std::string>("name")) : entries.end();
    if (known != entries.end())
      buffer.region = known->second->region;
    else if (sent[buffer.value] && !options.blocking && !(is_state && decided))
      buffer.region = Region::Window;
    buffer.bytes =
        round_up(std::max<int64_t>(op->result()->type().span_bytes(), 1),  // without elements: a place all the same
                 alignment_of(buffer.region, options.target));
    if (known != entries.end()) {
      buffer.offset = known->second->offset;
      entries.erase(known);
    } else {
      buffer.offset = bytes_of(buffer.region);
      bytes_of(buffer.region) += buffer.bytes;
    }
    (is_state ? plan.state_bytes : plan.program_bytes) += buffer.bytes;
    (is_state ? plan.state : plan.constants).push_back(buffer);
  }
  if (decided)
    for (const StateEntry& entry : options.layout->entries)
      if (entries.contains(entry.name)) {
        plan.unread.push_back({entry.name, entry.region, entry.offset, entry.bytes});
        plan.state_bytes += entry.bytes;
      }
}

// Nothing lies over state that is not read, at any time.
std::string check_unread(const MemoryPlan& plan) {
  std::vector<const UnreadState*> unread;
  for (const UnreadState& u : plan.unread) unread.push_back(&u);
  const auto address = [](const auto* place) { return std::pair(place->region, place->offset); };
  std::ranges::sort(unread, {}, address);
  const auto clash = [](const std::string& name, const UnreadState& u) {
    return concat(name, " overlaps ", u.name, ", state that is not read, at ", to_string(u.region), " +", u.offset,
                  "\n  expected disjoint addresses");
  };
  for (size_t i = 1; i < unread.size(); ++i)
    if (unread[i - 1]->region == unread[i]->region && unread[i - 1]->offset + unread[i - 1]->bytes > unread[i]->offset)
      return clash(unread[i - 1]->name, *unread[i]);
  for (const auto* buffers : {&plan.constants, &plan.state, &plan.buffers})
    for (const Buffer& b : *buffers) {
      auto after = std::ranges::upper_bound(unread, address(&b), {}, address);
      const std::string name = concat('%', b.value->name());
      if (after != unread.end() && (*after)->region == b.region && (*after)->offset < b.offset + b.bytes)
        return clash(name, **after);
      if (after == unread.begin()) continue;
      const UnreadState& before = **--after;
      if (before.region == b.region && before.offset + before.bytes > b.offset) return clash(name, before);
    }
  return "";
}

}  // namespace

std::string_view to_string(Region region) {
  constexpr std::array<std::string_view, kRegions> kNames = {"state", "window", "io", "constant"};
  return kNames.at(static_cast<size_t>(region));
}

Lifetimes find_buffers(const Graph& graph, const MemoryOptions& options, std::vector<OwnMemory>* own) {
  ir::ValueTable<size_t> index(graph, kNoBuffer);
  Lifetimes lifetimes;
  std::vector<Buffer>& buffers = lifetimes.buffers;
  const cost::Kernels kernels = cost::kernels_of(graph);
  const std::vector<Span> spans = spans_of(kernels);
  const auto inside = cost::values_inside(graph, kernels);
  const auto buffer_of = [&](const Value* value) -> Buffer* {
    const size_t found = value ? index[ir::storage_of(value)] : kNoBuffer;
    return found == kNoBuffer ? nullptr : &buffers[found];
  };
  const auto read = [&](const Value* value, int64_t at) {
    if (Buffer* buffer = buffer_of(value)) buffer->last = std::max(buffer->last, at);
  };
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    for (const Value* operand : op.operands) read(operand, spans[i].last);
    if (ir::is_wait(op) && !options.blocking)  // what a collective sends is read until it is done
      for (const Value* sent : op.operands[0]->producer()->operands) read(sent, spans[i].last);
    if (is_kept(op) || ir::aliased_operand(op) >= 0) continue;
    const auto donated = ir::donated_operands(op);
    for (size_t r = 0; r < op.results().size(); ++r) {
      const Value* value = op.results()[r].get();
      const Value* taken = r < donated.size() ? ir::storage_of(op.operands[static_cast<size_t>(donated[r])]) : nullptr;
      if (taken &&
          !inside.contains(taken)) {  // takes over the operand's memory, which one inside a kernel does not have
        index[value] = index[taken];
        continue;
      }
      if (inside.contains(value)) continue;
      const size_t number = index[value] = buffers.size();
      buffers.push_back({.value = value,
                         .bytes = std::max<int64_t>(value->type().span_bytes(), 1),
                         .first = op.is("input") ? 0 : spans[i].first,  // the host writes all of them at once
                         .last = spans[i].last,
                         .region = op.is("input") ? Region::Io : Region::Window});
      if (op.is("pack") && !options.blocking) {
        for (size_t k = 0; k < op.operands.size(); ++k) {
          size_t& part = index[ir::storage_of(op.operands[k])];
          if (!cost::is_inside(op, k) || part == kNoBuffer || part == number) continue;
          buffers[number].first = std::min(buffers[number].first, buffers[part].first);
          lifetimes.inside.push_back({buffers[part].value, value, offset_in(op, k)});
          buffers[part].bytes = 0;
          part = number;
        }
      }
    }
  }
  const auto end = static_cast<int64_t>(graph.ops().size());
  for (const Value* output : graph.outputs) read(output, end);
  for (const ir::Carry& carry : graph.carries) read(carry.next, end);
  const ir::ValueTable<char> touched = touched_by_collectives(graph);
  for (const auto& op : graph.ops())
    for (const auto& result : op->results())
      if (Buffer* buffer = touched[result.get()] ? buffer_of(result.get()) : nullptr) {
        buffer->region = Region::Window;
        // The host may write the next batch as soon as nobody reads this one: nothing else lies there meanwhile.
        if (buffer->value->producer()->is("input")) buffer->last = end;
      }
  for (Buffer& buffer : buffers)
    buffer.bytes = round_up(buffer.bytes,
                            options.blocking ? options.target.alignment : alignment_of(buffer.region, options.target));
  if (graph.micro_batches > 1) live_through_repetitions(graph, buffers);
  live_through_loops(graph, buffers);
  if (!options.blocking) {
    const auto over = write_over_last_reads(graph, kernels, index, buffers, own);
    lifetimes.inside.insert(lifetimes.inside.end(), over.begin(), over.end());
  }
  std::erase_if(buffers, [](const Buffer& b) { return b.bytes == 0; });  // what lies inside another one
  std::ranges::stable_sort(buffers, {}, &Buffer::first);
  return lifetimes;
}

MemoryPlan plan_memory(const Graph& graph, const MemoryOptions& options) {
  MemoryPlan plan;
  const auto bytes_of = [&](Region region) -> int64_t& { return plan.region_bytes[static_cast<size_t>(region)]; };
  plan.program_bytes = bytes_of(Region::Io) = round_up(kHostBytes, options.target.alignment);
  place_kept(graph, options, plan);
  Lifetimes lifetimes = find_buffers(graph, options);
  plan.buffers = std::move(lifetimes.buffers);
  plan.inside = std::move(lifetimes.inside);
  plan.views = find_views(graph);
  if (!options.blocking) {
    plan.workspaces = {cost::workspace_bytes(graph, cost::kernels_of(graph), options.target)};
    for (const CommLane& lane : communicators(graph))
      plan.workspaces.push_back(options.target.communicator_bytes + staging_bytes(lane));
  }
  const Peak peak = live_peak(plan.buffers);
  plan.live_bytes = peak.bytes;
  plan.peak_position = peak.position;
  // What is kept lies below what comes and goes.
  int64_t enough = options.enough_bytes - plan.state_bytes - plan.program_bytes - plan.workspace_bytes();
  for (const Region region : {Region::Io, Region::Window}) {
    std::vector<Buffer> part;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.region == region) part.push_back(buffer);
    const bool hopeless = options.enough_bytes > 0 && live_peak(part).bytes > enough;
    const int64_t begin = bytes_of(region);
    const int64_t arena =
        assign_offsets(part, hopeless ? std::numeric_limits<int64_t>::max() : std::max<int64_t>(enough, 0));
    auto next = part.begin();
    for (Buffer& buffer : plan.buffers)
      if (buffer.region == region) buffer.offset = begin + (next++)->offset;
    bytes_of(region) += arena;
    plan.arena_bytes += arena;
    enough -= arena;
  }
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

std::string check_memory_plan(const MemoryPlan& plan, const cost::Target& target) {
  // Over time: what is alive, by region and address.
  std::vector<const Buffer*> by_first;
  for (const auto* buffers : {&plan.constants, &plan.state, &plan.buffers})
    for (const Buffer& b : *buffers) by_first.push_back(&b);
  std::ranges::stable_sort(by_first, {}, &Buffer::first);
  std::multimap<int64_t, const Buffer*> ends;                      // alive, by last
  std::map<std::pair<Region, int64_t>, const Buffer*> at_address;  // alive, by region and offset
  const auto name = [](const Buffer& b) { return concat('%', b.value->name()); };
  for (const Buffer* b : by_first) {
    while (!ends.empty() && ends.begin()->first < b->first) {
      at_address.erase({ends.begin()->second->region, ends.begin()->second->offset});
      ends.erase(ends.begin());
    }
    const int64_t alignment = alignment_of(b->region, target);
    if (b->offset < 0 || b->offset % alignment != 0)
      return concat(name(*b), " lies at ", b->offset, "\n  expected a multiple of ", alignment);
    const int64_t region_bytes = plan.region_bytes[static_cast<size_t>(b->region)];
    if (b->offset + b->bytes > region_bytes)
      return concat(name(*b), " ends at ", b->offset + b->bytes, "\n  expected at most the ", region_bytes,
                    " bytes of region ", to_string(b->region));
    const auto next = at_address.lower_bound({b->region, b->offset});
    const auto in_region = [&](auto it) { return it->second->region == b->region; };
    const Buffer* clash = nullptr;
    if (next != at_address.end() && in_region(next) && next->first.second < b->offset + b->bytes) clash = next->second;
    if (next != at_address.begin() && in_region(std::prev(next)) &&
        std::prev(next)->first.second + std::prev(next)->second->bytes > b->offset)
      clash = std::prev(next)->second;
    if (clash)
      return concat(name(*b), " and ", name(*clash), " overlap at address ", std::max(b->offset, clash->offset),
                    " of region ", to_string(b->region), " while both are alive\n  expected disjoint addresses");
    at_address.emplace(std::pair(b->region, b->offset), b);
    ends.emplace(b->last, b);
  }
  return check_unread(plan);
}

}  // namespace sfsdp::plan
