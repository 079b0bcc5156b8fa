// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_cost.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/checkpoints.h"
#include "sfsdp/cost/product_cost.h"
#include "sfsdp/cost/product_sums.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Value;

using Readers = std::unordered_map<const Value*, std::vector<const Op*>>;

// Bytes that `op` reads of `operand`: all of it, but of what is picked by index as much as is picked.
double bytes_read(const Op& op, const Value& operand) {
  const auto all = static_cast<double>(std::min(operand.type().bytes(), ir::storage_of(&operand)->type().bytes()));
  if (op.is("unpack")) return static_cast<double>(op.result()->type().bytes());
  if (!ir::has_flag(op, ir::kPicks) || &operand != op.operands[0]) return all;
  // An element of a row is a memory sector of 32 bytes.
  const double sectors = 32.0 * static_cast<double>(op.operands[1]->type().numel());
  return std::min(all, std::max(sectors, static_cast<double>(op.result()->type().bytes())));
}

// Bytes of the sum so far, which `accumulate` reads; 0 for another op.
double sum_bytes(const Op& op) { return op.is("accumulate") ? static_cast<double>(op.result()->type().bytes()) : 0; }

// Bytes that cross the border of a group of ops: each outside value read once, each value that is read outside written.
double border_bytes(const std::vector<const Op*>& ops, const Readers& readers) {
  const std::unordered_set<const Op*> inside(ops.begin(), ops.end());
  std::set<const Value*> read;
  double bytes = 0;
  for (const Op* op : ops) {
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const Value* operand = op->operands[i];
      if (!operand || is_inside(*op, i)) continue;
      const Value* from = ir::storage_of(operand);
      if (inside.contains(from->producer()) || !read.insert(from).second) continue;
      bytes += bytes_read(*op, *operand);
    }
    bytes += sum_bytes(*op);
    for (const auto& result : op->results()) {
      const auto found = readers.find(result.get());
      bool outside = found == readers.end();
      if (!outside)
        for (const Op* reader : found->second) outside |= !inside.contains(reader);
      if (outside) bytes += static_cast<double>(op->is("pack") ? packed_bytes(*op) : result->type().bytes());
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

bool is_gathered(const Op& op) {
  return op.is("all_gather") || (ir::is_wait(op) && op.operands[0]->producer()->is("all_gather.start"));
}

// What FSDP2's copies reach of the memory's bandwidth. PyTorch's authors measured _chunk_cat on an H100 (3,350 GB/s): 500 G
// elements/s where the dtype stays, 278 G from bf16 to f32 (pytorch #120678). The copy out moves as the former does.
constexpr double kSameCopy = 500.0 * 4 / 3350, kWideningCopy = 278.0 * 6 / 3350;
// Seconds of the host in the hooks of a unit, before its gather is there (pytorch #173680: 1 ms on a Xeon) and where its
// gradients are reduced (estimated: as long).
constexpr double kHook = 1e-3;

class Pricer {
 public:
  Pricer(const ir::Graph& graph, const Machine& machine, Execution execution, System system,
         const Composites& composites)
      : graph_(graph),
        machine_(machine),
        execution_(execution),
        system_(system),
        composites_(composites),
        measured_(machine.measured),
        readers_(readers_of(graph)) {
    if (!composites.product_sums) return;
    sums_ = product_sums(graph);
    for (const auto& [product, sum] : sums_) added_[sum].push_back(product);
  }

  KernelTable price() {
    const Kernels kernels = kernels_of(graph_);
    std::vector<int> number(kernels.ops.size(), -1);  // in the table, which also has the copies out of gathered units
    double dispatched = 0;                            // ops since the last kernel
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = *graph_.ops()[i];
      const int kernel = kernels.of[i];
      ++dispatched;
      if (has_hooks() && is_gathered(op)) hooks_ += kHook;
      int& in_table = table_.kernel_of.emplace_back(-1);
      if (copies_out(op))
        in_table = add({&op}, dispatched);
      else if (kernel >= 0 && number[static_cast<size_t>(kernel)] < 0)
        in_table = number[static_cast<size_t>(kernel)] = add(kernels.ops[static_cast<size_t>(kernel)], dispatched);
      else if (kernel >= 0)
        in_table = number[static_cast<size_t>(kernel)];
    }
    for (Kernel& kernel : table_.kernels) time(kernel);
    if (composites_.whole_blocks) run_to_the_end();
    return std::move(table_);
  }

 private:
  // A gathered unit is copied out of the buffer into its parameters; where the graph does not say so itself. What is
  // gathered before the first micro-batch stays: parameters are views of it (DeepSpeed, Megatron-LM).
  bool copies_out(const Op& op) const {
    if ((system_ != System::Fsdp2 && system_ != System::Traced) || !is_gathered(op)) return false;
    if (ir::is_wait(op) && op.operands[0]->producer()->section == ir::Section::Init) return false;
    const auto readers = readers_.find(ir::storage_of(op.result()));
    return readers == readers_.end() ||
           std::ranges::none_of(readers->second, [](const Op* reader) { return reader && reader->is("unpack"); });
  }

  bool has_hooks() const { return system_ == System::Fsdp1 || system_ == System::Fsdp2; }
  // The copy into a reduction's buffer.
  bool copies_in(const Kernel& kernel) const {
    return system_ != System::Own && kernel.ops.back()->is("pack") && kernel.ops.back()->section == ir::Section::Bwd;
  }

  // Seconds of the copies before a reduction, at the bandwidth that kernels reach. FSDP1 puts the gradients together, casts
  // them and divides what is to be reduced; _chunk_cat of FSDP2 casts on its way.
  double copy_in_seconds(const Kernel& kernel) const {
    const Op& pack = *kernel.ops.back();
    const auto packed = static_cast<double>(pack.result()->type().bytes());
    const double made = kernel.bytes - packed;  // what backward has made
    if (system_ == System::Fsdp1) {
      const double cast = made == packed ? 0 : made + packed;
      return 2 * made / (machine_.memory_bandwidth * kSameCopy) +
             (cast + 2 * packed) / (machine_.memory_bandwidth * machine_.memory_efficiency);
    }
    return kernel.bytes / (machine_.memory_bandwidth * (made < packed ? kWideningCopy : kSameCopy));
  }

  int add(std::vector<const Op*> ops, double& dispatched) {
    Kernel kernel{.ops = std::move(ops)};
    // A compiled block issues its kernels without dispatching each op; a plan is issued as a whole.
    if (execution_ == Execution::Eager) kernel.host = machine_.dispatch * dispatched;
    if (execution_ == Execution::Compile) kernel.host = machine_.dispatch;
    if (execution_ == Execution::Reference) kernel.seconds = machine_.dispatch * (dispatched - 1);  // views before it
    kernel.host += hooks_ + (has_hooks() && copies_in(kernel) ? kHook : 0);
    hooks_ = dispatched = 0;
    table_.kernels.push_back(std::move(kernel));
    return static_cast<int>(table_.kernels.size()) - 1;
  }

  void time(Kernel& kernel) const {
    const Op* arithmetic = arithmetic_op(kernel.ops);
    const Op& op = arithmetic ? *arithmetic : *kernel.ops.back();
    kernel.bytes =
        copies_out(op) ? 2 * static_cast<double>(op.result()->type().bytes()) : border_bytes(kernel.ops, readers_);
    kernel.flops = flops_of(op);
    if (const MeasuredKernel* measured = execution_ == Execution::Fused ? measured_.kernel(kernel.ops) : nullptr) {
      kernel.seconds = measured->seconds;
      kernel.sum_seconds = measured->seconds - measured->first;
      return;
    }
    if (kernel.ops.size() == 1 && !copies_out(op)) {
      if (const auto measured = measured_.seconds(op, kernel.flops, bytes_moved(op))) {
        kernel.seconds += *measured;
        return;
      }
    }
    if (copies_out(op)) {
      kernel.seconds += machine_.launch + kernel.bytes / (machine_.memory_bandwidth * kSameCopy);
      return;
    }
    if (copies_in(kernel)) {
      kernel.seconds += machine_.launch + copy_in_seconds(kernel);
      return;
    }
    const Class kind = class_of(op);
    const double compute = kind == Class::Product     ? product_seconds(op, machine_)
                           : kind == Class::Attention ? attention_seconds(op, machine_)
                                                      : 0;
    const auto alone = [&](double bytes) {
      return std::max(compute, bytes / (machine_.memory_bandwidth * machine_.memory_efficiency));
    };
    for (const Op* part : kernel.ops) {
      kernel.sum_bytes += sum_bytes(*part);
      add_in_products(*part, kernel);
    }
    if (kernel.bytes <= 0) {  // products have added all of it
      kernel.host = 0;
      return;
    }
    kernel.seconds += machine_.launch + alone(kernel.bytes);
    kernel.sum_seconds = alone(kernel.bytes) - alone(kernel.bytes - kernel.sum_bytes);
    add_composites(kernel);
  }

  // A product reads the sum and writes it, in the place of its gradient; the sum's own kernel does without both.
  void add_in_products(const Op& op, Kernel& kernel) const {
    const auto bytes_of_sum = [](const Op& product, const Op& sum) {
      const auto width = static_cast<int64_t>(ir::size_in_bytes(sum.result()->type().dtype));
      return static_cast<double>(product.result()->type().numel() * width);
    };
    if (const auto found = sums_.find(&op); found != sums_.end()) {
      const double sum = bytes_of_sum(op, *found->second);
      kernel.bytes += 2 * sum - static_cast<double>(op.result()->type().bytes());
      kernel.sum_bytes += sum;
    }
    if (const auto found = added_.find(&op); found != added_.end())
      for (const Op* product : found->second) {
        const double sum = bytes_of_sum(*product, op);
        kernel.bytes -= 2 * sum + static_cast<double>(product->result()->type().bytes());
        kernel.sum_bytes -= sum;
      }
  }

  // What is run again unread, in the kernel after which it is.
  void run_to_the_end() {
    const auto unread = run_again_unread(graph_);
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const auto found = unread.find(graph_.ops()[i].get());
      if (found == unread.end() || table_.kernel_of[i] < 0) continue;
      Kernel& after = table_.kernels[static_cast<size_t>(table_.kernel_of[i])];
      for (const Op* op : found->second) {
        Kernel again{.ops = {op}, .host = machine_.dispatch};
        time(again);
        after.bytes += again.bytes;
        after.flops += again.flops;
        after.seconds += again.seconds;
        after.host += again.host;
      }
    }
  }

  // What PyTorch's smaller kernels take beyond the one that stands for them; eager mode dispatches each.
  void add_composites(Kernel& kernel) const {
    for (const Op* op : kernel.ops) {
      const MoreKernels more = more_kernels(*op, composites_);
      const auto count = static_cast<double>(more.count);
      kernel.bytes += more.bytes;
      kernel.seconds += machine_.launch * count + more.bytes / (machine_.memory_bandwidth * machine_.memory_efficiency);
      if (execution_ == Execution::Eager) kernel.host += machine_.dispatch * count;
    }
  }

  const ir::Graph& graph_;
  const Machine& machine_;
  const Execution execution_;
  const System system_;
  const Composites composites_;
  const MeasuredOps measured_;
  const Readers readers_;
  ProductSums sums_;
  std::unordered_map<const Op*, std::vector<const Op*>> added_;  // by sum: the products that add to it
  KernelTable table_;
  double hooks_ = 0;  // s of the host since the last kernel
};

}  // namespace

