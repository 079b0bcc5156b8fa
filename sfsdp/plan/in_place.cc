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

// All of its memory, in order.
bool shows_whole(const Value& seen, const Value& memory) {
  const Value* value = &seen;
  while (value && value != &memory) value = ir::reshaped_operand(*value);
  return value && memory.type().strides.empty();
}

bool is_by_place(const Op& op, const ir::OpAccess& access) {
  const Class kind = cost::class_of(op);
  return access.is_by_place() && (kind == Class::Pointwise || kind == Class::Reduction);
}

// Whether `op` reads no element of `memory` but that at whose place it writes, or those of its row.
bool reads_in_place(const Op& op, const ir::OpAccess& access, const Value& memory) {
  if (!is_by_place(op, access)) return false;
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
  Taker(const Graph& graph, const std::unordered_map<const Value*, size_t>& index, std::vector<Buffer>& buffers)
      : repeats_(graph.micro_batches > 1),
        accesses_(graph),
        index_(index),
        buffers_(buffers),
        host_of_(buffers.size()) {
    std::iota(host_of_.begin(), host_of_.end(), size_t{0});
  }

  //   first, last: positions of the kernel's ops
  void visit(const std::vector<const Op*>& ops, int64_t first, int64_t last) {
    if (!std::ranges::all_of(ops, [&](const Op* op) {
          return cost::class_of(*op) == Class::Product || is_by_place(*op, accesses_.of(*op));
        }))
      return;
    taken_.clear();
    for (const Op* op : ops)
      for (const auto& result : op->results()) {
        const auto own = index_.find(result.get());
        if (own == index_.end() || buffers_[own->second].value != result.get()) continue;  // inside, or donated
        if (buffers_[own->second].first != first || (repeats_ && op->is("accumulate"))) continue;
        if (is_after_all_rows(*op, *result)) continue;
        if (const Value* taken = lost_operand(ops, *result, first, last)) take(*result, *taken);
      }
  }

  std::vector<Inside> inside() { return std::move(inside_); }

 private:
  // Other rows are read while parts of it are written.
  bool is_after_all_rows(const Op& op, const Value& result) {
    return cost::class_of(op) != Class::Product &&
           accesses_.of(op).is_after_all_rows(static_cast<size_t>(result.result_index()));
  }

  // What nothing reads after this kernel, and which `result` fits.
  const Value* lost_operand(const std::vector<const Op*>& ops, const Value& result, int64_t first, int64_t last) {
    for (const Op* op : ops)
      for (const Value* operand : op->operands) {
        const Value* memory = operand ? ir::storage_of(operand) : nullptr;
        const auto found = index_.find(memory);
        if (found == index_.end()) continue;
        const size_t host = host_of(found->second);
        const Buffer& buffer = buffers_[host];
        if (std::ranges::find(taken_, host) != taken_.end()) continue;  // by another result, which may be dead after it
        if (buffer.first >= first || buffer.last != last || buffer.region != Region::Window) continue;
        if (!fits(result, *memory) ||
            (repeats_ && ir::is_repeated(*op) && !ir::is_repeated(memory->producer()->section)))
          continue;  // what was made before all micro-batches is read in the next one
        const bool only_in_place = std::ranges::all_of(ops, [&](const Op* reader) {
          const bool reads =
              std::ranges::any_of(reader->operands, [&](const Value* v) { return v && ir::storage_of(v) == memory; });
          return !reads || reads_in_place(*reader, accesses_.of(*reader), *memory);
        });
        if (only_in_place) return memory;
      }
    return nullptr;
  }

  static bool fits(const Value& result, const Value& memory) {
    return result.type().numel() == memory.type().numel() && result.type().bytes() == memory.type().bytes() &&
           result.type().strides.empty();
  }

  void take(const Value& result, const Value& memory) {
    const size_t own = index_.at(&result), host = host_of(index_.at(&memory));
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
  const std::unordered_map<const Value*, size_t>& index_;
  std::vector<Buffer>& buffers_;
  std::vector<size_t> taken_;    // by results of the kernel at hand
  std::vector<size_t> host_of_;  // by buffer: the one that it lies in, or itself
  std::vector<Inside> inside_;
};

}  // namespace

std::vector<Inside> write_over_last_reads(const Graph& graph, const cost::Kernels& kernels,
                                          const std::unordered_map<const Value*, size_t>& index,
                                          std::vector<Buffer>& buffers) {
  Taker taker(graph, index, buffers);
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
