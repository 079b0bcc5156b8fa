// SPDX-License-Identifier: BSD-3-Clause
// Ops that one text gives to all ranks and that each runs in its own way (docs/plan_text.md):
//   offset="4096 + 512*dp_shard"      a view's begin (start= of narrow too) is affine in the rank's coordinates
//   counted=[0]                       only the first rows of these operands are there, as many as the last operand, a number
//                                     in memory, says
//   counted=[0] row_counts=[5, 3] row_axis=dp_shard     as many as the list says for the rank's coordinate
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// A rank's place by axis. An axis that is not named: 0.
using Coordinates = std::map<std::string, int64_t>;

// base + Σ step · coordinate.
struct Affine {
  int64_t base = 0;
  std::vector<std::pair<std::string, int64_t>> steps;  // by axis, in alphabetical order; none is 0
  int64_t at(const Coordinates& coordinates) const;
};
// "4096 + 512*dp_shard + -2*tp", as print writes it and no other way.
std::optional<Affine> parse_affine(std::string_view text);
std::string to_string(const Affine& affine);

// Whether the op has one of these forms.
bool is_by_rank(const Op& op);
// The axes on which what an op does depends on the rank's coordinate, each once: those of these forms, and axis= of own_part and of
// ops over a rank's part of a vocabulary or of a sequence (kByCoordinate).
std::vector<std::string> coordinate_axes(const Op& op);
// Whether the last operand says how many rows there are.
bool is_counted_in_memory(const Op& op);

// Whether a result has as many rows as are counted, rather than all. The op's rule says: only one of both fits it.
bool has_counted_rows(const Graph& graph, const Value& value);

// The op as a rank runs it: attributes are numbers, and what has counted rows has as many.
class RankOp {
 public:
  //   rows: where they are counted in memory, how many
  RankOp(const Graph& graph, const Op& op, const Coordinates& coordinates, int64_t rows = 0);
  const Op& op() const { return *op_; }
  // How many the rank has; nullopt where all are there.
  std::optional<int64_t> rows() const { return rows_; }

 private:
  void cut_results(const Op& op, uint32_t which);
  Graph graph_;  // the op alone, after what stands for its operands
  Op* op_ = nullptr;
  std::optional<int64_t> rows_;
};

// What is wrong with such an op, for any coordinate and number of rows.
std::vector<Diagnostic> check_by_rank(const Graph& graph, const Op& op);
// What reads, returns or carries rows that are not there, with the op that shows it.
std::vector<std::pair<const Op*, Diagnostic>> check_counted(const Graph& graph);

}  // namespace sfsdp::ir
