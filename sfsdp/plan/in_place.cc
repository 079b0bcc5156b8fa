// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/in_place.h"

#include <algorithm>
#include <numeric>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using cost::Class;
using ir::Graph, ir::Op, ir::Reads, ir::Value;

constexpr std::array<std::string_view, kNotOvers> kReasons = {
    "it is",
    "its kernel holds attention, a library call, a copy, an update or an op without an access map",
    "micro-batches add up in it",
    "it is complete only after all rows, while others are read",
    "its kernel reads no memory that comes and goes",
    "what its kernel reads has another size, or it has strides",
    "another result of its kernel lies there",
    "what its kernel reads is read again later, or returned",
    "what its kernel reads is made before all micro-batches, or added up over them, and read in the next one",
    "an op of its kernel reads it at other places than it writes",
};

// All of its memory, in order.
bool shows_whole(const Value& seen, const Value& memory) {
  const Value* value = &seen;
  while (value && value != &memory) value = ir::reshaped_operand(*value);
  return value && memory.type().strides.empty();
}

bool is_by_place(const Op& op, ir::Accesses& accesses) {
  const Class kind = cost::class_of(op);
  return (kind == Class::Pointwise || kind == Class::Reduction) && accesses.of(op).is_by_place();
}

// Whether `op` reads no element of `memory` but that at whose place it writes, or those of its row.
bool reads_in_place(const Op& op, ir::Accesses& accesses, const Value& memory) {
  if (!is_by_place(op, accesses)) return false;
  const ir::OpAccess& access = accesses.of(op);
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!op.operands[k] || ir::storage_of(op.operands[k]) != &memory) continue;
    if (!shows_whole(*op.operands[k], memory)) return false;
    for (size_t r = 0; r < op.results().size(); ++r) {
      const Reads reads = access.reads(k, r).reads;
      const bool by_element = reads == Reads::Element || reads == Reads::Group;
      if (reads == Reads::Whole || (by_element && op.results()[r]->type().numel() != memory.type().numel()))
        return false;
    }
  }
  return true;
}

class Taker {
 public:
  Taker(const Graph& graph, const ir::ValueTable<size_t>& index, std::vector<Buffer>& buffers,
        std::vector<OwnMemory>* own)
      : repeats_(graph.micro_batches > 1),
        accesses_(graph),
        index_(index),
        buffers_(buffers),
        own_(own),
        host_of_(buffers.size()) {
    std::iota(host_of_.begin(), host_of_.end(), size_t{0});
  }

  //   first, last: positions of the kernel's ops
  void visit(const std::vector<const Op*>& ops, int64_t first, int64_t last) {
    if (!own_ && !may_take(ops, first, last)) return;
    const bool by_place = std::ranges::all_of(
        ops, [&](const Op* op) { return cost::class_of(*op) == Class::Product || is_by_place(*op, accesses_); });
    if (!by_place && !own_) return;
    taken_.clear();
    for (const Op* op : ops)
      for (const auto& result : op->results()) {
        const size_t own = index_[result.get()];
        if (own == kNoBuffer || buffers_[own].value != result.get()) continue;  // inside, or donated
        const bool carried = buffers_[own].first != first || (repeats_ && op->is("accumulate"));
        OwnMemory found{.result = result.get()};
        if (!by_place)
          found.why = NotOver::KernelOfOthers;
        else if (carried)
          found.why = NotOver::CarriedSum;
        else if (is_after_all_rows(*op, *result))
          found.why = NotOver::AfterAllRows;
        else
          found = lost_operand(ops, *result, first, last);
        if (found.why == NotOver::No)
          take(*result, *found.operand);
        else if (own_ && buffers_[own].bytes > 0)
          own_->push_back(found);
      }
  }

  std::vector<Inside> inside() { return std::move(inside_); }

 private:
  // Other rows are read while parts of it are written.
  bool is_after_all_rows(const Op& op, const Value& result) {
    return cost::class_of(op) != Class::Product &&
           accesses_.of(op).is_after_all_rows(static_cast<size_t>(result.result_index()));
  }

