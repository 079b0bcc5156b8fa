// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/meta_rules.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::capture {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The arguments of a boxed call by name or kind.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const Stack& stack)
      : schema_(schema), values_(torch::jit::last(stack, schema.arguments().size())) {}

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> found;
    for (const c10::IValue& v : values_)
      if (v.isTensor() && v.toTensor().defined()) found.push_back(v.toTensor());
    return found;
  }
  const Tensor& first() const { return values_[0].toTensor(); }
  std::optional<c10::IValue> find(const std::string& name) const {
    auto index = schema_.argumentIndexWithName(name);
    if (!index || values_[static_cast<size_t>(*index)].isNone()) return std::nullopt;
    return values_[static_cast<size_t>(*index)];
  }
  bool flag(const std::string& name) const {
    auto value = find(name);
    return value && value->toBool();
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> values_;
};

void give(const c10::OperatorHandle& op, Stack* stack, std::vector<Tensor> results) {
  SFSDP_CHECK(results.size() == op.schema().returns().size(), op.operator_name());
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (Tensor& t : results) stack->emplace_back(std::move(t));
}

c10::ScalarType promoted(const std::vector<Tensor>& inputs) {
  at::native::ResultTypeState state;
  for (const Tensor& t : inputs) state = at::native::update_result_type_state(t, state);
  return at::native::result_type(state);
}

void pointwise(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  auto inputs = Arguments(op.schema(), *stack).tensors();
  give(op, stack, {broadcast_all(inputs, promoted(inputs))});
}

void pointwise_first(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  auto inputs = Arguments(op.schema(), *stack).tensors();
  give(op, stack, {broadcast_all(inputs, inputs.front().scalar_type())});
}

void predicate(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  give(op, stack, {broadcast_all(Arguments(op.schema(), *stack).tensors(), at::kBool)});
}

void in_place(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  give(op, stack, {Arguments(op.schema(), *stack).first()});
}

// `self`: of a loss's backward the first tensor is the gradient, which may be one number.
template <Tensor (*make)(const Tensor&)>
void like_self(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const Tensor x = Arguments(op.schema(), *stack).find("self")->toTensor();
  std::vector<Tensor> results;
  for (size_t i = 0; i < op.schema().returns().size(); ++i) results.push_back(make(x));
  give(op, stack, std::move(results));
}
Tensor preserved(const Tensor& x) { return at::empty_like(x); }
Tensor contiguous(const Tensor& x) { return at::empty(x.sizes(), x.options()); }
Tensor image(const Tensor& x) { return at::empty(x.sizes(), x.options().memory_format(x.suggest_memory_format())); }

void per_sample(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const Arguments arguments(op.schema(), *stack);
  auto inputs = arguments.tensors();
  inputs.resize(2);  // weights do not shape the result
  Tensor each = broadcast_all(inputs, promoted(inputs));
  if (arguments.find("reduction")->toInt() != at::Reduction::None) each = at::empty({}, each.options());
  give(op, stack, {each});
}

std::vector<Tensor> reduced(const c10::OperatorHandle& op, const Stack& stack, c10::ScalarType dtype) {
  const Arguments arguments(op.schema(), stack);
  const Tensor x = arguments.first();
  std::vector<int64_t> dims;
  if (auto dim = arguments.find("dim")) dims = dim->isInt() ? std::vector{dim->toInt()} : dim->toIntVector();
  std::vector<bool> gone(static_cast<size_t>(x.dim()), dims.empty());
  for (int64_t d : dims)
    if (x.dim() > 0) gone[static_cast<size_t>(at::maybe_wrap_dim(d, x.dim()))] = true;
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d]) sizes.push_back(x.sizes()[d]);
    if (gone[d] && arguments.flag("keepdim")) sizes.push_back(1);
  }
  if (auto wanted = arguments.find("dtype")) dtype = wanted->toScalarType();
  std::vector<Tensor> results = {at::empty(sizes, x.options().dtype(dtype))};
  if (op.schema().returns().size() == 2) {
    const bool indices = op.schema().returns()[1].name() == "indices";
    results.push_back(at::empty(sizes, x.options().dtype(indices ? at::kLong : dtype)));
  }
  return results;
}

void reduce(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  give(op, stack, reduced(op, *stack, Arguments(op.schema(), *stack).first().scalar_type()));
}

void count(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  give(op, stack, reduced(op, *stack, at::kLong));
}

void sum(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto dtype = Arguments(op.schema(), *stack).first().scalar_type();
  const bool counts = c10::isIntegralType(dtype, /*includeBool=*/true);
  give(op, stack, reduced(op, *stack, counts ? at::kLong : dtype));
}

