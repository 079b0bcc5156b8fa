// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Value;

using Readers = std::unordered_map<const Value*, std::vector<const Op*>>;

double peak_of(const Op& op, const Machine& m) {
  const ir::DType dtype = op.result()->type().dtype;
  return dtype == ir::DType::bf16 || dtype == ir::DType::f16 ? m.peak_bf16 : m.peak_f32;
}

double product_seconds(const Op& op, const Machine& machine) {
  const ProductShape s = product_shape(op);
  double rate = peak_of(op, machine) * machine.matmul_efficiency;
  if (machine.half_k > 0) rate *= s.k / (s.k + machine.half_k);
  if (machine.multiprocessors > 1) {  // the last wave of tiles leaves multiprocessors idle
    const double waves = s.batch * std::ceil(s.m / static_cast<double>(machine.tile_m)) *
                         std::ceil(s.n / static_cast<double>(machine.tile_n)) /
                         static_cast<double>(machine.multiprocessors);
    rate *= waves / std::ceil(waves);
  }
  return flops_of(op) / rate;
}

// A pair of positions costs width multiply-adds per product and one exponential, whatever the width: narrow heads are
// slower per flop. FlashAttention's published curves: width 64 reaches 0.77 of width 128's rate (FlashAttention-3, long
// causal sequences), and width 256 hardly more than 128.
double attention_seconds(const Op& op, const Machine& machine) {
  const AttentionShape s = attention_shape(op);
  constexpr double kFullWidth = 128, kExponential = 54;  // in multiply-adds
  const double width = std::min(s.width, kFullWidth);
  const double narrow = width / (width + kExponential) * (kFullWidth + kExponential) / kFullWidth;
  const double rate = peak_of(op, machine) * machine.attention_efficiency * narrow * s.length /
                      (s.length + machine.attention_half_length);
  return flops_of(op) / rate;
}

// Bytes that `op` reads of `operand`: all of it, but of what is picked by index as much as is picked.
double bytes_read(const Op& op, const Value& operand) {
  const auto all = static_cast<double>(std::min(operand.type().bytes(), ir::storage_of(&operand)->type().bytes()));
  if (op.is("unpack")) return static_cast<double>(op.result()->type().bytes());
  if (!ir::has_flag(op, ir::kPicks) || &operand != op.operands[0]) return all;
  // An element of a row is a memory sector of 32 bytes.
  const double sectors = 32.0 * static_cast<double>(op.operands[1]->type().numel());
  return std::min(all, std::max(sectors, static_cast<double>(op.result()->type().bytes())));
}

// Bytes that cross the border of a group of ops: each outside value read once, each value that is read outside written.
double border_bytes(const std::vector<const Op*>& ops, const Readers& readers) {
  const std::unordered_set<const Op*> inside(ops.begin(), ops.end());
  std::set<const Value*> read;
  double bytes = 0;
  for (const Op* op : ops) {
    for (const Value* operand : op->operands) {
      if (!operand) continue;
      const Value* from = ir::storage_of(operand);
      if (inside.contains(from->producer()) || !read.insert(from).second) continue;
      bytes += bytes_read(*op, *operand);
    }
    for (const auto& result : op->results()) {
      const auto found = readers.find(result.get());
      bool outside = found == readers.end();
      if (!outside)
        for (const Op* reader : found->second) outside |= !inside.contains(reader);
      if (outside) bytes += static_cast<double>(result->type().bytes());
    }
  }
  return bytes;
}

// By storage: who reads a value, through views; nullptr: the world outside.
Readers readers_of(const ir::Graph& graph) {
  Readers readers;
  for (const auto& op : graph.ops())
    if (class_of(*op) != Class::Free)
      for (const Value* operand : op->operands)
        if (operand) readers[ir::storage_of(operand)].push_back(op.get());
  for (const Value* output : graph.outputs) readers[ir::storage_of(output)].push_back(nullptr);
  for (const ir::Carry& carry : graph.carries) readers[ir::storage_of(carry.next)].push_back(nullptr);
  return readers;
}

