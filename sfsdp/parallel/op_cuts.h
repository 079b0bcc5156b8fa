// SPDX-License-Identifier: BSD-3-Clause
// In which ways one op may be cut over an axis, as its row says (ir/access.h), for partition. Works on the whole's sizes.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/access.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::parallel {

// What each operand has to be, and what each result then is. An operand that is absent, or not read, may be anything.
struct OpCut {
  std::vector<std::optional<ir::Placement>> operands;
  std::vector<ir::Placement> results;
};

// Every way that leaves one operand at least as it is, and last that of whole operands, which any op has.
//   operands: what they are; of an operand of rows that only memory says (Rows), what makes each row of the same one
//   ranks:    of the axis, which has to divide what it cuts
//   cut_summands: one of 3 dimensions or more may be cut instead of being whole, in dimension 0 where the ranks divide it, else in 1
std::vector<OpCut> cuts_of(const ir::Op& op, const std::vector<ir::Placement>& operands, int64_t ranks,
                           bool cut_summands = false);

// The same of a graph's ops, each answer kept, once for all ops that are alike: those of like layers are. Undefined once an op's types,
// operands or attributes have changed.
class CutsOfOps {
 public:
  CutsOfOps(const ir::Graph& graph, int64_t ranks, bool cut_summands)
      : ranks_(ranks), cut_summands_(cut_summands), known_of_(graph, nullptr) {}
  const std::vector<OpCut>& of(const ir::Op& op, const std::vector<ir::Placement>& operands);

 private:
  struct Answer {
    std::vector<ir::Placement> operands;
    std::vector<OpCut> cuts;
  };
  // All that cuts_of asks of an op.
  struct Likeness {
    ir::Opcode opcode;
    ir::Attrs attrs;
    std::vector<std::optional<ir::Type>> operands;
    std::vector<bool> zeros;  // by operand
    std::vector<ir::Type> results;
    bool is_of(const ir::Op& op) const;
  };
  struct Known {
    Likeness of;
    std::optional<std::vector<ir::ClauseParts>> parts;
    std::deque<Answer> answers;
  };
  Known& known(const ir::Op& op);

  const int64_t ranks_;
  const bool cut_summands_;
  std::deque<Known> known_;
  std::unordered_map<size_t, std::vector<Known*>> alike_;  // by a hash of what they have alike
  ir::OpTable<Known*> known_of_;                           // of ops that were asked for
};

// Whether anything says how the op may be cut: views have rules of their own.
bool has_rule(const ir::Op& op);

}  // namespace sfsdp::parallel
