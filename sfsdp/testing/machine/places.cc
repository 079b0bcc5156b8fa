// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/places.h"

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan::machine {

Places::Places(const StepPlan& plan) : places_(plan.graph) {
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
  for (const View& v : m.views) begins[v.value] = v.offset;
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
    for (size_t r = 0; r < donated.size() && r < op->results().size(); ++r)
      places_[op->result(static_cast<int>(r))] = places_[op->operands[static_cast<size_t>(donated[r])]];
  }
}

}  // namespace sfsdp::plan::machine
