// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/prepared.h"

#include <algorithm>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/testing/machine/bytes.h"

namespace sfsdp::plan::machine {

Prepared::Prepared(const StepPlan& of, int64_t steps)
    : plan(of),
      drained(write_out(of, steps, true)),
      running_on(write_out(of, steps, false)),
      begin(of.graph),
      end(of.graph, 0),
      block_width(of.graph, 1),
      is_by_place(of.graph, 0),
      is_over_rows(of.graph, 0) {
  const DeviceMesh mesh(of.graph.mesh);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) places.emplace_back(of, rank);
  for (const auto& op : of.graph.ops()) {
    for (const auto& result : op->results()) {
      const ir::Type& type = result->type();
      if (type.kind == ir::Type::Kind::Token) continue;
      begin[result.get()] = offsets_of(type);
      for (const int64_t offset : begin[result.get()])
        end[result.get()] = std::max(end[result.get()], offset + ir::size_in_bytes(type.dtype));
    }
    if (ir::is_collective(*op)) continue;
    const ir::OpAccess access(*op);
    is_by_place[op.get()] = access.is_by_place() ? 1 : 0;
    // those of a row that an op reduces, or turns pairs of
    if (access.is_by_place()) block_width[op.get()] = std::max({access.rows().width, access.group(), int64_t{1}});
    if (cost::class_of(*op) == cost::Class::Reduction)
      for (size_t r = 0; r < op->results().size(); ++r)
        is_over_rows[op->result(static_cast<int>(r))] = access.is_after_all_rows(r) ? 1 : 0;
  }
}

}  // namespace sfsdp::plan::machine