// Ops that multiply complex numbers as pairs of reals (rotary embeddings): eager models have one kernel for it.
std::unordered_set<const Op*> complex_products(const ir::Graph& graph) {
  std::unordered_set<const Op*> found;
  for (const auto& op : graph.ops()) {
    if (!is_fusible(class_of(*op)) || op->is("aten._to_copy", "cast")) continue;
    for (const Value* operand : op->operands) {
      if (!operand) continue;
      const Op* from = operand->producer();
      const bool half = from->is("aten.select.int") && from->operands[0]->type().shape().back() == 2;
      if (half || found.contains(from)) found.insert(op.get());
    }
  }
  return found;
}

// Casts that only a pack reads: the copy into the reduction's buffer casts on its way.
std::unordered_set<const Op*> packed_casts(const ir::Graph& graph, const Readers& readers) {
  std::unordered_set<const Op*> found;
  for (const auto& op : graph.ops()) {
    if (!op->is("cast")) continue;
    const auto all = readers.find(op->result());
    if (all == readers.end()) continue;
    if (std::ranges::all_of(all->second, [](const Op* reader) { return reader && reader->is("pack"); }))
      found.insert(op.get());
  }
  return found;
}

bool is_gathered(const Op& op) {
  return op.is("all_gather") || (ir::is_wait(op) && op.operands[0]->producer()->is("all_gather.start"));
}

class Former {
 public:
  Former(const ir::Graph& graph, const Machine& machine, Execution execution)
      : graph_(graph),
        machine_(machine),
        execution_(execution),
        measured_(machine.measured),
        readers_(readers_of(graph)) {
    if (execution != Execution::Reference) casts_ = packed_casts(graph, readers_);
    if (execution == Execution::Eager) complex_ = complex_products(graph);
  }

  KernelTable form() {
    table_.kernel_of.assign(graph_.ops().size(), -1);
    for (size_t i = 0; i < graph_.ops().size(); ++i) table_.kernel_of[i] = place(*graph_.ops()[i]);
    for (Kernel& kernel : table_.kernels) time(kernel);
    return std::move(table_);
  }

 private:
  // The kernel that op begins or joins.
  int place(const Op& op) {
    const Class kind = class_of(op);
    ++dispatched_;
    // A kernel that begins before a wait cannot read what is waited for, nor end after a start that sends its result.
    if (kind == Class::Communication || ir::is_wait(op)) open_ = -1;
    if (copies_out(op)) return begin(op);
    if (kind == Class::Free || kind == Class::Communication || casts_.contains(&op)) return -1;
    const bool joins = is_fusible(kind) && is_fused(op);
    const std::string_view block = execution_ == Execution::Compile ? ir::block_of(op.module_path) : std::string_view();
    if (!joins || op.section != section_ || block != block_) open_ = -1;
    section_ = op.section;
    block_ = block;
    const int kernel = open_ < 0 ? begin(op) : open_;
    if (kernel == open_) table_.kernels[static_cast<size_t>(kernel)].ops.push_back(&op);
    open_ = joins ? kernel : -1;
    return kernel;
  }

  // FSDP2 copies a gathered unit out of the buffer into its parameters; where the graph does not say so itself.
  bool copies_out(const Op& op) const {
    if ((execution_ != Execution::Eager && execution_ != Execution::Compile) || !is_gathered(op)) return false;
    const auto readers = readers_.find(ir::storage_of(op.result()));
    return readers == readers_.end() ||
           std::ranges::none_of(readers->second, [](const Op* reader) { return reader && reader->is("unpack"); });
  }

  bool is_fused(const Op& op) const {
    switch (execution_) {
      case Execution::Fused: return true;
      case Execution::Compile: return !ir::block_of(op.module_path).empty();
      case Execution::Eager: return complex_.contains(&op);
      case Execution::Reference: return false;
    }
    return false;
  }

