// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/prepared.h"

#include <algorithm>

#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/testing/machine/bytes.h"

namespace sfsdp::plan::machine {

Prepared::Prepared(const StepPlan& of, int64_t steps)
    : plan(of),
      drained(write_out(of, steps, true)),
      running_on(write_out(of, steps, false)),
      begin(of.graph),
      end(of.graph, 0) {
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
  }
}

}  // namespace sfsdp::plan::machine
