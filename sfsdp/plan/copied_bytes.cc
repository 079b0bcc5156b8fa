// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/copied_bytes.h"

#include <vector>

#include "sfsdp/ir/part.h"
#include "sfsdp/plan/places.h"

namespace sfsdp::plan {
namespace {

// Bytes of a pack's operands that do not begin where the bucket has them.
int64_t packed_bytes(const ir::Op& pack, const Places& places) {
  const auto& bucket = places.of(pack.result());
  const auto& offsets = pack.attr<std::vector<int64_t>>("offsets");
  const int64_t element = ir::size_in_bytes(pack.result()->type().dtype);
  int64_t bytes = 0;
  for (size_t i = 0; i < pack.operands.size(); ++i) {
    const auto& part = places.of(pack.operands[i]);
    const bool lies_there =
        bucket && part && part->region == bucket->region && part->offset == bucket->offset + offsets[i] * element;
    if (!lies_there) bytes += pack.operands[i]->type().bytes();
  }
  return bytes;
}

}  // namespace

CopiedBytes copied_bytes(const StepPlan& plan) {
  const Places places(plan, 0);
  CopiedBytes copied;
  for (const ir::Part part : ir::parts_of_step(plan.graph.micro_batches))
    for (const auto& op : plan.graph.ops()) {
      if (!ir::runs_in(*op, part)) continue;
      if (op->is("pack")) copied.in += packed_bytes(*op, places);
      if (op->is("unpack")) copied.out += op->result()->type().bytes();
    }
  return copied;
}

}  // namespace sfsdp::plan
