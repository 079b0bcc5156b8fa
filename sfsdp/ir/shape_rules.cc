// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/shape_rules.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

// ---- what rules are made of -----------------------------------------------------------------------------------------

void RuleContext::report(const std::string& message, const std::string& detail) {
  diagnostics_.push_back({.where = {}, .message = concat(name_of(op), ' ', message), .detail = detail});
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

void RuleContext::expect_shape(const Shape& expected, const Type& got, std::string_view whose) {
  if (expected == got.shape()) return;
  std::string text;
  for (const int64_t size : expected) text += concat(text.empty() ? "" : ", ", size);
  report(concat("has the wrong shape: ", whose), concat("expected [", text, "], got ", got));
}

void RuleContext::expect(int index, std::optional<DType> dtype, const Shape& shape) {
  const Type& type = result(index);
  const std::string whose = op.results().size() == 1 ? "the result" : concat("result ", index);
  if (type.kind == Type::Kind::Token) {
    if (!find("output_mask")) report(concat("has no tensor as ", whose), "expected a tensor, got token");
    return;
  }
  if (dtype) expect_dtype(*dtype, type.dtype, whose);
  expect_shape(shape, type, whose);
}

void RuleContext::need_operands(std::initializer_list<size_t> indexes) {
  for (const size_t i : indexes)
    if (!has_operand(i)) stop(concat("lacks operand ", i), "expected a value, got none");
}

const Type& RuleContext::tensor(size_t index, size_t rank) {
  const Type& type = operand(index);
  if (type.dims.size() != rank)
    stop(concat("has an operand ", index, " of ", type.dims.size(), " dimensions"),
         concat("expected ", rank, ", got ", type));
  return type;
}

const Attr* RuleContext::find(const std::string& key) const {
  const auto found = op.attrs.find(key);
  const bool given = found != op.attrs.end() && !std::holds_alternative<std::monostate>(found->second);
  return given ? &found->second : nullptr;
}

void RuleContext::stop_at(const std::string& key, std::string_view expected) {
  const Attr* got = find(key);
  stop(concat("needs ", key, '='), concat("expected ", expected, ", got ", got ? *got : Attr()));
}

int64_t RuleContext::integer(const std::string& key) {
  const auto* number = op.find_attr<int64_t>(key);
  if (!number) stop_at(key, "an integer");
  return *number;
}

int64_t RuleContext::integer(const std::string& key, int64_t fallback) { return find(key) ? integer(key) : fallback; }

bool RuleContext::flag(const std::string& key) {
  const Attr* found = find(key);
  if (found && !std::holds_alternative<bool>(*found)) stop_at(key, "true or false");
  return found && std::get<bool>(*found);
}

std::optional<Shape> RuleContext::integers_if(const std::string& key) {
  if (!find(key)) return std::nullopt;
  if (const auto* number = op.find_attr<int64_t>(key)) return Shape{*number};
  return integers(key);
}

Shape RuleContext::integers(const std::string& key) {
  const auto* list = op.find_attr<Shape>(key);
  if (!list) stop_at(key, "a list of integers");
  return *list;
}

Shape RuleContext::counts(const std::string& key, size_t count) {
  const auto* list = op.find_attr<Shape>(key);
  const auto is_count = [](int64_t n) { return n >= 0 && n <= kMaxBytes; };
  if (!list || list->size() != count || !std::ranges::all_of(*list, is_count))
    stop_at(key, concat(count, " integers from 0 to ", kMaxBytes));
  return *list;
}

DType RuleContext::dtype(DType fallback, const std::string& key) {
  const Attr* found = find(key);
  if (found && !std::holds_alternative<DType>(*found)) stop_at(key, "a dtype");
  return found ? std::get<DType>(*found) : fallback;
}

void RuleContext::need_text(const std::string& key) {
  if (!op.find_attr<std::string>(key))
    report(concat("needs ", key, '='), concat("expected a name, got ", find(key) ? *find(key) : Attr()));
}

void RuleContext::need_number(const std::string& key) {
  if (!op.find_attr<int64_t>(key) && !op.find_attr<double>(key))
    report(concat("needs ", key, '='), concat("expected a number, got ", find(key) ? *find(key) : Attr()));
}

size_t RuleContext::dim() {
  const int64_t dim = integer("dim");
  const size_t rank = operand().dims.size();
  if (dim < 0 || dim >= static_cast<int64_t>(rank) || rank != result().dims.size())
    stop(concat("has dim=", dim),
         concat("expected a dimension of both ", operand(), " and ", result(), ", counted from 0"));
  return static_cast<size_t>(dim);
}

size_t RuleContext::wrapped(int64_t dim, size_t rank) {
  const auto count = static_cast<int64_t>(std::max<size_t>(rank, 1));
  if (dim < -count || dim >= count)
    stop(concat("names dimension ", dim), concat("expected one of ", rank, ", or counted from the end by -1"));
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

int64_t RuleContext::ranks() {
  const auto axes = axes_of(op);
  if (!axes || axes->empty()) stop("needs axis=", "expected a mesh axis or a list of them, outer first");
  for (const std::string& axis : *axes) {
    const bool known = std::ranges::find(graph.mesh, axis, &MeshAxis::name) != graph.mesh.end();
    if (known && std::ranges::count(*axes, axis) == 1) continue;
    std::vector<std::string> names;
    for (const MeshAxis& candidate : graph.mesh) names.push_back(candidate.name);
    const std::string near = nearest(axis, names);
    stop(concat("names mesh axis ", axis, known ? " twice" : ", which the mesh lacks"),
         near.empty() ? "expected an axis of the line `graph mesh [...]`" : concat("did you mean ", near, '?'));
  }
  const auto size = axis_size(graph, *axes);
  if (!size || *size <= 0) throw Stop();  // an axis of size 0 is the verifier's to report, once
  return *size;
}

// ---- parts of several rules -----------------------------------------------------------------------------------------

namespace {

// The shard's split once the axes are joined: those that cut blocks within theirs then cut as many more. nullopt: the axes do not stand
// together in it.
std::optional<Dim> joined_split(const Dim& shard, const std::vector<std::string>& axes, int64_t ranks) {
  const auto first = std::ranges::search(shard.split, axes).begin();
  if (first == shard.split.end()) return std::nullopt;
  const auto at = static_cast<size_t>(first - shard.split.begin());
  Dim joined{.size = shard.size, .split = {}};
  for (size_t i = 0; i < shard.split.size(); ++i)
    if (i < at || i >= at + axes.size()) joined.add_axis(shard.split[i], shard.blocks_of(i) * (i < at ? 1 : ranks));
  return joined;
}

// Splits are what the graph says of shards; where it says nothing, as in a flat bucket, there is nothing to check.
void check_gathered_split(RuleContext& context, const Dim& shard, const Dim& whole, std::string_view shard_name) {
  const auto axes = axes_of(context.op);
  if (shard.split.empty() || !axes) return;
  const auto joined = joined_split(shard, *axes, axis_size(context.graph, *axes).value_or(1));
  if (joined && joined->split == whole.split && joined->blocks == whole.blocks) return;
  const auto names_axis = [&](const std::string& axis) { return std::ranges::find(*axes, axis) != axes->end(); };
  if (std::ranges::none_of(shard.split, names_axis) && shard.split == whole.split) return;
  Type got;
  got.dims = {shard};
  context.report(
      concat("has a split that does not fit its axes: ", shard_name, " is ", got),
      "expected the axes of the op as the innermost ones of the shard, or blocks within theirs, and not in the whole");
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
  const int64_t rows = context.integer("rows");
  const std::vector<Dim>& dims = context.result().dims;
  if (dims.empty()) context.stop("has rows=", "expected a tensor with dimensions");
  const auto ranks = axis_size(context.graph, dims[0].split);
  if (ranks && (rows < 0 || rows > saturating_product(dims[0].size, *ranks)))
    context.report(concat("has rows=", rows), concat("expected at most those of all ranks of ", context.result()));
}

// ranks=, 1 where there is none: a divisor of what `type` has.
int64_t shares(RuleContext& context, const Type& type, const std::string& what) {
  const int64_t ranks = context.integer("ranks", 1);
  if (ranks <= 0 || type.numel() % ranks != 0)
    context.stop(concat("has ranks=", ranks),
                 concat("expected a divisor of the ", type.numel(), " elements of ", what));
  return ranks;
}

}  // namespace

// ---- the rules of opset.def -----------------------------------------------------------------------------------------

void no_rule(RuleContext&) {}

void rule_named(RuleContext& context) { context.need_text("name"); }

void rule_param(RuleContext& context) {
  context.need_text("name");
  check_rows(context);
  const auto* names = context.op.find_attr<std::vector<std::string>>("members");
  if (!names) return;
  const auto* cuts = context.op.find_attr<std::vector<std::string>>("cuts");
  if (cuts && cuts->size() != names->size())
    context.report(concat("has ", cuts->size(), " cuts"),
                   concat("expected one for each of ", names->size(), " members"));
  const Shape offsets = context.counts("offsets", names->size()), numels = context.counts("numels", names->size());
  const int64_t size = context.integer("size");
  std::vector<size_t> order(names->size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return offsets[i]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t end = i + 1 < order.size() ? offsets[order[i + 1]] : size;
    if (offsets[order[i]] + numels[order[i]] > end)
      context.report(
          concat("has ", (*names)[order[i]], " from ", offsets[order[i]], " on, ", numels[order[i]], " elements of it"),
          concat("expected its end at ", end, " at most, where ",
                 i + 1 < order.size() ? (*names)[order[i + 1]] + " begins" : "size= ends"));
  }
}

void rule_constant(RuleContext& context) { context.integer("index"); }

namespace {

// Results in the memory of the operands from `first` on, one for each.
void check_carried(RuleContext& context, size_t first) {
  if (context.op.results().size() + first != context.op.operands.size())
    context.stop(
        concat("has ", context.op.results().size(), " results"),
        concat("expected one for each of the ", context.op.operands.size() - first, " values that it carries"));
  for (size_t k = first; k < context.op.operands.size(); ++k) {
    if (context.operand(k).kind != Type::Kind::Tensor || !context.operand(k).strides.empty())
      context.stop(concat("carries %", context.op.operands[k]->name()),
                   concat("expected a contiguous tensor, got ", context.operand(k)));
    context.expect_like(static_cast<int>(k - first), context.operand(k));
  }
}

}  // namespace

void rule_loop(RuleContext& context) {
  const Type& trips = context.operand(0);
  const bool is_flag = trips.dtype == DType::b1 && context.op.is("when");
  if (trips.kind != Type::Kind::Tensor || !trips.dims.empty() ||
      (!is_flag && trips.dtype != DType::i64 && trips.dtype != DType::i32))
    context.report(
        concat("runs as often as %", context.op.operands[0]->name(), " says"),
        concat("expected an integer, i64[] or i32[]", context.op.is("when") ? ", or b1[]" : "", ", got ", trips));
  if (context.op.is("loop")) {
    const int64_t most = context.integer("at_most");
    if (most < 1 || most > kMostTrips)
      context.report(concat("has at_most=", most), concat("expected 1 to ", kMostTrips));
  }
  check_carried(context, 1);
}

void rule_end(RuleContext& context) { check_carried(context, 0); }

void rule_cast(RuleContext& context) { context.expect(0, std::nullopt, context.operand().shape()); }

void rule_pad(RuleContext& context) {
  const size_t dim = context.dim();
  const int64_t size = context.integer("size");
  Shape shape = context.operand().shape();
  if (size < shape[dim])
    context.report(concat("has size=", size), concat("expected at least the operand's ", shape[dim]));
  shape[dim] = size;
  context.expect_result(shape);
}

void rule_narrow(RuleContext& context) {
  const size_t dim = context.dim();
  const int64_t start = context.integer("start"), length = context.integer("length");
  Shape shape = context.operand().shape();
  if (start < 0 || length < 0 || start > shape[dim] - length)
    context.report(concat("reads start=", start, " length=", length),
                   concat("expected a range inside dimension ", dim, " of ", context.operand()));
  shape[dim] = length;
  context.expect_result(shape);
}

void rule_as_summand(RuleContext& context) {
  context.ranks();
  context.expect_like(0, context.operand());
}

void rule_reorder(RuleContext& context) {
  const size_t dim = context.dim();
  const Shape shape = context.operand().shape();
  Shape order = context.integers("order");
  const auto chunks = static_cast<int64_t>(order.size());
  if (order.empty() || shape[dim] % chunks != 0)
    context.stop(concat("cannot cut dimension ", dim, " of ", context.operand(), " into ", chunks, " chunks"),
                 "expected a size that their number divides");
  std::ranges::sort(order);
  for (int64_t i = 0; i < chunks; ++i)
    if (order[static_cast<size_t>(i)] != i)
      context.stop("has an order= that leaves a chunk out", concat("expected each of 0 to ", chunks - 1, " once"));
  context.expect_result(shape);
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
  const int64_t offset = context.integer("offset");
  if (offset < 0 || offset > whole - part)
    context.report(concat("reads ", part, " elements from offset=", offset),
                   concat("expected a range inside the ", whole, " elements of ", context.operand()));
}

void rule_pack(RuleContext& context) {
  const size_t count = context.op.operands.size();
  const Shape offsets = context.counts("offsets", count);
  const Type& result = context.result();
  const int64_t ranks = shares(context, result, "the result");
  int64_t free_from = 0;
  for (size_t i = 0; i < count; ++i) {
    const Type& operand = context.operand(i);
    context.expect_dtype(operand.dtype, result.dtype, "the result");
    if (offsets[i] < free_from)
      context.report(concat("puts operand ", i, " at offset ", offsets[i]),
                     concat("expected at least ", free_from, ", the end of the one before"));
    free_from = offsets[i] + operand.numel() / shares(context, operand, concat("operand ", i));
  }
  if (result.dims.size() != 1 || result.numel() / ranks < free_from)
    context.report("has the wrong shape: the result",
                   concat("expected one dimension of at least ", saturating_product(free_from, ranks)));
  if (!context.find("inside")) return;
  const Shape inside = context.integers("inside");
  if (inside.empty() || inside.front() < 0 || inside.back() >= static_cast<int64_t>(count) ||
      std::ranges::adjacent_find(inside, std::greater_equal()) != inside.end() || context.find("ranks"))
    context.report("names operands that are in their places already",
                   concat("expected some of 0 to ", count - 1, ", in order, and no ranks="));
}

void rule_unpack(RuleContext& context) {
  context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
  const int64_t offset = context.integer("offset");
  context.integer("ranks");  // which must be there
  const int64_t whole = context.operand().numel() / shares(context, context.operand(), "the operand");
  const int64_t part = context.result().numel() / shares(context, context.result(), "the result");
  if (offset < 0 || offset > whole - part)
    context.report(concat("reads ", part, " elements from offset=", offset, " of each share"),
                   concat("expected a range inside the ", whole, " elements of a share of ", context.operand()));
}

// Ranks exchange what lies together in memory: one part after the other, so that nothing may stand before the dimension.
size_t exchanged_dim(RuleContext& context) {
  const size_t dim = context.dim();
  for (size_t d = 0; d < dim; ++d)
    if (context.operand().dims[d].size != 1)
      context.stop(concat("has dim=", dim, ", before which ", context.operand(), " has a dimension of ",
                          context.operand().dims[d].size),
                   "expected the dimension in front, or sizes of 1 before it; permute it first");
  return dim;
}

void rule_all_gather(RuleContext& context) {
  const size_t dim = exchanged_dim(context);
  Shape shape = context.operand().shape();
  shape[dim] = saturating_product(shape[dim], context.ranks());
  context.expect_result(shape);
  check_gathered_split(context, context.operand().dims[dim], context.result().dims[dim], "the operand's dimension");
}

void rule_reduce_scatter(RuleContext& context) {
  check_reduction(context);
  const size_t dim = exchanged_dim(context);
  const int64_t ranks = context.ranks();
  Shape shape = context.operand().shape();
  if (shape[dim] % ranks != 0)
    context.stop(concat("cannot cut dimension ", dim, " of ", context.operand(), " into ", ranks),
                 "expected a size that the ranks divide; pad it first");
  shape[dim] /= ranks;
  context.expect_result(shape);
  check_gathered_split(context, context.result().dims[dim], context.operand().dims[dim], "the result's dimension");
}

void rule_all_reduce(RuleContext& context) {
  check_reduction(context);
  rule_same_as_first(context);
  context.ranks();
}

void rule_broadcast(RuleContext& context) {
  rule_same_as_first(context);
  const int64_t ranks = context.ranks(), root = context.integer("root");
  if (root < 0 || root >= ranks)
    context.report(concat("has root=", root), concat("expected an axis rank below ", ranks));
}

void rule_all_to_all(RuleContext& context) {
  const auto rank = static_cast<int64_t>(context.operand().dims.size());
  const int64_t ranks = context.ranks(), split = context.integer("split"), join = context.integer("join");
  for (const int64_t dim : {split, join})
    if (dim < 0 || dim >= rank || split == join)
      context.stop(concat("has split=", split, " and join=", join),
                   concat("expected two dimensions of ", context.operand(), ", counted from 0"));
  const auto s = static_cast<size_t>(split), j = static_cast<size_t>(join);
  Shape shape = context.operand().shape();
  if (shape[s] % ranks != 0)
    context.stop(concat("cannot cut dimension ", split, " of ", context.operand(), " into ", ranks),
                 "expected a size that the ranks divide");
  shape[s] /= ranks;
  shape[j] = saturating_product(shape[j], ranks);
  context.expect_result(shape);
  check_gathered_split(context, context.result().dims[s], context.operand().dims[s], "the result's dimension");
  check_gathered_split(context, context.operand().dims[j], context.result().dims[j], "the operand's dimension");
}

void rule_wait(RuleContext& context) {
  if (context.operand().kind != Type::Kind::Async) return;  // the verifier's own check says so
  Type expected = context.operand();
  expected.kind = Type::Kind::Tensor;
  if (expected == context.result()) return;
  context.report("changes the type of what it waits for", concat("expected ", expected, ", got ", context.result()));
}

void rule_same_as_first(RuleContext& context) { context.expect_like(0, context.operand()); }

void rule_add_into(RuleContext& context) {
  rule_same_as_first(context);
  context.expect_shape(context.operand(0).shape(), context.operand(1), "the second operand");
}

void rule_store(RuleContext& context) {
  rule_add_into(context);
  context.expect_dtype(context.operand(0).dtype, context.operand(1).dtype, "the second operand");
  if (donated_operands(context.op) != std::vector<int64_t>{0})
    context.report("does not write over what it replaces", "expected donates=[0]");
}

void rule_scale(RuleContext& context) {
  if (context.operand(1).numel() != 1) return rule_add_into(context);
  rule_same_as_first(context);
}

// In the wider dtype of both; one number does not widen a tensor of several.
void rule_div(RuleContext& context) {
  const Type &a = context.operand(0), &b = context.operand(1);
  if (b.numel() != 1) context.expect_shape(a.shape(), b, "the second operand");
  const bool wider = size_in_bytes(b.dtype) > size_in_bytes(a.dtype) && (a.dims.empty() || !b.dims.empty());
  context.expect(0, wider ? b.dtype : a.dtype, a.shape());
}

void rule_scalar(RuleContext& context) {
  if (!context.op.find_attr<bool>("value")) context.need_number("value");
}

void rule_gradient(RuleContext& context) {
  context.need_text("param");
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
    const Shape segments = context.counts("segments", count);
    constexpr int64_t kMost = int64_t{1} << 31;  // parameters in a bucket, so that their sum fits
    if (std::ranges::any_of(segments, [](int64_t n) { return n > kMost; }))
      context.stop(concat("has segments=", Attr(segments)), concat("expected at most ", kMost, " each"));
    int64_t all = 0;
    sums = 0;
    for (const int64_t n : segments) {
      all += n;
      sums += std::max<int64_t>(n, 1);
    }
    context.counts("offsets", static_cast<size_t>(all));
    context.counts("numels", static_cast<size_t>(all));
  }
  context.expect(0, DType::f64, {sums});
  const auto check_flags = [&](const char* key, int64_t expected) {
    const auto* flags = context.op.find_attr<std::vector<bool>>(key);
    if (context.op.has_attr(key) && (!flags || std::ssize(*flags) != expected))
      context.report(concat("has ", key, '=', context.op.attrs.at(key)),
                     concat("expected ", expected, " times true or false"));
  };
  const auto check_ranks = [&](const char* key) {
    const int64_t some = context.integer(key), ranks = context.ranks();
    if (some < 1 || ranks % some != 0)
      context.report(concat("has ", key, '=', some), concat("expected a divisor of the ", ranks, " ranks over axis="));
  };
  check_flags("counted_once", sums);
  for (const char* key : {"replicated", "boxed"}) check_flags(key, static_cast<int64_t>(count));
  if (context.find("counted_once")) check_ranks("inner");
  if (context.find("boxed")) check_ranks("boxes");
}

void rule_to_scalar(RuleContext& context) { context.expect(0, std::nullopt, {}); }

void rule_clip_coefficient(RuleContext& context) {
  rule_to_scalar(context);
  context.need_number("max_norm");
}

namespace {

// weight_decay= and lr_factor= of an update: a number each, or with begins= a list of one per segment.
void check_segments(RuleContext& context) {
  size_t segments = 0;
  if (context.find("begins")) {
    const Shape begins = context.integers("begins");
    const int64_t ranks = context.find("axis") ? context.ranks() : 1;
    const int64_t whole = saturating_product(context.operand().numel(), ranks);
    const bool grow = std::ranges::adjacent_find(begins, std::ranges::greater_equal()) == begins.end();
    if (begins.empty() || begins.front() != 0 || !grow || begins.back() >= whole)
      context.stop(concat("has begins=", Attr(begins)),
                   concat("expected 0, then growing numbers below ", whole, ", the elements of the whole bucket"));
    segments = begins.size();
  }
  for (const char* key : {"weight_decay", "lr_factor"}) {
    const auto* list = context.op.find_attr<std::vector<double>>(key);
    if (list && list->size() != segments)
      context.report(concat("has ", key, '=', Attr(*list)), segments == 0 ? "expected a number; a list needs begins="
                                                                          : concat("expected ", segments, " numbers"));
    if (!list && (context.find(key) || key == std::string_view("weight_decay"))) context.need_number(key);
  }
}

}  // namespace

void rule_adam(RuleContext& context) {
  constexpr std::string_view kResults[] = {"the new parameter", "the new first moment", "the new second moment"};
  for (int i = 0; i < 3; ++i) {
    const Type& expected = context.operand(static_cast<size_t>(i));
    context.expect_dtype(expected.dtype, context.result(i).dtype, kResults[i]);
    context.expect_shape(expected.shape(), context.result(i), kResults[i]);
  }
  context.expect_shape(context.operand(0).shape(), context.operand(3), "the gradient");
  for (const char* key : {"beta1", "beta2", "eps"}) context.need_number(key);
  check_segments(context);
}

void rule_sgd(RuleContext& context) {
  const bool has_momentum = context.has_operand(1);
  const size_t results = has_momentum ? 2 : 1;
  if (context.op.results().size() != results)
    context.stop(concat("has ", context.op.results().size(), " results"),
                 concat("expected ", results, ": the new parameter, and the new momentum if there is one"));
  rule_same_as_first(context);
  if (has_momentum) {
    context.expect_shape(context.operand(1).shape(), context.result(1), "the new momentum");
    context.need_number("momentum");
  }
  if (context.has_operand(2)) context.expect_shape(context.operand().shape(), context.operand(2), "the gradient");
  check_segments(context);
}

}  // namespace sfsdp::ir
