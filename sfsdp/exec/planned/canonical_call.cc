// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/canonical_call.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/named_kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/canonical/decompose.h"

namespace sfsdp::exec {
namespace {

constexpr size_t kAbsent = ~size_t{0};

using ir::Op, ir::Value;

// As memory has it: on one rank, a part of nothing.
ir::Type plain(ir::Type type) {
  if (type.kind == ir::Type::Kind::Async) type.kind = ir::Type::Kind::Tensor;
  for (ir::Dim& dim : type.dims) dim = {dim.size, {}, false};
  type.placements.clear();
  return type;
}

Op* again(ir::Graph& graph, const Op& like, std::vector<Value*> operands) {
  std::vector<ir::Graph::NewResult> results;
  for (const auto& result : like.results()) results.push_back({"", plain(result->type())});
  Op* made = graph.add(like.opcode, std::move(operands), std::move(results));
  made->operand_lists = like.operand_lists;
  made->attrs = like.attrs;
  made->attrs.erase("kernel");
  for (const char* name : ir::kKernelAttributes) made->attrs.erase(name);
  made->module_path = like.module_path;
  return made;
}

// The op that left operand `left` of `op`, which memory does not hold in LibTorch's form, on operands that `op` still has.
Op* forward_again(ir::Graph& graph, const Op& op, size_t left, const std::vector<Value*>& inputs) {
  const Op& forward = *ir::storage_of(op.operands[left])->producer();
  if (op.is("cross_entropy_backward")) return again(graph, forward, {inputs[1], inputs[2]});
  SFSDP_CHECK(op.is("dropout_backward"), op.opcode, " reads what ", forward.opcode, " left");
  return again(graph, forward, {inputs[0]});  // the mask alone is wanted, which does not depend on what is dropped
}

// %a, %b, or %bias, %a, %b, in `out` or a new tensor.
at::Tensor product(ProductKernel kernel, const Op& op, const std::vector<at::Tensor>& in, const at::Tensor& out) {
  const size_t first = in.size() - 2;
  const at::Tensor& a = in[first];
  const at::Tensor& b = in[first + 1];
  const at::Tensor result = out.defined() ? out : at::empty({a.size(0), b.size(1)}, a.options());
  if (first == 1) result.copy_(in[0].expand_as(result));
  SFSDP_CHECK(a.dim() == 2 && b.dim() == 2, op.opcode, " of ", a.sizes(), " and ", b.sizes());
  multiply(kernel, a, b, result, first == 1 ? 1.0F : 0.0F);
  return result;
}

}  // namespace

CanonicalCall::CanonicalCall(const Op& op, const Groups& groups, Rng rng) {
  ir::Graph graph;
  graph.view = ir::Graph::View::Local;
  std::vector<Value*> inputs;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Value* operand = op.operands[i];
    inputs.push_back(nullptr);
    if (!operand) continue;
    Op* input = graph.add("input", {}, {{concat("in", i), plain(operand->type())}});
    input->attrs["name"] = concat("in", i);
    inputs.back() = input->result();
  }
  std::vector<Value*> operands = inputs;
  if (const auto left = ir::operand_left_by_forward(op.opcode); left && operands[*left]) {
    const Op* forward = forward_again(graph, op, *left, inputs);
    operands[*left] = forward->result(ir::left_for_backward(forward->opcode)->result);
  }
  const Op* made = again(graph, op, operands);
  for (const auto& result : made->results())
    if (result->type().kind == ir::Type::Kind::Tensor) graph.outputs.push_back(result.get());
  const auto* left = ir::left_for_backward(op.opcode);
  std::vector<std::string> wanted;  // by result; "": nobody wants it
  for (size_t i = 0; i < made->results().size(); ++i) {
    const Value* result = made->result(static_cast<int>(i));
    const bool tensor = result->type().kind == ir::Type::Kind::Tensor && !(left && left->result == static_cast<int>(i));
    wanted.push_back(tensor ? result->name() : "");
  }
  passes::PassContext context;
  passes::decompose(graph, context);  // not decomposed(), which refuses inputs with strides
  const auto decomposed = std::make_shared<ir::Graph>(std::move(graph));
  graph_ = decomposed;

  // What is wanted, and what that reads.
  std::set<const Op*> live;
  const auto ops = decomposed->ops();
  std::set<const Value*> read;
  for (const std::string& name : wanted)
    if (!name.empty()) read.insert(decomposed->find_value(name));
  for (size_t i = ops.size(); i-- > 0;) {
    if (std::ranges::none_of(ops[i]->results(), [&](const auto& v) { return read.contains(v.get()); })) continue;
    live.insert(ops[i].get());
    for (const Value* operand : ops[i]->operands)
      if (operand) read.insert(operand);
  }
  const std::string named = op.attr_or<std::string>("product_kernel", "");
  const auto kernel = product_kernel(named);
  SFSDP_CHECK(kernel && has_product(*kernel), op.opcode, " by ", named, ", which this process has not");
  std::vector<size_t> place(decomposed->id_bound(), kAbsent);
  const auto place_of = [&](const Value* value) {
    if (!value) return kAbsent;
    size_t& at = place[value->id()];
    if (at == kAbsent) {
      at = values_.size();
      values_.emplace_back();
    }
    return at;
  };
  for (size_t i = 0; i < op.operands.size(); ++i)
    inputs_.push_back(op.operands[i] ? place_of(decomposed->find_value(concat("in", i))) : kAbsent);
  for (const auto& o : ops) {
    if (!live.contains(o.get()) || o->is("input")) continue;
    Step step{OpCall(*o, *decomposed, groups, rng), {}, {}, {}, {}};
    if (o->is("aten.mm", "aten.addmm")) step.product = *kernel;
    step.is_mm = o->is("aten.mm");
    for (const Value* operand : o->operands) step.operands.push_back(place_of(operand));
    for (const auto& result : o->results()) step.results.push_back(place_of(result.get()));
    steps_.push_back(std::move(step));
  }
  for (const std::string& name : wanted)
    returned_.push_back(name.empty() ? kAbsent : place_of(decomposed->find_value(name)));
  find_last_readers();
  stays_.resize(values_.size(), false);
  results_.resize(returned_.size());
  placed_.resize(returned_.size(), false);
  for (Step& step : steps_) set_operands(step);
  list_late();
}

