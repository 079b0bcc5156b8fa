// SPDX-License-Identifier: BSD-3-Clause
// Which elements of its operands each element of an op's results is made of: the access column of opset.def and
// atenset.def, resolved against the op's types and attributes. What may share a kernel, and what may be written over what it
// reads, follows from it. An op without a map stands alone: nothing joins it, and nothing is written in place.
//
// A map is written in the factors of the op's iteration space, as an einsum is:
//
//   row      = map [& linear , linear ...] | map & exact [, linear ...] | map & place
//   exact    : no operand is broadcast: one of size 1, or smaller, is written to the first places. The map fits where unmarked dimensions
//              are as large as the result's
//   place    : what an element becomes depends on its place in the whole tensor (tril), or on how many there are (the gradient of a
//              mean), so that no part of it may be cut out
//   linear   = operand operand ...   numbers of operands in which all results are linear together, all others given: the sum of
//                                    the results of summands is the result of their sums, and what is added up (+) of one of
//                                    them may be added up in parts
//   map      = [flag ?] clause ; clause ... | map    of several maps the first that the shapes fit, and whose attribute
//                                                    `flag` is true
//   clause   = operand, operand ... -> result, ...   a clause names the results that come after those of the clause before;
//                                                    operands that it leaves out at the end are not read by its results
//   operand  = dimension dimension ... | _ | [operand]     _: its elements are not read; [ ]: as many as there are, a list of
//                                                    operands and a list of results in pairs
//   dimension= [mark] factor | (factor factor)       a dimension of several factors, outer first; p=2 has a size of its own
//   factor   = ...        any number of dimensions, which broadcast from the right
//            | d          one dimension
//            | d*         any number
//            | d#name     as many as the attribute `name` counts or lists
//            | d[name]    those that the attribute `name` lists; where it lists none, all, as part of ...
//            | d[name=0]  the same, with what it lists where it is absent
//            | 1          what is left, of size 1
//   mark     = (none)     the same place in operand and result
//            | !          whole: all of it is read before any of it is written
//            | + or ^     added up, or the largest taken: the result has no such dimension, or size 1
//            | ~          a window, or another place
//            | @          places that an index says
//
// linear is "... +k, n +k, n -> ... n", layer_norm "... !d#normalized_shape, d, d -> ... d; ... !d -> ... 1, ... 1". A mark on
// ... is over all rows. linear is linear in its first operand with the bias, and in its second with it: "& 0 2, 1 2". An
// operand's dimension of size 1, or one that it lacks on the left, is broadcast.
// Source: LibTorch's kernels, by which capture/access_test.cc proves every map.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/access_map.h"
#include "sfsdp/ir/factor_parts.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::ir {

// Elements of one operand that one element of one result is made of, from fewest to most.
enum class Reads : uint8_t {
  Nothing,
  Element,  // the one at its place, counted in row-major order where both are as large, or one that is broadcast to it
  Group,    // those of the last dimension: pairs that are turned
  Row,      // those of its row, the last dimensions
  AllRows,  // those of all rows: the result is complete only after them
  Whole,    // all elements of something small
  Others,   // no order is known
};

struct Access {
  Reads reads = Reads::Others;
  int64_t width = 0;  // elements of a row, or of the dimension that holds a group
  size_t dims = 0;    // how many last dimensions a row is
  bool operator==(const Access&) const = default;
};

// What an op works on where each element, or row, of its results is made of the same element, or row, of its operands.
struct Rows {
  int64_t width = 0;  // elements of a row; 0: it reads no rows
  int64_t numel = 0;  // of all rows
  size_t dims = 0;    // how many last dimensions a row is
};

// The map of one op.
class OpAccess {
 public:
  explicit OpAccess(const Op& op);

  Access reads(size_t operand, size_t result) const { return reads_[result * operands_ + operand]; }
  // By whichever result reads most.
  Access reads(size_t operand) const;
  // Whether each result is made element by element, pair by pair or row by row: no operand is read in an order that is not
  // known. Results over all rows may stand beside.
  bool is_by_place() const { return by_place_; }
  // Where it is by place, and a result reads rows.
  const Rows& rows() const { return rows_; }
  // Elements of the last dimension, where pairs of it are read; 0: none are.
  int64_t group() const { return group_; }
  // Whether nothing of the result is complete before all rows have been read.
  bool is_after_all_rows(size_t result) const { return after_all_rows_[result]; }

 private:
  void summarise(const Op& op);

  size_t operands_ = 0;
  std::vector<Access> reads_;  // by result, then operand
  std::vector<bool> after_all_rows_;
  Rows rows_;
  int64_t group_ = 0;
  bool by_place_ = false;
};

// The maps of a graph's ops, each resolved when it is first asked for. Undefined once an op's types, operands or attributes
// have changed.
class Accesses {
 public:
  explicit Accesses(const Graph& graph) : known_(graph) {}
  const OpAccess& of(const Op& op);

 private:
  OpTable<std::optional<OpAccess>> known_;
};

// What costs ask of the map of a product, and tests that prove maps of any. One factor of an operand:
struct FactorUse {
  std::string factor;
  char mark = ' ';
  int64_t size = 1;
  bool in_result = false;  // and there of more than one element
};
// By result, then operand. Empty where the map says that no element of the operand is read, or there is none.
std::vector<std::vector<FactorUse>> factors_of(const Op& op, const AccessMap& map);
// Whether the map admits that the operand's element `from` is read for the result's element `to`, indexes by dimension. True
// where no map fits.
//   unmarked: one of factors_of(), which is taken as if it had no mark; -1: none
bool may_reach(const Op& op, const AccessMap& map, size_t operand, std::span<const int64_t> from, size_t result,
               std::span<const int64_t> to, int unmarked = -1);

// Empty where no map fits, where operands and results are lists that go together, i by i, and for convolutions of groups.
std::vector<ClauseParts> parts_of(const Op& op);

// "" or what is wrong with the text of a map.
std::string check_access_text(std::string_view text);

}  // namespace sfsdp::ir
