// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/reduction_buckets.h"

#include <map>
#include <utility>

#include "sfsdp/base/check.h"

namespace sfsdp::sim {

void merge_reductions(RankProgram& program, int64_t elements, const cost::Machine& machine) {
  SFSDP_CHECK(elements >= 1, "a bucket of ", elements, " elements");
  struct Bucket {
    Collective* last = nullptr;
    int64_t elements = 0;
  };
  std::map<std::pair<size_t, Part>, Bucket> open;
  for (Collective& c : program.collectives) {
    if (c.kind != "reduce_scatter" || c.op->section != ir::Section::Bwd) continue;
    Bucket& bucket = open[{c.communicator, c.part}];
    const int64_t more = c.op->operands[0]->type().numel();
    if (bucket.last && bucket.elements + more <= elements) {
      c.bytes += bucket.last->bytes;
      c.cost = cost::collective_cost(c.kind, c.bytes, program.groups[c.communicator], machine);
      bucket.last->bytes = 0;
      bucket.last->cost = {};
      bucket.elements += more;
    } else {
      bucket.elements = more;
    }
    bucket.last = &c;
  }
}

}  // namespace sfsdp::sim