void CanonicalCall::find_last_readers() {
  std::vector<bool> kept(values_.size(), false);
  for (const size_t at : returned_)
    if (at != kAbsent) kept[at] = true;
  for (size_t i = steps_.size(); i-- > 0;)
    for (const auto* places : {&steps_[i].results, &steps_[i].operands})
      for (const size_t at : *places)
        if (at != kAbsent && !kept[at]) {
          kept[at] = true;
          steps_[i].dead_after.push_back(at);
        }
}

void CanonicalCall::list_late() {
  late_inputs_.clear();
  late_results_.clear();
  late_values_.clear();
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i] != kAbsent && !stays_[inputs_[i]]) late_inputs_.push_back(i);
  for (size_t i = 0; i < returned_.size(); ++i) {
    if (returned_[i] == kAbsent) continue;
    if (placed_[i] && stays_[returned_[i]])
      results_[i] = values_[returned_[i]];
    else
      late_results_.push_back(i);
  }
  for (size_t at = 0; at < values_.size(); ++at)
    if (!stays_[at]) late_values_.push_back(at);
  for (Step& step : steps_) std::erase_if(step.dead_after, [&](size_t at) { return stays_[at]; });
}

void CanonicalCall::set_operands(Step& step) {
  step.in.assign(step.operands.size(), {});
  step.late.clear();
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const size_t at = step.operands[i];
    if (at == kAbsent) continue;
    if (stays_[at])
      step.in[i] = values_[at];
    else
      step.late.push_back(i);
  }
}

void CanonicalCall::bind(std::span<const at::Tensor> operands) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i] == kAbsent || !operands[i].defined()) continue;
    values_[inputs_[i]] = operands[i];
    stays_[inputs_[i]] = true;
  }
  std::erase_if(steps_, [&](Step& step) {
    set_operands(step);
    if (!step.late.empty() || ir::aliased_operand(step.call.op()) < 0) return false;
    std::vector<at::Tensor> views = step.call.run(step.in, {}, {});
    for (size_t i = 0; i < views.size(); ++i) {
      values_[step.results[i]] = std::move(views[i]);
      stays_[step.results[i]] = true;
    }
    return true;  // done, once and for all
  });
  list_late();
}

bool CanonicalCall::write_to(size_t index, const at::Tensor& place) {
  if (returned_[index] == kAbsent || !place.is_contiguous()) return false;
  for (Step& step : steps_) {
    const Op& op = step.call.op();
    if (std::ranges::find(step.results, returned_[index]) == step.results.end()) continue;
    // The op whose memory the result is, all of it.
    const Value* base = ir::storage_of(
        op.result(static_cast<int>(std::ranges::find(step.results, returned_[index]) - step.results.begin())));
    const auto maker = std::ranges::find_if(steps_, [&](const Step& s) { return &s.call.op() == base->producer(); });
    if (maker == steps_.end() || !maker->call.can_write() || maker->results.size() != 1) return false;
    const ir::Type& type = base->type();
    if (!type.strides.empty() || type.numel() != place.numel()) return false;
    if (capture::scalar_type_of(type.dtype) != place.scalar_type()) return false;
    maker->out = place.view(type.shape());
    values_[maker->results[0]] = maker->out;
    stays_[maker->results[0]] = true;
    placed_[index] = true;
    list_late();
    return true;
  }
  return false;
}

std::span<at::Tensor> CanonicalCall::run(std::span<const at::Tensor> operands, const StepScalars& scalars,
                                         DataPosition position) {
  for (const size_t i : late_inputs_) values_[inputs_[i]] = operands[i];
  for (Step& step : steps_) {
    for (const size_t i : step.late) step.in[i] = values_[step.operands[i]];
    if (step.product != ProductKernel::Aten) {
      at::Tensor result = product(step.product, step.call.op(), step.in, step.out);
      if (!step.out.defined()) values_[step.results[0]] = std::move(result);
    } else if (step.out.defined() && step.is_mm) {
      at::mm_out(step.out, step.in[0], step.in[1]);
    } else if (step.out.defined()) {
      step.call.run_into(step.in, {&step.out, 1});
    } else {
      std::vector<at::Tensor> out = step.call.run(step.in, scalars, position);
      for (size_t i = 0; i < out.size(); ++i) values_[step.results[i]] = std::move(out[i]);
    }
    for (const size_t i : step.late) step.in[i] = at::Tensor();
    for (const size_t at : step.dead_after) values_[at] = at::Tensor();
  }
  for (const size_t i : late_results_) results_[i] = values_[returned_[i]];
  for (const size_t at : late_values_) values_[at] = at::Tensor();
  return results_;
}

}  // namespace sfsdp::exec
