// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/pack_all_reduces.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/axis_attr.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Type, ir::Value;

constexpr int64_t kPartAlignment = 256;  // bytes, of each part, as in a bucket

// The sum of a small gradient that forward and backward leave, over tp and maybe other axes.
bool is_small_sum(const Op& op, const ParamNames& params, const ir::Index& index, int64_t max_bytes) {
  if (!op.is("all_reduce") || op.section != ir::Section::Clip || ir::reduce_op(op) != ir::ReduceOp::Sum) return false;
  const auto axes = ir::axes_of(op);
  if (!axes || std::ranges::none_of(*axes, is_tensor_axis)) return false;
  const Value* summand = op.operands[0];
  if (!ir::is_repeated(summand->producer()->section) || !summand->type().strides.empty()) return false;
  const Op* param = param_of_gradient(params, index, op.result());
  if (!param || param->has_attr("cuts")) return false;  // parts of experts are no summands of one kind
  const int64_t elements = param->attr_or("size", summand->type().numel());
  return elements * ir::size_in_bytes(summand->type().dtype) <= max_bytes;
}

// Sums of one dtype over the same ranks, of what lies alike on all axes.
std::string pack_key_of(const Op& op) {
  Type type = Type::tensor(op.result()->type().dtype, {1});
  type.placements = op.operands[0]->type().placements;
  return concat(join(ir::axes_of(op).value(), " "), '|', type);
}

// Several of one kind, in the graph's order.
std::vector<std::vector<Op*>> find_groups(const Graph& graph, const PackAllReducesOptions& options) {
  const ir::Index index(graph);
  const ParamNames params = params_by_name(graph);
  std::map<std::string, size_t> by_key;
  std::vector<std::vector<Op*>> groups;
  for (const auto& op : graph.ops()) {
    if (!is_small_sum(*op, params, index, options.max_bytes)) continue;
    const auto [place, fresh] = by_key.emplace(pack_key_of(*op), groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(op.get());
  }
  std::erase_if(groups, [](const std::vector<Op*>& group) { return group.size() < 2; });
  return groups;
}

// Where the first of them stands: forward and backward have left what all of them sum.
void pack(ir::Builder& build, const std::vector<Op*>& sums, PassContext& ctx) {
  const std::vector<std::string> axes = ir::axes_of(*sums[0]).value();
  const ir::DType dtype = sums[0]->result()->type().dtype;
  const int64_t alignment = std::max<int64_t>(kPartAlignment / ir::size_in_bytes(dtype), 1);
  std::vector<Value*> parts;
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const Op* sum : sums) {
    const Type& type = sum->operands[0]->type();
    parts.push_back(sum->operands[0]);
    offsets.push_back(end);
    end = round_up(end + type.numel(), alignment);
    ctx.metrics.add("bytes_copied", type.bytes());
  }
  const auto place = build.before(sums[0]).at("");
  const std::string name = concat("summed_over_", join(axes, "_"));
  Type type = Type::tensor(dtype, {end});
  type.placements = parts[0]->type().placements;
  Value* packed = place.list("pack", parts, type, name + ".packed", {{"offsets", offsets}})->result();
  Value* all = place.value("all_reduce", {packed}, Type::tensor(dtype, {end}), name, {{"axis", ir::axis_attr(axes)}});
  for (size_t i = 0; i < sums.size(); ++i)
    build.take_place(sums[i]->result(),
                     build.before(sums[i]).value("view", {all}, sums[i]->result()->type(), sums[i]->result()->name(),
                                                 {{"offset", offsets[i]}}));
  build.erase(sums);
  ctx.metrics.add("merged", std::ssize(sums));
  ctx.metrics.add("sums", 1);
}

}  // namespace

const std::vector<Field<PackAllReducesOptions>>& PackAllReducesOptions::fields() {
  static const std::vector<Field<PackAllReducesOptions>> kFields = {
      field("max_bytes", &PackAllReducesOptions::max_bytes, {0, 1LL << 40},
            "of a bucket's gradient, all ranks' shares; a larger one is summed by itself")};
  return kFields;
}

bool pack_all_reduces(Graph& graph, const PackAllReducesOptions& options, PassContext& ctx) {
  const auto groups = find_groups(graph, options);
  ir::Builder build(graph);
  for (const std::vector<Op*>& group : groups) pack(build, group, ctx);
  build.apply();
  SFSDP_CHECK(find_groups(graph, options).empty(), "several all_reduces of one kind are left");
  return !groups.empty();
}

}  // namespace sfsdp::passes
