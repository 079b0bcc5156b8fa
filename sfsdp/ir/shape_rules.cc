// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/shape_rules.h"

#include <algorithm>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

// Splits are what the graph says of shards; where it says nothing, as in a flat bucket, there is nothing to check.
void check_gathered_split(RuleContext& context, const Dim& shard, const Dim& whole, std::string_view shard_name) {
  const auto axes = axes_of(context.op);
  if (shard.split.empty() || !axes) return;
  std::vector<std::string> expected = whole.split;
  expected.insert(expected.end(), axes->begin(), axes->end());
  if (shard.split == expected) return;
  const auto names_axis = [&](const std::string& axis) { return std::ranges::find(*axes, axis) != axes->end(); };
  if (std::ranges::none_of(shard.split, names_axis) && shard.split == whole.split) return;
  Type got;
  got.dims = {shard};
  context.report(concat("has a split that does not fit its axes: ", shard_name, " is ", got),
                 "expected the axes of the op as the innermost ones of the shard, and not in the whole");
}

void check_reduction(RuleContext& context) {
  const auto found = context.op.attrs.find("op");
  if (found == context.op.attrs.end()) return;  // sum
  const auto* reduction = std::get_if<std::string>(&found->second);
  if (!reduction || !parse_reduce_op(*reduction))
    context.report(concat("reduces with op=", found->second), "expected sum, max or min");
}

// rows=: of a parameter that is cut in dimension 0, all ranks together.
void check_rows(RuleContext& context) {
  if (!context.op.has_attr("rows")) return;
  const auto rows = context.integer("rows");
  const std::vector<Dim>& dims = context.result().dims;
  const auto ranks = dims.empty() ? std::nullopt : axis_size(context.graph, dims[0].split);
  if (rows && ranks && (*rows < 0 || *rows > saturating_product(dims[0].size, *ranks)))
    context.report(concat("has rows=", *rows), concat("expected at most those of all ranks of ", context.result()));
  if (dims.empty()) context.report("has rows=", "expected a tensor with dimensions");
}

}  // namespace

void RuleContext::report(const std::string& message, const std::string& detail) {
  const std::string name = op.results().empty() ? op.opcode : concat(op.opcode, " %", op.result()->name());
  diagnostics_.push_back({.where = {}, .message = concat(name, ' ', message), .detail = detail});
}

void RuleContext::stop(const std::string& message, const std::string& detail) {
  report(message, detail);
  throw Stop();
}

void RuleContext::expect_dtype(DType expected, DType got, std::string_view whose) {
  if (expected == got) return;
  report(concat("has the wrong dtype: ", whose),
         concat("expected ", to_string(expected), ", got ", to_string(got), "; insert a cast"));
}

void RuleContext::expect_shape(const std::vector<int64_t>& expected, const Type& got, std::string_view whose) {
  if (expected == got.shape()) return;
  report(concat("has the wrong shape: ", whose), concat("expected ", shape_text(expected), ", got ", got));
}

std::optional<int64_t> RuleContext::integer(const std::string& key) {
  const auto found = op.attrs.find(key);
  const int64_t* number = found == op.attrs.end() ? nullptr : std::get_if<int64_t>(&found->second);
  if (number) return *number;
  report(concat("needs ", key, '='),
         concat("expected an integer, got ", found == op.attrs.end() ? Attr() : found->second));
  return std::nullopt;
}

std::optional<std::string> RuleContext::text(const std::string& key) {
  const auto found = op.attrs.find(key);
  const std::string* value = found == op.attrs.end() ? nullptr : std::get_if<std::string>(&found->second);
  if (value) return *value;
  report(concat("needs ", key, '='), concat("expected a name, got ", found == op.attrs.end() ? Attr() : found->second));
  return std::nullopt;
}

void RuleContext::need_number(const std::string& key) {
  const auto found = op.attrs.find(key);
  const Attr got = found == op.attrs.end() ? Attr() : found->second;
  if (std::holds_alternative<int64_t>(got) || std::holds_alternative<double>(got)) return;
  report(concat("needs ", key, '='), concat("expected a number, got ", got));
}

