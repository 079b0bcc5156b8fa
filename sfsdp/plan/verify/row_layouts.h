// SPDX-License-Identifier: BSD-3-Clause
// What the row of one op says of the layouts of its results on one axis, for layouts.h. Works on a rank's own sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// How a value lies on one model axis.
struct Layout {
  enum class Kind : uint8_t {
    Whole,
    Cut,      // evenly in dimension `dim`, of which each of `blocks` equal ranges
    Summand,  // the sum over the axis is the value
    Flat,     // a buffer of parts of several kinds
    Rows,  // of dimension `dim` a rank has a range in front, as offsets in memory say; what stands after it is nothing
    Passed,  // cut, and the part is that of the rank `shift` before, around the axis's end
    Terms,  // terms `first` to `last` of such a part, or with no shift of the rank's own, which is the sum of one for each rank
    Attended,  // attention of the rank's part of the queries to the keys of the ranks `first` to `last` before
  };
  Kind kind = Kind::Whole;
  int64_t dim = -1;
  int flat = -1;  // which buffer, or which offsets, of those that the checker knows; which gradient the terms are of
  int64_t blocks = 1;
  int64_t shift = 0;
  int64_t first = -1, last = -1;
  // Where it is Cut or a Summand: the dimension in which a rank has the part of the rank `shift` before alone (part_layouts.h); -1: none.
  int64_t part = -1;
  // Where it is Cut: of so many rows that a rank has in this dimension, those from `first` to before `last` alone (own_rows_layouts.h); -1:
  // all of them.
  int64_t rows = -1;
  bool operator==(const Layout&) const = default;
};
std::string to_text(const Layout& layout);

// The layouts of an op's results, or why it has none.
struct RowLayouts {
  std::vector<Layout> results;
  std::string wrong;
};
inline RowLayouts refused(std::string wrong) { return {{}, std::move(wrong)}; }

//   operands: none of them Flat; those of absent operands are not read
//   named: what the types of the results say, where several dimensions of one would do
RowLayouts row_layouts(const ir::Op& op, const std::vector<Layout>& operands, const std::vector<Layout>& named);

}  // namespace sfsdp::plan