Execution parse_execution(const std::string& text, const std::string& key) {
  if (text == "eager") return Execution::Eager;
  if (text == "compile") return Execution::Compile;
  if (text == "reference") return Execution::Reference;
  if (text == "fused") return Execution::Fused;
  throw UserError(concat(key, " ", text, "\n  expected fused, compile, eager or reference"));
}

System usual_system(Execution execution) {
  return execution == Execution::Eager || execution == Execution::Compile ? System::Fsdp2 : System::Own;
}

KernelTable price_kernels(const ir::Graph& graph, const Machine& machine, Execution execution, System system,
                          const Composites& composites) {
  return Pricer(graph, machine, execution, system, composites).price();
}

KernelTable price_kernels(const ir::Graph& graph, const Machine& machine, Execution execution) {
  return price_kernels(graph, machine, execution, usual_system(execution));
}

std::vector<KernelWork> work_of_kernels(const ir::Graph& graph, const Kernels& kernels) {
  const Readers readers = readers_of(graph);
  std::vector<KernelWork> work;
  for (const auto& ops : kernels.ops) {
    const Op* arithmetic = arithmetic_op(ops);
    work.push_back({.flops = arithmetic ? flops_of(*arithmetic) : 0, .bytes = border_bytes(ops, readers)});
    for (const Op* op : ops) work.back().sum_bytes += sum_bytes(*op);
  }
  return work;
}

double bytes_moved(const Op& op) {
  double bytes = 0;
  for (const Value* operand : op.operands)
    if (operand) bytes += bytes_read(op, *operand);
  for (const auto& result : op.results()) bytes += static_cast<double>(result->type().bytes());
  return bytes;
}

}  // namespace sfsdp::cost