std::vector<int64_t> RuleContext::integers(const std::string& key, size_t count) {
  const auto found = op.attrs.find(key);
  const auto* list = found == op.attrs.end() ? nullptr : std::get_if<std::vector<int64_t>>(&found->second);
  const auto counts = [](int64_t n) { return n >= 0 && n <= kMaxBytes; };
  if (list && list->size() == count && std::ranges::all_of(*list, counts)) return *list;
  report(concat("needs ", key, '='), concat("expected ", count, " integers from 0 to ", kMaxBytes, ", got ",
                                            found == op.attrs.end() ? Attr() : found->second));
  return {};
}

std::optional<size_t> RuleContext::dim() {
  const auto dim = integer("dim");
  if (!dim) return std::nullopt;
  const auto rank = static_cast<int64_t>(operand().dims.size());
  if (*dim >= 0 && *dim < rank && operand().dims.size() == result().dims.size()) return static_cast<size_t>(*dim);
  report(concat("has dim=", *dim),
         concat("expected a dimension of both ", operand(), " and ", result(), ", counted from 0"));
  return std::nullopt;
}

std::optional<int64_t> RuleContext::ranks() {
  const auto axes = axes_of(op);
  if (!axes || axes->empty()) {
    report("needs axis=", "expected a mesh axis or a list of them, outer first");
    return std::nullopt;
  }
  for (const std::string& axis : *axes) {
    const bool known = std::ranges::find(graph.mesh, axis, &MeshAxis::name) != graph.mesh.end();
    if (known && std::ranges::count(*axes, axis) == 1) continue;
    std::vector<std::string> names;
    for (const MeshAxis& candidate : graph.mesh) names.push_back(candidate.name);
    const std::string near = nearest(axis, names);
    report(concat("names mesh axis ", axis, known ? " twice" : ", which the mesh lacks"),
           near.empty() ? "expected an axis of the line `graph mesh [...]`" : concat("did you mean ", near, '?'));
    return std::nullopt;
  }
  const auto size = axis_size(graph, *axes);
  return size && *size > 0 ? size : std::nullopt;  // an axis of size 0 is the verifier's to report, once
}

void no_rule(RuleContext&) {}

void rule_named(RuleContext& context) { context.text("name"); }

void rule_param(RuleContext& context) {
  context.text("name");
  for (const char* key : {"trainable", "keep"}) {
    const auto flag = context.op.attrs.find(key);
    if (flag != context.op.attrs.end() && !std::holds_alternative<bool>(flag->second))
      context.report(concat("has ", key, '=', flag->second), "expected true or false");
  }
  if (context.op.has_attr("unit")) context.text("unit");
  check_rows(context);
  const auto members = context.op.attrs.find("members");
  if (members == context.op.attrs.end()) return;
  const auto* names = std::get_if<std::vector<std::string>>(&members->second);
  if (!names) return context.report(concat("has members=", members->second), "expected a list of names");
  context.integers("offsets", names->size());
  context.integers("numels", names->size());
  context.integer("size");
}

void rule_constant(RuleContext& context) { context.integer("index"); }

void rule_cast(RuleContext& context) {
  context.expect_shape(context.operand().shape(), context.result(), "the result");
}

void rule_pad(RuleContext& context) {
  const auto dim = context.dim();
  const auto size = context.integer("size");
  if (!dim || !size) return;
  std::vector<int64_t> shape = context.operand().shape();
  if (*size < shape[*dim])
    context.report(concat("has size=", *size), concat("expected at least the operand's ", shape[*dim]));
  shape[*dim] = *size;
  context.expect_shape(shape, context.result(), "the result");
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
}

void rule_narrow(RuleContext& context) {
  const auto dim = context.dim();
  const auto start = context.integer("start"), length = context.integer("length");
  if (!dim || !start || !length) return;
  std::vector<int64_t> shape = context.operand().shape();
  if (*start < 0 || *length < 0 || *start > shape[*dim] - *length)
    context.report(concat("reads start=", *start, " length=", *length),
                   concat("expected a range inside dimension ", *dim, " of ", context.operand()));
  shape[*dim] = *length;
  context.expect_shape(shape, context.result(), "the result");
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
}

void rule_view(RuleContext& context) {
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  const int64_t whole = context.operand().numel(), part = context.result().numel();
  if (!context.op.has_attr("offset")) {
    if (part != whole)
      context.report(concat("has ", part, " elements of ", whole),
                     concat("expected as many in ", context.result(), " as in ", context.operand(),
                            ", or offset= for a part of them"));
    return;
  }
  const auto offset = context.integer("offset");
  if (offset && (*offset < 0 || *offset > whole - part))
    context.report(concat("reads ", part, " elements from offset=", *offset),
                   concat("expected a range inside the ", whole, " elements of ", context.operand()));
}

