// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/calibration.h"

#include <algorithm>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

constexpr const char* kCopy = "aten.clone";

// Work done over seconds taken, of all points that `picks` chooses, and the best of one of them; 0 without any.
struct Rate {
  double mean = 0, best = 0;
};
template <class Picks, class Work>
Rate rate_of(const Measured& measured, Picks picks, Work work) {
  Rate rate;
  double all = 0, seconds = 0;
  for (const MeasuredOp& m : measured.ops) {
    if (!picks(m)) continue;
    all += work(m);
    seconds += m.seconds;
    rate.best = std::max(rate.best, work(m) / m.seconds);
  }
  if (seconds > 0) rate.mean = all / seconds;
  return rate;
}

Link fit_link(const Measured& measured) {
  const MeasuredCollective *smallest = nullptr, *largest = nullptr;
  for (const MeasuredCollective& m : measured.collectives) {
    if (m.kind != "all_gather") continue;
    if (!smallest || m.bytes < smallest->bytes) smallest = &m;
    if (!largest || m.bytes > largest->bytes) largest = &m;
  }
  Link link;
  link.bandwidth = 1e9;  // of one rank: never asked
  if (!smallest || smallest == largest) return link;
  const auto ranks = static_cast<double>(largest->ranks);
  link.base_latency = smallest->seconds;
  const double moving = std::max(largest->seconds - smallest->seconds, largest->seconds / 2);
  link.bandwidth = (ranks - 1) / ranks * largest->bytes / moving;
  return link;
}

}  // namespace

std::vector<const ir::Op*> ops_to_measure(const ir::Graph& graph) {
  std::vector<const ir::Op*> ops;
  std::set<std::string> seen;
  for (const auto& op : graph.ops()) {
    const Class kind = class_of(*op);
    if (kind == Class::Free || kind == Class::Communication || ir::is_wait(*op)) continue;
    if (ir::is_random(*op) || op->is("accumulate")) continue;
    if (seen.insert(concat(op->opcode, ' ', types_of(*op))).second) ops.push_back(op.get());
  }
  return ops;
}

std::string pointwise_graph(int64_t max_bytes) {
  std::string roots, body;
  for (int64_t bytes = 4096; bytes <= max_bytes; bytes *= 4) {
    const std::string n = std::to_string(bytes / 4), x = "%x." + n, type = concat(" : f32[", n, "]\n");
    roots += concat("  ", x, " = input name=x.", n, type);
    body += concat("  %copy.", n, " = ", kCopy, " ", x, type, "  %product.", n, " = aten.mul.Tensor ", x, ", %copy.", n,
                   type, "  %silu.", n, " = aten.silu ", x, type);
  }
  return concat("graph mesh [dp_shard=1] view local\n", roots, "fwd:\n", body);
}

std::vector<CollectiveSize> collectives_of_step(const ir::Graph& graph, int64_t max_bytes) {
  std::set<CollectiveSize> wanted;
  for (const auto& op : graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    const int64_t bytes = ir::collective_bytes(*op);
    if (bytes <= max_bytes) wanted.emplace(std::string(ir::collective_kind(*op)), bytes);
  }
  return {wanted.begin(), wanted.end()};
}

std::vector<CollectiveSize> collectives_by_size(const std::vector<CollectiveSize>& known, int64_t max_bytes) {
  std::vector<CollectiveSize> wanted;
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"})
    for (int64_t bytes = 1024; bytes <= max_bytes; bytes *= 4)
      if (CollectiveSize size{kind, bytes}; std::ranges::find(known, size) == known.end())
        wanted.push_back(std::move(size));
  return wanted;
}

void fit_formulas(Machine& machine, double dispatch) {
  const Measured& measured = machine.measured;
  const auto flops = [](const MeasuredOp& m) { return m.flops; };
  const auto bytes = [](const MeasuredOp& m) { return m.bytes; };
  const auto is_attention = [](const MeasuredOp& m) { return m.op.find("scaled_dot_product") != std::string::npos; };
  const auto product_rate = [&](const char* dtype) {
    return rate_of(
        measured,
        [&](const MeasuredOp& m) { return m.flops > 0 && !is_attention(m) && (!dtype || m.types.starts_with(dtype)); },
        flops);
  };
  const Rate products = product_rate(nullptr), f32 = product_rate("f32"), bf16 = product_rate("bf16");
  SFSDP_CHECK(products.best > 0, "no product was measured");
  machine.peak_f32 = f32.best > 0 ? f32.best : products.best;
  machine.peak_bf16 = bf16.best > 0 ? bf16.best : products.best;
  machine.matmul_efficiency = products.mean / products.best;
  if (const Rate attention = rate_of(measured, is_attention, flops); attention.mean > 0)
    machine.attention_efficiency = attention.mean / machine.peak_bf16;
  machine.vendor_attention_efficiency = machine.triton_attention_efficiency = machine.attention_efficiency;
  machine.attention_half_length = 0;

  const MeasuredOp *smallest = nullptr, *largest = nullptr;
  for (const MeasuredOp& m : measured.ops) {
    if (m.op != kCopy) continue;
    if (!smallest || m.bytes < smallest->bytes) smallest = &m;
    if (!largest || m.bytes > largest->bytes) largest = &m;
  }
  SFSDP_CHECK(smallest, "no copy was measured");
  machine.memory_bandwidth = largest->bytes / largest->seconds;
  machine.memory_efficiency = 1;
  if (const Rate others = rate_of(
          measured, [](const MeasuredOp& m) { return m.flops == 0 && m.op != kCopy; }, bytes);
      others.mean > 0)
    machine.memory_efficiency = std::min(1.0, others.mean / machine.memory_bandwidth);
  machine.launch = smallest->seconds;
  machine.dispatch = dispatch;
  machine.node = machine.network = fit_link(measured);
}

void fit_products(Machine& machine, const std::vector<Kernel>& kernels) {
  const double peak_before = machine.peak_bf16;
  std::vector<std::pair<const Kernel*, const double*>> products;  // and the peak of their dtype
  for (const Kernel& kernel : kernels) {
    const auto product =
        std::ranges::find_if(kernel.ops, [](const ir::Op* op) { return class_of(*op) == Class::Product; });
    if (product == kernel.ops.end() || kernel.flops <= 0 || kernel.seconds <= 0) continue;
    const bool half = (*product)->operands[0]->type().dtype == ir::DType::bf16;
    double& peak = half ? machine.peak_bf16 : machine.peak_f32;
    peak = std::max(peak, kernel.flops / kernel.seconds);
    products.emplace_back(&kernel, &peak);
  }
  if (products.empty()) return;
  machine.peak_bf16 = std::max(machine.peak_bf16, machine.peak_f32);
  double at_peak = 0, seconds = 0;
  for (const auto& [kernel, peak] : products) {
    at_peak += kernel->flops / *peak;
    seconds += kernel->seconds;
  }
  machine.matmul_efficiency = at_peak / seconds;
  for (double* efficiency :
       {&machine.attention_efficiency, &machine.vendor_attention_efficiency, &machine.triton_attention_efficiency})
    *efficiency *= peak_before / machine.peak_bf16;  // the same rate
}

}  // namespace sfsdp::cost
