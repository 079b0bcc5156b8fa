// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/expert_balance.h"

#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/axis_attr.h"

namespace sfsdp::step {

using ir::DType, ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

namespace {

struct Mixture {
  Value* counts = nullptr;  // of a micro-batch
  Value* bias = nullptr;
};

const std::string& buffer_of(const Op& state) { return state.attr<std::string>("name"); }

Value* bias_beside(const Graph& graph, const std::string& counts, const ExpertBalance& balance) {
  const std::string name = counts.substr(0, counts.size() - balance.counts.size()) + balance.bias;
  for (const auto& op : graph.ops())
    if (op->is("state") && buffer_of(*op) == name) return op->result();
  throw UserError(concat("buffer ", counts, " counts tokens of experts, but there is no buffer ", name,
                         "\n  expected one: the bias by which they are chosen"));
}

// What forward adds to the buffer, which is no longer carried: the step's own sum takes its place.
Value* added_to(const ir::Carry& carry) {
  const Op& add = *carry.next->producer();
  if (add.is("aten.add.Tensor"))
    for (size_t i = 0; i < 2; ++i)
      if (add.operands[i] == carry.current) return add.operands[1 - i];
  throw UserError(concat("buffer ", buffer_of(*carry.current->producer()), " is not what it was plus tokens of experts",
                         "\n  expected forward to add to it once: counts.add_(tokens)"));
}

std::vector<Mixture> take_mixtures(Graph& graph, const ExpertBalance& balance) {
  std::vector<Mixture> found;
  std::erase_if(graph.carries, [&](const ir::Carry& carry) {
    const Op& root = *carry.current->producer();
    if (!root.is("state") || !buffer_of(root).ends_with("." + balance.counts)) return false;
    found.push_back({added_to(carry), bias_beside(graph, buffer_of(root), balance)});
    return true;
  });
  return found;
}

// Ops at the end of the step.
class Tail {
 public:
  explicit Tail(ir::Builder& build) : build_(build) {}
  Value* operator()(const std::string& opcode, std::vector<Value*> operands, Type type, const std::string& hint,
                    ir::Attrs attrs = {}) {
    return build_.at_end(Section::Opt).value(opcode, std::move(operands), std::move(type), hint, std::move(attrs));
  }
  Value* minus_row_mean(Value* value, bool negative, const std::string& hint) {
    const Type& type = value->type();
    Value* mean = (*this)("aten.mean.dim", {value}, Type::tensor(type.dtype, {type.shape()[0], 1}), hint + ".mean",
                          {{"dim", std::vector<int64_t>{1}}, {"keepdim", true}});
    return (*this)("aten.sub.Tensor", negative ? std::vector{mean, value} : std::vector{value, mean}, type, hint);
  }

 private:
  ir::Builder& build_;
};

}  // namespace

void append_expert_balance(Graph& graph, ir::Builder& build, const Strategy& strategy, const ExpertBalance& balance,
                           Value* guard) {
  const std::vector<Mixture> mixtures = take_mixtures(graph, balance);
  if (mixtures.empty()) return;
  std::vector<Value*> counts;
  for (const Mixture& m : mixtures)
    counts.push_back(
        graph.micro_batches == 1
            ? m.counts
            : build.at_end(Section::Loss).value("accumulate", {m.counts}, m.counts->type(), "tokens_per_expert.sum"));
  const std::vector<int64_t> shape = {static_cast<int64_t>(counts.size()), counts[0]->type().shape()[0]};
  Tail tail(build);
  Value* all =
      build.at_end(Section::Opt)
          .list("aten.stack", counts, Type::tensor(counts[0]->type().dtype, shape), "tokens", {{"dim", int64_t{0}}})
          ->result();
  const Type wide = Type::tensor(DType::f64, shape);  // exact below 2^53 tokens
  all = tail("cast", {all}, wide, "tokens.f64");
  if (const AxisList axes = strategy.data_axes(); !axes.empty())
    all = tail("all_reduce", {all}, wide, "tokens.all", {{"axis", ir::axis_attr(axes)}});
  Value* direction = tail("aten.sign", {tail.minus_row_mean(all, true, "tokens.fewer")}, wide, "tokens.sign");
  Value* moved = tail("aten.mul.Scalar", {direction}, wide, "bias.step", {{"other", balance.rate}});
  moved = tail.minus_row_mean(moved, false, "bias.centred");
  Value* updates = tail("aten.eq.Scalar", {guard}, Type::tensor(DType::b1, {}), "updates", {{"other", 0.0}});
  moved = tail("aten.mul.Tensor", {moved, updates}, wide, "bias.change");
  for (size_t i = 0; i < mixtures.size(); ++i) {
    Value* bias = mixtures[i].bias;
    Value* row = tail("aten.select.int", {moved}, Type::tensor(DType::f64, {shape[1]}), "bias.row",
                      {{"dim", int64_t{0}}, {"index", static_cast<int64_t>(i)}});
    row = tail("cast", {row}, bias->type(), "bias.row.narrow");
    graph.carries.push_back({bias, tail("aten.add.Tensor", {bias, row}, bias->type(), bias->name() + ".new")});
  }
}

}  // namespace sfsdp::step