// ranks=, 1 where there is none, as a divisor of what `type` has; 0: it is none, which is reported.
int64_t shares(RuleContext& context, const Type& type, const std::string& what) {
  if (!context.op.has_attr("ranks")) return 1;
  const auto ranks = context.integer("ranks");
  if (ranks && *ranks > 0 && type.numel() % *ranks == 0) return *ranks;
  if (ranks)
    context.report(concat("has ranks=", *ranks),
                   concat("expected a divisor of the ", type.numel(), " elements of ", what));
  return 0;
}

void rule_pack(RuleContext& context) {
  const size_t count = context.op.operands.size();
  const std::vector<int64_t> offsets = context.integers("offsets", count);
  if (offsets.empty()) return;
  const Type& result = context.result();
  const int64_t ranks = shares(context, result, "the result");
  if (ranks == 0) return;
  int64_t free_from = 0;
  for (size_t i = 0; i < count; ++i) {
    const Type& operand = context.operand(i);
    context.expect_dtype(operand.dtype, result.dtype, "the result");
    if (offsets[i] < free_from)
      context.report(concat("puts operand ", i, " at offset ", offsets[i]),
                     concat("expected at least ", free_from, ", the end of the one before"));
    if (shares(context, operand, concat("operand ", i)) == 0) return;
    free_from = offsets[i] + operand.numel() / ranks;
  }
  if (result.dims.size() != 1 || result.numel() / ranks < free_from)
    context.report("has the wrong shape: the result",
                   concat("expected one dimension of at least ", saturating_product(free_from, ranks)));
}

void rule_unpack(RuleContext& context) {
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  const auto offset = context.integer("offset");
  const int64_t ranks = context.integer("ranks") ? shares(context, context.operand(), "the operand") : 0;
  if (!offset || ranks == 0 || shares(context, context.result(), "the result") == 0) return;
  const int64_t whole = context.operand().numel() / ranks, part = context.result().numel() / ranks;
  if (*offset < 0 || *offset > whole - part)
    context.report(concat("reads ", part, " elements from offset=", *offset, " of each share"),
                   concat("expected a range inside the ", whole, " elements of a share of ", context.operand()));
}

void rule_all_gather(RuleContext& context) {
  if (context.op.operands.size() == 2) {
    if (donated_operands(context.op) != std::vector<int64_t>{1})
      context.report("has a second operand", "expected donates=[1]: the gather is written into its buffer");
    context.expect_shape(context.result().shape(), context.operand(1), "the buffer");
  }
  const auto dim = context.dim();
  const auto ranks = context.ranks();
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  if (!dim || !ranks) return;
  std::vector<int64_t> shape = context.operand().shape();
  shape[*dim] = saturating_product(shape[*dim], *ranks);
  context.expect_shape(shape, context.result(), "the result");
  check_gathered_split(context, context.operand().dims[*dim], context.result().dims[*dim], "the operand's dimension");
}

void rule_reduce_scatter(RuleContext& context) {
  const auto dim = context.dim();
  const auto ranks = context.ranks();
  check_reduction(context);
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  if (!dim || !ranks) return;
  std::vector<int64_t> shape = context.operand().shape();
  if (shape[*dim] % *ranks != 0) {
    context.report(concat("cannot cut dimension ", *dim, " of ", context.operand(), " into ", *ranks),
                   "expected a size that the ranks divide; pad it first");
    return;
  }
  shape[*dim] /= *ranks;
  context.expect_shape(shape, context.result(), "the result");
  check_gathered_split(context, context.result().dims[*dim], context.operand().dims[*dim], "the result's dimension");
}

void rule_all_reduce(RuleContext& context) {
  context.ranks();
  check_reduction(context);
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  context.expect_shape(context.operand().shape(), context.result(), "the result");
}

void rule_broadcast(RuleContext& context) {
  const auto ranks = context.ranks();
  const auto root = context.integer("root");
  if (ranks && root && (*root < 0 || *root >= *ranks))
    context.report(concat("has root=", *root), concat("expected an axis rank below ", *ranks));
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  context.expect_shape(context.operand().shape(), context.result(), "the result");
}

