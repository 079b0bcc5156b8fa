// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Type, ir::Value;

enum class Class : uint8_t { Free, Product, Attention, Fusible, Alone, Collective };

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

bool is_product(const Op& op) {
  return op.is("aten.mm") || op.is("aten.addmm") || op.is("aten.bmm") || op.is("aten.baddbmm");
}

Class class_of(const Op& op) {
  if (ir::is_collective(op)) return Class::Collective;
  if (ir::is_root(op) || op.results().empty() || ir::aliased_operand(op) >= 0) return Class::Free;
  if (op.is("constant") || op.is("scalar")) return Class::Free;
  if (is_product(op) || contains(op.opcode, "convolution")) return Class::Product;
  if (contains(op.opcode, "scaled_dot_product")) return Class::Attention;
  // Kernels of their own: gathers and scatters by index, the optimizer, packing into buckets.
  for (const char* alone : {"embedding", "index", "scatter", "gather", "sort", "topk"})
    if (contains(op.opcode, alone)) return Class::Alone;
  if (op.is("adamw") || op.is("sgd") || op.is("pack") || op.is("sum_squares")) return Class::Alone;
  return Class::Fusible;
}

// Batch, rows, columns, depth of a product.
struct ProductShape {
  double batch = 1, m = 1, n = 1, k = 1;
};

ProductShape shape_of(const Op& op) {
  ProductShape s;
  const Type& out = op.result()->type();
  if (contains(op.opcode, "convolution")) {  // as one product: output elements × weight elements of one output channel
    const auto weight = op.operands[1]->type().shape();
    s.m = static_cast<double>(out.numel());
    for (size_t d = 1; d < weight.size(); ++d) s.k *= static_cast<double>(weight[d]);
    return s;
  }
  const size_t first = op.is("aten.addmm") || op.is("aten.baddbmm") ? 1 : 0;
  const auto a = op.operands[first]->type().shape(), b = op.operands[first + 1]->type().shape();
  const size_t rank = a.size();
  if (rank == 3) s.batch = static_cast<double>(a[0]);
  s.m = static_cast<double>(a[rank - 2]);
  s.k = static_cast<double>(a[rank - 1]);
  s.n = static_cast<double>(b[rank - 1]);
  return s;
}

struct AttentionShape {
  double pairs = 0;  // batch × heads × query positions × key positions
  double width = 0, length = 0;
  bool causal = false, backward = false;
};

AttentionShape attention_of(const Op& op) {
  AttentionShape s;
  s.backward = contains(op.opcode, "backward");
  const size_t q = s.backward ? 1 : 0;
  const auto query = op.operands[q]->type().shape(), key = op.operands[q + 1]->type().shape();
  SFSDP_CHECK(query.size() == 4 && key.size() == 4, op.opcode, " of ", query.size(), " dimensions");
  s.pairs = static_cast<double>(query[0] * query[1] * query[2] * key[2]);
  s.width = static_cast<double>(query[3]);
  s.length = static_cast<double>(key[2]);
  const auto causal = op.attrs.find("is_causal");
  s.causal = causal != op.attrs.end() && std::get<bool>(causal->second);
  return s;
}

double peak_of(const Op& op, const Machine& m) {
  const ir::DType dtype = op.result()->type().dtype;
  return dtype == ir::DType::bf16 || dtype == ir::DType::f16 ? m.peak_bf16 : m.peak_f32;
}

double product_seconds(const Op& op, const Machine& machine) {
  const ProductShape s = shape_of(op);
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

double attention_seconds(const Op& op, const Machine& machine) {
  const AttentionShape s = attention_of(op);
  const double rate =
      peak_of(op, machine) * machine.attention_efficiency * s.length / (s.length + machine.attention_half_length);
  return flops_of(op) / rate;
}

// Bytes that cross the border of a group of ops: each outside value read once, each value that is read outside written.
double border_bytes(const std::vector<const Op*>& ops,
                    const std::unordered_map<const Value*, std::vector<const Op*>>& readers) {
  const std::unordered_set<const Op*> inside(ops.begin(), ops.end());
  std::set<const Value*> read;
  double bytes = 0;
  for (const Op* op : ops) {
    for (const Value* operand : op->operands) {
      if (!operand) continue;
      const Value* from = ir::storage_of(operand);
      if (inside.contains(from->producer()) || !read.insert(from).second) continue;
      bytes += static_cast<double>(std::min(operand->type().bytes(), from->type().bytes()));
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

}  // namespace

double flops_of(const Op& op) {
  switch (class_of(op)) {
    case Class::Product: {
      const ProductShape s = shape_of(op);
      return 2 * s.batch * s.m * s.n * s.k;
    }
    case Class::Attention: {
      // Two products of every pair forward, five backward; the masked half is not computed.
      const AttentionShape s = attention_of(op);
      return (s.backward ? 10.0 : 4.0) * s.pairs * s.width * (s.causal ? 0.5 : 1.0);
    }
    default: return 0;
  }
}

KernelTable form_kernels(const ir::Graph& graph, const Machine& machine, Execution execution) {
  KernelTable table;
  table.kernel_of.assign(graph.ops().size(), -1);
  // By storage: who reads a value, through views.
  std::unordered_map<const Value*, std::vector<const Op*>> readers;
  for (const auto& op : graph.ops())
    if (class_of(*op) != Class::Free)
      for (const Value* operand : op->operands)
        if (operand) readers[ir::storage_of(operand)].push_back(op.get());
  for (const Value* output : graph.outputs) readers[ir::storage_of(output)].push_back(nullptr);
  for (const ir::Carry& carry : graph.carries) readers[ir::storage_of(carry.next)].push_back(nullptr);

  int open = -1;  // the group that the next fusible op may join
  ir::Section section = ir::Section::Init;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    const Class kind = class_of(op);
    // A kernel that begins before a wait cannot read what is waited for, nor end after a start that sends its result.
    if (kind == Class::Collective || ir::is_wait(op)) open = -1;
    if (kind == Class::Free || kind == Class::Collective) continue;
    const bool fuses = kind == Class::Fusible && execution == Execution::Fused;
    if (!fuses || op.section != section) open = -1;
    section = op.section;
    if (open < 0) {
      open = static_cast<int>(table.kernels.size());
      table.kernels.emplace_back();
    }
    table.kernel_of[i] = open;
    table.kernels[static_cast<size_t>(open)].ops.push_back(&op);
    if (!fuses) open = -1;
  }
  for (Kernel& kernel : table.kernels) {
    const Op& op = *kernel.ops[0];
    kernel.bytes = border_bytes(kernel.ops, readers);
    kernel.flops = flops_of(op);
    const Class kind = class_of(op);
    const double compute = kind == Class::Product     ? product_seconds(op, machine)
                           : kind == Class::Attention ? attention_seconds(op, machine)
                                                      : 0;
    kernel.seconds =
        machine.launch + std::max(compute, kernel.bytes / (machine.memory_bandwidth * machine.memory_efficiency));
  }
  return table;
}

}  // namespace sfsdp::cost