  int begin(const Op& op) {
    Kernel kernel;
    if (op.is("pack"))
      for (const Value* operand : op.operands)
        if (operand && casts_.contains(operand->producer())) kernel.ops.push_back(operand->producer());
    kernel.ops.push_back(&op);
    // A compiled block issues its kernels without dispatching each op; a plan is issued as a whole.
    if (execution_ == Execution::Eager) kernel.host = machine_.dispatch * dispatched_;
    if (execution_ == Execution::Compile) kernel.host = machine_.dispatch;
    if (execution_ == Execution::Reference) kernel.seconds = machine_.dispatch * (dispatched_ - 1);  // views before it
    dispatched_ = 0;
    table_.kernels.push_back(std::move(kernel));
    return static_cast<int>(table_.kernels.size()) - 1;
  }

  void time(Kernel& kernel) const {
    const Op& op = *kernel.ops.back();
    // Copied out of the buffer into the parameters.
    kernel.bytes =
        copies_out(op) ? 2 * static_cast<double>(op.result()->type().bytes()) : border_bytes(kernel.ops, readers_);
    kernel.flops = flops_of(op);
    if (kernel.ops.size() == 1 && !copies_out(op)) {
      if (const auto measured = measured_.seconds(op, kernel.flops, bytes_moved(op))) {
        kernel.seconds += *measured;
        return;
      }
    }
    const Class kind = class_of(op);
    const double compute = kind == Class::Product     ? product_seconds(op, machine_)
                           : kind == Class::Attention ? attention_seconds(op, machine_)
                                                      : 0;
    kernel.seconds +=
        machine_.launch + std::max(compute, kernel.bytes / (machine_.memory_bandwidth * machine_.memory_efficiency));
  }

  const ir::Graph& graph_;
  const Machine& machine_;
  const Execution execution_;
  const MeasuredOps measured_;
  const Readers readers_;
  std::unordered_set<const Op*> casts_, complex_;
  KernelTable table_;
  int open_ = -1;          // the group that the next op may join
  double dispatched_ = 0;  // ops since the last kernel
  ir::Section section_ = ir::Section::Init;
  std::string_view block_;
};

}  // namespace

double flops_per_byte(const Op& product, const Machine& machine) {
  return peak_of(product, machine) * machine.matmul_efficiency / (machine.memory_bandwidth * machine.memory_efficiency);
}

Execution parse_execution(const std::string& text, const std::string& key) {
  if (text == "eager") return Execution::Eager;
  if (text == "compile") return Execution::Compile;
  if (text == "reference") return Execution::Reference;
  if (text == "fused") return Execution::Fused;
  throw UserError(concat(key, " ", text, "\n  expected fused, compile, eager or reference"));
}

KernelTable form_kernels(const ir::Graph& graph, const Machine& machine, Execution execution) {
  return Former(graph, machine, execution).form();
}

KernelCuts::KernelCuts(const ir::Graph& graph, const Machine& machine)
    : machine_(machine), readers_(readers_of(graph)) {}

double KernelCuts::seconds(const Kernel& kernel, size_t ops) const {
  if (ops == 0 || ops >= kernel.ops.size()) return 0;
  const auto middle = kernel.ops.begin() + static_cast<std::ptrdiff_t>(ops);
  const double apart =
      border_bytes({kernel.ops.begin(), middle}, readers_) + border_bytes({middle, kernel.ops.end()}, readers_);
  return machine_.launch + (apart - kernel.bytes) / (machine_.memory_bandwidth * machine_.memory_efficiency);
}

double bytes_moved(const Op& op) {
  double bytes = 0;
  for (const Value* operand : op.operands)
    if (operand) bytes += bytes_read(op, *operand);
  for (const auto& result : op.results()) bytes += static_cast<double>(result->type().bytes());
  return bytes;
}

}  // namespace sfsdp::cost