  // Whether an operand is read for the last time that is as large as a result: of most kernels none is, and no map is asked.
  bool may_take(const std::vector<const Op*>& ops, int64_t first, int64_t last) {
    std::vector<int64_t> sizes;  // of results' memory, in bytes
    for (const Op* op : ops)
      for (const auto& result : op->results())
        if (const int64_t bytes = result->type().span_bytes(); std::ranges::find(sizes, bytes) == sizes.end())
          sizes.push_back(bytes);
    const auto is_free = [&](const Value* operand) {
      if (!operand) return false;
      const Value* memory = ir::storage_of(operand);
      const size_t found = index_[memory];
      if (found == kNoBuffer) return false;
      const Buffer& host = buffers_[host_of(found)];
      return host.first < first && host.last == last &&
             std::ranges::find(sizes, memory->type().span_bytes()) != sizes.end();
    };
    return std::ranges::any_of(ops, [&](const Op* op) { return std::ranges::any_of(op->operands, is_free); });
  }

  // The operand of the kernel that `result` may be written over; else the one that comes nearest, and what it lacks.
  OwnMemory lost_operand(const std::vector<const Op*>& ops, const Value& result, int64_t first, int64_t last) {
    OwnMemory nearest{.result = &result, .why = NotOver::NothingToTake};
    for (const Op* op : ops)
      for (const Value* operand : op->operands) {
        if (!operand) continue;
        const Value* memory = ir::storage_of(operand);
        if (index_[memory] == kNoBuffer) continue;
        const Buffer& host = buffers_[host_of(index_[memory])];
        if (host.first >= first || host.region != Region::Window) continue;
        const NotOver why = why_not(ops, result, *memory, last);
        if (why == NotOver::No) return {&result, memory, why};
        if (why > nearest.why) nearest = {&result, memory, why};
      }
    return nearest;
  }

  // Whether nothing reads `memory` after this kernel, and `result` fits.
  NotOver why_not(const std::vector<const Op*>& ops, const Value& result, const Value& memory, int64_t last) {
    const size_t host = host_of(index_[&memory]);
    if (!fits(result, memory)) return NotOver::OtherSize;
    if (std::ranges::find(taken_, host) != taken_.end()) return NotOver::Taken;  // by one that may be dead after it
    if (buffers_[host].last != last) return NotOver::Kept;
    const bool outlives = buffers_[host].carried || !ir::is_repeated(memory.producer()->section);
    if (repeats_ && ir::is_repeated(*result.producer()) && outlives) return NotOver::NextMicroBatch;
    const bool only_in_place = std::ranges::all_of(ops, [&](const Op* reader) {
      const bool reads =
          std::ranges::any_of(reader->operands, [&](const Value* v) { return v && ir::storage_of(v) == &memory; });
      return !reads || reads_in_place(*reader, accesses_, memory);
    });
    return only_in_place ? NotOver::No : NotOver::ReadElsewhere;
  }

  static bool fits(const Value& result, const Value& memory) {
    return result.type().numel() == memory.type().numel() && result.type().bytes() == memory.type().span_bytes() &&
           result.type().strides.empty();
  }

  void take(const Value& result, const Value& memory) {
    const size_t own = index_[&result], host = host_of(index_[&memory]);
    inside_.push_back({.value = &result, .host = buffers_[host].value});
    buffers_[host].last = buffers_[own].last;
    taken_.push_back(host);
    buffers_[own].bytes = 0;
    host_of_[own] = host;
  }
  size_t host_of(size_t buffer) const {
    while (host_of_[buffer] != buffer) buffer = host_of_[buffer];
    return buffer;
  }

  const bool repeats_;
  ir::Accesses accesses_;
  const ir::ValueTable<size_t>& index_;
  std::vector<Buffer>& buffers_;
  std::vector<OwnMemory>* own_;
  std::vector<size_t> taken_;    // by results of the kernel at hand
  std::vector<size_t> host_of_;  // by buffer: the one that it lies in, or itself
  std::vector<Inside> inside_;
};

}  // namespace

std::string_view to_string(NotOver why) { return kReasons.at(static_cast<size_t>(why)); }

std::vector<Inside> write_over_last_reads(const Graph& graph, const cost::Kernels& kernels,
                                          const ir::ValueTable<size_t>& index, std::vector<Buffer>& buffers,
                                          std::vector<OwnMemory>* own) {
  Taker taker(graph, index, buffers, own);
  for (size_t i = 0; i < kernels.of.size();) {
    const int kernel = kernels.of[i];
    size_t last = i;
    if (kernel >= 0) {
      const auto& ops = kernels.ops[static_cast<size_t>(kernel)];
      while (graph.ops()[last].get() != ops.back()) ++last;
      taker.visit(ops, static_cast<int64_t>(i), static_cast<int64_t>(last));
    }
    i = last + 1;
  }
  return taker.inside();
}

}  // namespace sfsdp::plan