void rule_wait(RuleContext& context) {
  if (context.operand().kind != Type::Kind::Async) return;  // the verifier's own check says so
  Type expected = context.operand();
  expected.kind = Type::Kind::Tensor;
  if (expected == context.result()) return;
  context.report("changes the type of what it waits for", concat("expected ", expected, ", got ", context.result()));
}

void rule_same_as_first(RuleContext& context) {
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  context.expect_shape(context.operand().shape(), context.result(), "the result");
}

void rule_add_into(RuleContext& context) {
  rule_same_as_first(context);
  context.expect_shape(context.operand(0).shape(), context.operand(1), "the second operand");
}

void rule_scale(RuleContext& context) {
  rule_same_as_first(context);
  if (context.operand(1).numel() != 1)
    context.expect_shape(context.operand(0).shape(), context.operand(1), "the second operand");
}

void rule_scalar(RuleContext& context) {
  const auto value = context.op.attrs.find("value");
  if (value == context.op.attrs.end() || !std::holds_alternative<bool>(value->second)) context.need_number("value");
}

void rule_gradient(RuleContext& context) {
  context.text("param");
  rule_same_as_first(context);
}

void rule_mul_scalar(RuleContext& context) {
  context.need_number("value");
  rule_same_as_first(context);
}

void rule_sum_squares(RuleContext& context) {
  const size_t count = context.op.operands.size();
  auto sums = static_cast<int64_t>(count);
  if (context.op.has_attr("segments")) {
    const std::vector<int64_t> segments = context.integers("segments", count);
    constexpr int64_t kMost = int64_t{1} << 31;  // parameters in a bucket, so that their sum fits
    if (std::ranges::any_of(segments, [](int64_t n) { return n > kMost; }))
      return context.report(concat("has segments=", Attr(segments)), concat("expected at most ", kMost, " each"));
    int64_t all = 0;
    sums = 0;
    for (const int64_t n : segments) {
      all += n;
      sums += std::max<int64_t>(n, 1);
    }
    context.integers("offsets", static_cast<size_t>(all));
    context.integers("numels", static_cast<size_t>(all));
  }
  context.expect_dtype(DType::f64, context.result().dtype, "the result");
  context.expect_shape({sums}, context.result(), "the result");
  const auto replicated = context.op.attrs.find("replicated");
  if (replicated == context.op.attrs.end()) return;
  const auto* flags = std::get_if<std::vector<bool>>(&replicated->second);
  if (!flags || flags->size() != count)
    context.report(concat("has replicated=", replicated->second), concat("expected ", count, " times true or false"));
}

void rule_grad_norm(RuleContext& context) { rule_to_scalar(context); }

void rule_clip_coefficient(RuleContext& context) {
  rule_to_scalar(context);
  context.need_number("max_norm");
}

void rule_to_scalar(RuleContext& context) { context.expect_shape({}, context.result(), "the result"); }

void rule_adamw(RuleContext& context) {
  constexpr std::string_view kResults[] = {"the new parameter", "the new first moment", "the new second moment"};
  for (int i = 0; i < 3; ++i) {
    const Type& expected = context.operand(static_cast<size_t>(i));
    context.expect_dtype(expected.dtype, context.result(i).dtype, kResults[i]);
    context.expect_shape(expected.shape(), context.result(i), kResults[i]);
  }
  context.expect_shape(context.operand(0).shape(), context.operand(3), "the gradient");
  for (const char* key : {"beta1", "beta2", "eps", "weight_decay"}) context.need_number(key);
}

void rule_sgd(RuleContext& context) {
  rule_same_as_first(context);
  const bool has_momentum = context.op.operands[1] != nullptr;
  const size_t results = has_momentum ? 2 : 1;
  if (context.op.results().size() != results) {
    context.report(concat("has ", context.op.results().size(), " results"),
                   concat("expected ", results, ": the new parameter, and the new momentum if there is one"));
    return;
  }
  if (has_momentum) {
    context.expect_shape(context.operand(1).shape(), context.result(1), "the new momentum");
    context.need_number("momentum");
  }
  if (context.op.operands[2]) context.expect_shape(context.operand(0).shape(), context.operand(2), "the gradient");
  context.need_number("weight_decay");
}

}  // namespace sfsdp::ir
