// SPDX-License-Identifier: BSD-3-Clause
// What an optimizer builds the updates of a step with: its carried tensors, and one op per parameter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/optim/param_groups.h"

namespace sfsdp::step {

// A tensor that the optimizer carries, zero at first.
struct OptimizerState {
  std::string name;   // "layers.0.wq.weight.exp_avg"; "optimizer.step" counts updates
  std::string param;  // empty for the counter
};

// Serves one graph. Carries and states grow with every call; the ops are there once `build` is applied.
class UpdateBuilder {
 public:
  //   coefficient: every gradient is multiplied by it; nullptr: by nothing
  //   guard:       where it is not 0 nothing is updated
  //   moments:     their dtype; unset: the stored parameter's
  UpdateBuilder(ir::Graph& graph, ir::Builder& build, ir::Value* coefficient, ir::Value* guard,
                std::optional<ir::DType> moments = {});

  // How many updates there were with this one, f32[]; one counter for all parameters. Ask for it before the first update.
  ir::Value* step();
  // A tensor like the stored parameter, of the moments' dtype, "<param>.<kind>".
  ir::Value* moment(const ir::Op& param, const std::string& kind);
  ir::Value* guard() const { return guard_; }

  // The op that updates the parameter and its moments, each in its own buffer, and carries them on. Operands: parameter,
  // moments, of which some may be nullptr, clipped gradient, others.
  void update(const std::string& opcode, const ir::Op& param, const std::vector<ir::Value*>& moments,
              ir::Value* gradient, const std::vector<ir::Value*>& others, ir::Attrs attrs, const ParamNumbers& numbers);

  std::vector<OptimizerState> take_states() { return std::move(states_); }

 private:
  ir::Value* state(const std::string& name, ir::Type type);

  ir::Graph& graph_;
  ir::Builder& build_;
  ir::Op* first_op_;
  ir::Value* coefficient_;
  ir::Value* guard_;
  std::optional<ir::DType> moments_;
  ir::Value* step_ = nullptr;
  std::vector<OptimizerState> states_;
};

}  // namespace sfsdp::step
