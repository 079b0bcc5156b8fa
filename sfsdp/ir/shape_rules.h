// SPDX-License-Identifier: BSD-3-Clause
// The rules named in opset.def: what types and attributes an op must have. Called by the verifier, arity already
// checked, no operand absent but where the row says kOptional.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class RuleContext {
 public:
  RuleContext(const Graph& g, const Op& o, std::vector<Diagnostic>& diagnostics)
      : graph(g), op(o), diagnostics_(diagnostics) {}

  const Graph& graph;
  const Op& op;
  const Type& operand(size_t index = 0) const { return op.operands.at(index)->type(); }
  const Type& result(int index = 0) const { return op.result(index)->type(); }

  // `message` follows the op's name: "aten.mm %y " + message.
  void report(const std::string& message, const std::string& detail);
  // Reports and leaves the rule, which could not go on.
  struct Stop {};
  [[noreturn]] void stop(const std::string& message, const std::string& detail);
  void expect_dtype(DType expected, DType got, std::string_view whose);
  void expect_shape(const std::vector<int64_t>& expected, const Type& got, std::string_view whose);
  // An attribute that must be there; reports and returns nullopt otherwise.
  std::optional<int64_t> integer(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  void need_number(const std::string& key);  // integer or float
  // A list of counts or offsets, none below 0 or above kMaxBytes, that must be there; reports and returns an empty one otherwise.
  std::vector<int64_t> integers(const std::string& key, size_t count);
  // Attribute `dim`, in range of operand 0.
  std::optional<size_t> dim();
  // Product of the sizes of the axes in attribute `axis`.
  std::optional<int64_t> ranks();

 private:
  std::vector<Diagnostic>& diagnostics_;
};

void no_rule(RuleContext& context);
void rule_named(RuleContext& context);
void rule_param(RuleContext& context);
void rule_constant(RuleContext& context);
void rule_cast(RuleContext& context);
void rule_pad(RuleContext& context);
void rule_narrow(RuleContext& context);
void rule_view(RuleContext& context);
void rule_pack(RuleContext& context);
void rule_unpack(RuleContext& context);
void rule_all_gather(RuleContext& context);
void rule_reduce_scatter(RuleContext& context);
void rule_all_reduce(RuleContext& context);
void rule_broadcast(RuleContext& context);
void rule_wait(RuleContext& context);
void rule_same_as_first(RuleContext& context);
void rule_scalar(RuleContext& context);
void rule_gradient(RuleContext& context);
void rule_add_into(RuleContext& context);
void rule_scale(RuleContext& context);
void rule_mul_scalar(RuleContext& context);
void rule_sum_squares(RuleContext& context);
void rule_grad_norm(RuleContext& context);
void rule_clip_coefficient(RuleContext& context);
void rule_to_scalar(RuleContext& context);
void rule_adamw(RuleContext& context);
void rule_sgd(RuleContext& context);

}  // namespace sfsdp::ir
