// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/places.h"

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::plan {
namespace {

// By value: 1 where an op of the kernel that makes it reads it, and nothing else does. Such a value need not reach memory, though its op
// was given some: another result of the kernel may lie there.
ir::ValueTable<char> read_inside_alone(const ir::Graph& graph) {
  const cost::Kernels kernels = cost::kernels_of(graph);
  ir::ValueTable<int> maker(graph, -1);
  ir::ValueTable<char> inside(graph, 0), outside(graph, 0);
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const ir::Op& op = *graph.ops()[i];
    if (ir::aliased_operand(op) >= 0) continue;  // whoever reads the view reads its storage
    for (const ir::Value* operand : op.operands)
      if (const ir::Value* read = operand ? ir::storage_of(operand) : nullptr)
        (kernels.of[i] >= 0 && maker[read] == kernels.of[i] ? inside : outside)[read] = 1;
    for (const auto& result : op.results()) maker[result.get()] = kernels.of[i];
  }
  for (const ir::Value* output : graph.outputs) outside[ir::storage_of(output)] = 1;
  for (const ir::Carry& carry : graph.carries) outside[ir::storage_of(carry.next)] = 1;
  for (const auto& op : graph.ops())
    for (const auto& result : op->results())
      if (outside[result.get()] != 0) inside[result.get()] = 0;
  return inside;
}

}  // namespace

Places::Places(const StepPlan& plan, int64_t rank) : places_(plan.graph) {
  const MemoryPlan& m = plan.memory;
  for (const auto* buffers : {&m.constants, &m.state, &m.buffers})
    for (const Buffer& b : *buffers) places_[b.value] = Place{b.region, b.offset};
  // A host may itself lie inside another one: as many rounds as that takes.
  for (bool found = true; found;) {
    found = false;
    for (const Inside& i : m.inside) {
      const auto& host = places_[i.host];
      if (!host || places_[i.value]) continue;
      places_[i.value] = Place{host->region, host->offset + i.offset};
      found = true;
    }
  }
  ir::ValueTable<int64_t> begins(plan.graph, 0);  // of views, bytes from their storage
  const ir::ValueTable<char> stays = read_inside_alone(plan.graph);
  const DeviceMesh mesh(plan.graph.mesh);
  for (const View& v : m.views) {
    begins[v.value] = v.offset;
    for (const auto& [axis, step] : v.steps) begins[v.value] += step * mesh.axis_rank(rank, axis);
  }
  for (const auto& op : plan.graph.ops()) {
    if (ir::aliased_operand(*op) >= 0) {
      for (const auto& result : op->results())
        if (auto at = places_[ir::storage_of(result.get())]) {
          at->offset += begins[result.get()];
          places_[result.get()] = at;
        }
      continue;
    }
    const auto donated = ir::donated_operands(*op);
    for (size_t r = 0; r < donated.size() && r < op->results().size(); ++r) {
      const ir::Value* result = op->result(static_cast<int>(r));
      if (!places_[result] && stays[result] == 0)
        places_[result] = places_[op->operands[static_cast<size_t>(donated[r])]];
    }
  }
}

}  // namespace sfsdp::plan
