// SPDX-License-Identifier: BSD-3-Clause
// Finds the ops of a decomposition in a graph.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::passes {

// Ops by what they compute: opcode, operands as terms, attributes. Numbers are compared as numbers, dimensions counted
// from 0, sums and products without order.
class OpFinder {
 public:
  explicit OpFinder(const ir::Graph& graph);

  // An op of `section`, or of forward for one of backward, with these operands, the first in `section` if there
  // are several; nullptr: none.
  ir::Op* find(const std::string& opcode, const std::vector<ir::Term>& operands, const ir::Emitter::Attributes& attrs,
               ir::Section section) const;
  // Ops that compute and read `term`, in order.
  std::vector<ir::Op*> readers(const ir::Term& term, const std::string& opcode) const;
  const ir::Term& term(const ir::Value* value) const { return terms_[at_[value]]; }
  // Ops after this one that make the same mask, or number of one: LibTorch makes each attention's own of a condition.
  const std::vector<ir::Op*>& made_again(const ir::Op* op) const { return made_again_[op]; }

 private:
  ir::Op* first_alike(const ir::Op& op) const;

  std::vector<ir::Term> terms_;
  ir::ValueTable<size_t> at_;                     // the place of a value's term
  ir::ValueTable<std::vector<ir::Op*>> readers_;  // by base, of ops that compute
  std::vector<ir::Op*> numbers_;                  // ops that compute and read nothing
  ir::OpTable<std::vector<ir::Op*>> made_again_;  // by the first
};

// An emitter that makes nothing: it looks up each op. Throws NotFound at the first that is not there.
class Lookup : public ir::Emitter {
 public:
  struct NotFound {};

  Lookup(const OpFinder& finder, ir::Section section) : finder_(finder), section_(section) {}

  std::vector<ir::Term> compute(const std::string& opcode, const std::vector<ir::Term>& operands,
                                const std::vector<ir::Type>& results, const Attributes& attrs, bool as_list) override;
  ir::Term view(const std::string&, const ir::Term&, const ir::Term& result, const Attributes&) override;

  const std::vector<ir::Op*>& found() const { return found_; }

 private:
  const OpFinder& finder_;
  ir::Section section_;
  std::vector<ir::Op*> found_;
};

}  // namespace sfsdp::passes
