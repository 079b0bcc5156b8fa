// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/sequence_order.h"

#include "sfsdp/base/check.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

SequenceCut sequence_cut(const Op& op, const Type& queries, const Type& keys) {
  const int64_t rows = queries.shape().at(2), length = keys.shape().at(2);
  SFSDP_CHECK(rows > 0 && length % rows == 0, op.opcode, " has ", rows, " queries of a sequence of ", length);
  return {length, length / rows, op.attr_or("balanced", false)};
}

std::vector<PositionRun> positions_of_rank(const SequenceCut& cut, int64_t rank) {
  SFSDP_CHECK(cut.ranks > 0 && rank >= 0 && rank < cut.ranks, "rank ", rank, " of ", cut.ranks);
  SFSDP_CHECK(cut.length % cut.chunks() == 0, cut.length, " positions in ", cut.chunks(), " chunks");
  const int64_t chunk = cut.length / cut.chunks();
  if (!cut.balanced) return {{rank * chunk, chunk}};
  const int64_t tail = 2 * cut.ranks - 1 - rank;
  if (tail == rank + 1) return {{rank * chunk, 2 * chunk}};  // of the last rank: the two in the middle
  return {{rank * chunk, chunk}, {tail * chunk, chunk}};
}

std::vector<int64_t> chunk_order(int64_t ranks) {
  std::vector<int64_t> order;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    order.push_back(rank);
    order.push_back(2 * ranks - 1 - rank);
  }
  return order;
}

}  // namespace sfsdp::ir
