// SPDX-License-Identifier: BSD-3-Clause
// How one parameter goes through a step: where it is read, how its gradient comes back, what updates it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::passes {

// What makes a whole or a part over a tensor axis is no step of a parameter's way to its readers, nor of its gradient's back.
bool moves_over_tensor_axis(const ir::Op& op);

// One use region of a parameter: the value that its readers read, and the ops that make it out of what is stored.
struct ParamUse {
  ir::Section section = ir::Section::Fwd;
  ir::Value* value = nullptr;
  std::vector<ir::Op*> chain;  // cast, all_gather, narrow; empty: the stored value is read as it is
  std::vector<ir::Op*> readers;
};

// The way of a gradient from its producer to the update, in order: casts and pad before the collective, then what
// follows; `gradient` and `scale` are not in it. Parameters with one and the same gradient may share ops of it.
struct GradientPath {
  ir::Value* raw = nullptr;
  std::vector<ir::Op*> ops;
  ir::Op* gradient = nullptr;
  ir::Op* scale = nullptr;
};

struct ParamFlow {
  ir::Op* param = nullptr;
  std::string name, unit;
  ir::Type whole;                  // the parameter as readers see it
  std::vector<std::string> split;  // the data axes that cut it as it is stored, in dimension 0; none: stored whole
  std::vector<ParamUse> uses;
  std::optional<GradientPath> path;
  ir::Op* update = nullptr;
  std::vector<ir::Op*> moments;  // state ops of the update, in operand order
};

// Reads flows off a graph as data parallelism and the optimizer left it, before units are stored flat. The graph must
// not change meanwhile.
class ParamReader {
 public:
  explicit ParamReader(const ir::Graph& graph);
  ParamFlow read(ir::Op* param) const;
  // Throws UserError unless all of the flow is of the kind that a pass may store elsewhere: read in forward, loss or
  // backward; updated once, if at all, by its own gradient, with moments that are states; carried on by that update.
  // `pass`: who asks.
  void require_regular(const ParamFlow& flow, std::string_view pass) const;
  const ir::Index& index() const { return index_; }

 private:
  ParamUse follow(ir::Op* op) const;
  void add_plain_use(ParamFlow& flow, ir::Op* reader) const;
  bool becomes_gradients_only(const ir::Value* value) const;
  GradientPath path_to(ir::Op* gradient) const;
  const ir::Value* carried_on(const ir::Value* current) const;  // nullptr: it is not

  ir::Index index_;
  std::unordered_map<std::string, ir::Op*> gradients_;
  std::unordered_map<const ir::Value*, const ir::Value*> next_of_;  // of what is carried
};

}  // namespace sfsdp::passes
