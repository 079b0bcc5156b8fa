// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/sequence_order.h"

#include "sfsdp/base/check.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

SequenceCut sequence_cut(const Op& op, int64_t ranks) {
  const size_t query = op.is("sdpa_backward") ? 1 : 0;
  const auto rows_of = [&](size_t operand) { return op.operands[operand]->type().shape().at(2); };
  const int64_t rows = rows_of(query), keys = rows_of(query + 1);
  SFSDP_CHECK(rows > 0 && keys == (op.has_attr("shift") ? rows : rows * ranks), op.opcode, " has ", rows,
              " queries and ", keys, " keys, over ", ranks, " ranks");
  return {rows * ranks, ranks, op.attr_or("balanced", false)};
}

int64_t rank_of_keys(const Op& op, int64_t rank, int64_t ranks) {
  return (rank - op.attr<int64_t>("shift") + ranks) % ranks;
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