// The ops of each rule, with blanks between.
struct RuleOps {
  MetaRule rule;
  std::string_view names;
};
constexpr RuleOps kRules[] = {
    {MetaRule::Preserve, "relu flip nll_loss2d_backward binary_cross_entropy_backward"},
    {MetaRule::PointwiseFirst,
     "abs hardtanh hardtanh_backward hardswish hardswish_backward mish_backward logit nan_to_num _prelu_kernel"},
    {MetaRule::Pointwise, "where.self floor_divide"},
    {MetaRule::InPlace, "hardtanh_ hardswish_ logical_and_ logical_or_ logical_xor_ logical_not_"},
    {MetaRule::Contiguous,
     "rrelu_with_noise logcumsumexp glu_backward log_sigmoid_forward multi_margin_loss_backward "
     "multilabel_margin_loss_backward _adaptive_avg_pool3d_backward mse_loss_backward smooth_l1_loss_backward "
     "huber_loss_backward"},
    {MetaRule::Predicate, "logical_and logical_or logical_xor logical_not isnan"},
    {MetaRule::Count, "count_nonzero.dim_IntList"},
    {MetaRule::Image,
     "_adaptive_avg_pool2d_backward reflection_pad2d_backward replication_pad2d_backward "
     "replication_pad3d_backward max_pool3d_with_indices_backward channel_shuffle"},
    {MetaRule::PerSample, "huber_loss binary_cross_entropy"},
    {MetaRule::Reduce,
     "max min median dot logsumexp std.correction var.correction std_mean.correction var_mean.correction "
     "median.dim kthvalue mode"},
    {MetaRule::Sum, "trace prod nansum"},
};

// What stands in for ops without a shape function, by the begin of their name.
struct StandIn {
  std::string_view begin;
  const char* text;
};
constexpr StandIn kStandIns[] = {
    {"aten::nonzero", "nll_loss of log_prob() in place of torch::nn::AdaptiveLogSoftmaxWithLoss's forward, or "},
    {"aten::_ctc_loss",
     "at::ctc_loss with lengths as lists of numbers and Reduction::None in place of torch::nn::CTCLoss, or "},
    {"aten::_fft_", "two matrix products with the cosines and sines of the transform, or "},
    {"aten::fractional_max_pool3d", "MaxPool3d in place of torch::nn::FractionalMaxPool3d, or "},
};

}  // namespace

std::string instead_of(std::string_view name) {
  std::string text;
  for (const StandIn& row : kStandIns)
    if (name.starts_with(row.begin)) text = row.text;
  return text +
         "an op whose result shapes follow from its input shapes: keep the full shape and mask with torch::where, take"
         " a fixed number with topk, compute it before the step and pass it in the batch, or add a shape function to"
         " sfsdp/capture/meta_kernels.cc";
}

Tensor broadcast_all(const std::vector<Tensor>& inputs, c10::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).check_all_same_device(false).allow_cpu_scalars(true);
  config.declare_static_dtype_and_device(dtype, at::kMeta);
  config.add_owned_output(Tensor());
  for (const Tensor& t : inputs) config.add_owned_const_input(t);
  return config.build().output();
}

std::span<const MetaRuleRow> meta_rules() {
  static std::deque<std::string> names;  // whose texts the rows keep
  static const auto all = [] {
    std::vector<MetaRuleRow> rows;
    for (const auto& [rule, ops] : kRules)
      for (const std::string& name : split(ops, ' ')) rows.push_back({names.emplace_back(name).c_str(), rule});
    return rows;
  }();
  return all;
}

void register_rule(torch::Library& meta, const MetaRuleRow& row) {
  const auto add = [&](torch::CppFunction function) { meta.impl(row.name, std::move(function)); };
  using torch::CppFunction;
  switch (row.rule) {
    case MetaRule::Pointwise: return add(CppFunction::makeFromBoxedFunction<&pointwise>());
    case MetaRule::PointwiseFirst: return add(CppFunction::makeFromBoxedFunction<&pointwise_first>());
    case MetaRule::Predicate: return add(CppFunction::makeFromBoxedFunction<&predicate>());
    case MetaRule::InPlace: return add(CppFunction::makeFromBoxedFunction<&in_place>());
    case MetaRule::Preserve: return add(CppFunction::makeFromBoxedFunction<&like_self<preserved>>());
    case MetaRule::Contiguous: return add(CppFunction::makeFromBoxedFunction<&like_self<contiguous>>());
    case MetaRule::Image: return add(CppFunction::makeFromBoxedFunction<&like_self<image>>());
    case MetaRule::PerSample: return add(CppFunction::makeFromBoxedFunction<&per_sample>());
    case MetaRule::Count: return add(CppFunction::makeFromBoxedFunction<&count>());
    case MetaRule::Sum: return add(CppFunction::makeFromBoxedFunction<&sum>());
    case MetaRule::Reduce: return add(CppFunction::makeFromBoxedFunction<&reduce>());
  }
}

}  // namespace sfsdp::capture
