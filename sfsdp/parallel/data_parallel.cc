// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/data_parallel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/axis_attr.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/placement_kinds.h"

namespace sfsdp {
namespace {

constexpr ir::Placement kShard = ir::Placement::shard(0);

AxisList above_one(const DeviceMesh& mesh, const AxisList& names) {
  AxisList axes;
  for (const MeshAxis& a : mesh.axes())
    if (a.size > 1 && std::ranges::find(names, a.name) != names.end()) axes.push_back(a.name);
  return axes;
}

}  // namespace

int64_t Strategy::axis_size(const std::string& axis) const { return mesh.has(axis) ? mesh.size(axis) : 1; }

int64_t Strategy::data_ranks() const { return axis_size("dp_replicate") * axis_size("dp_shard"); }

AxisList Strategy::data_axes() const { return above_one(mesh, {"dp_replicate", "dp_shard"}); }
AxisList Strategy::shard_axes() const {
  AxisList axes = expert_shard_axes();
  if (axis_size("ep") > 1) axes.push_back("ep");
  return axes;
}
AxisList Strategy::expert_shard_axes() const { return above_one(mesh, {"dp_shard", "cp"}); }
AxisList Strategy::replicate_axes() const { return above_one(mesh, {"dp_replicate"}); }
AxisList Strategy::model_axes() const { return above_one(mesh, {"ep", "cp", "tp"}); }
AxisList Strategy::token_axes() const { return above_one(mesh, {"ep", "cp"}); }
AxisList Strategy::tensor_axes() const { return above_one(mesh, {"tp"}); }

ZeroPlacements zero_placements(int64_t stage) {
  constexpr std::array<ZeroPlacements, 4> kStages = {{{parallel::kWhole, parallel::kWhole, parallel::kWhole},
                                                      {parallel::kWhole, parallel::kWhole, kShard},
                                                      {parallel::kWhole, kShard, kShard},
                                                      {kShard, kShard, kShard}}};
  if (stage < 0 || stage >= static_cast<int64_t>(kStages.size()))
    throw UserError(concat("data_parallel: DataParallelOptions::zero_stage = ", stage, "\n  expected 0, 1, 2 or 3"));
  return kStages[static_cast<size_t>(stage)];
}

namespace {

void check_dtype(const char* name, const std::optional<ir::DType>& dtype) {
  if (dtype && !ir::is_floating(*dtype))
    throw UserError(concat("data_parallel: MixedPrecisionPolicy::", name, " = ", ir::to_string(*dtype),
                           "\n  expected a floating dtype, such as bf16"));
}

}  // namespace

namespace {

// What is the same on ranks of dp_shard would have to be counted once there, and on each rank of ep.
void check_experts(const Strategy& strategy, int64_t ep) {
  const ExpertParallelOptions& expert = strategy.expert;
  if (!(expert.capacity >= 0) || std::isinf(expert.capacity))
    throw UserError(concat("ExpertParallelOptions::capacity = ", expert.capacity,
                           "\n  expected even shares of rows, such as 1.25; 0: room for all rows"));
  if (expert.capacity > 0 && expert.dispatch == DispatchMethod::Gather)
    throw UserError(
        concat("ExpertParallelOptions::capacity = ", expert.capacity, " with DispatchMethod::Gather",
               "\n  expected DispatchMethod::Auto or DispatchMethod::Exchange: rows are computed in rounds ",
               "where they are exchanged"));
  const auto refuse = [&](const std::string& what, const char* expected) {
    throw UserError(concat("data_parallel: ", what, " with mesh axis ep = ", ep, "\n  expected ", expected));
  };
  if (strategy.options.mode == DataParallelMode::Replicate)
    refuse("DataParallelOptions::mode = Replicate", "FullyShard or HybridShard, or no mode");
  if (strategy.options.zero_stage == 0) refuse("DataParallelOptions::zero_stage = 0", "1, 2 or 3");
}

void check_axes(const Strategy& strategy) {
  for (const MeshAxis& a : strategy.mesh.axes()) {
    if (a.size < 1)
      throw UserError(concat("data_parallel: mesh axis ", a.name, " = ", a.size, "\n  expected at least 1"));
    if (a.size > 1 && a.name != "dp_replicate" && a.name != "dp_shard" && !is_model_axis(a.name))
      throw UserError(
          concat("data_parallel: mesh axis ", a.name, " = ", a.size,
                 "\n  expected only dp_replicate, dp_shard, ep, cp and tp above 1: other axes are not supported yet"));
  }
  if (const int64_t ep = strategy.axis_size("ep"); ep > 1) check_experts(strategy, ep);
  if (!strategy.tensor_axes().empty() && strategy.tensor.rules.empty())
    throw UserError(concat("data_parallel: mesh axis tp = ", strategy.axis_size("tp"),
                           ", and no parameter is cut over it",
                           "\n  expected tensor_parallel({{\"*.w1\", Shard(0)}, …}) beside the options, or tp = 1"));
  if (!strategy.model_axes().empty() && strategy.options.layout != ParameterLayout::Flat)
    throw UserError(concat("data_parallel: DataParallelOptions::layout = Dim0 with mesh axis ",
                           strategy.model_axes()[0], " = ", strategy.mesh.size(strategy.model_axes()[0]),
                           "\n  expected ParameterLayout::Flat beside a model axis"));
}

}  // namespace

Strategy data_parallel(DeviceMesh mesh, DataParallelOptions options, TensorParallel tensor,
                       ContextParallelOptions context, ExpertParallelOptions expert) {
  Strategy strategy{std::move(mesh), std::move(options), std::move(tensor), std::move(context), std::move(expert)};
  check_axes(strategy);
  zero_placements(strategy.options.zero_stage);  // throws for an unknown stage
  check_dtype("param_dtype", strategy.options.mixed_precision.param_dtype);
  check_dtype("reduce_dtype", strategy.options.mixed_precision.reduce_dtype);
  check_dtype("grad_dtype", strategy.options.mixed_precision.grad_dtype);
  if (strategy.options.min_shard_numel < 0)
    throw UserError(concat("data_parallel: DataParallelOptions::min_shard_numel = ", strategy.options.min_shard_numel,
                           "\n  expected 0 or more elements"));
  const int64_t shard = strategy.mesh.group_size(strategy.shard_axes()), replicate = strategy.axis_size("dp_replicate");
  if (!strategy.options.mode)
    strategy.options.mode = replicate == 1 ? DataParallelMode::FullyShard
                            : shard == 1   ? DataParallelMode::Replicate
                                           : DataParallelMode::HybridShard;
  if (strategy.options.mode == DataParallelMode::FullyShard && replicate > 1)
    throw UserError(concat("data_parallel: DataParallelOptions::mode = FullyShard on a mesh with dp_replicate = ",
                           replicate, "\n  expected dp_replicate = 1; leave the mode unset, or use HybridShard"));
  if (strategy.options.mode == DataParallelMode::Replicate && strategy.axis_size("dp_shard") > 1)
    throw UserError(concat("data_parallel: DataParallelOptions::mode = Replicate on a mesh with dp_shard = ",
                           strategy.axis_size("dp_shard"),
                           "\n  expected dp_shard = 1; name the axis dp_replicate, or leave the mode unset"));
  return strategy;
}

namespace parallel {
namespace {

using ir::Dim;
using ir::Graph;
using ir::Op;
using ir::Section;
using ir::Type;
using ir::Value;

// How one parameter is stored: `rows` of dimension 0 on each rank, the last ranks' padded.
struct Storage {
  bool sharded = false;  // the stored tensor, over `axes`
  bool boxed = false;    // experts, of which each rank of ep has others
  AxisList axes = {};
  ZeroPlacements placements = {};
  int64_t global_rows = 0, rows = 0, padded_rows = 0;
  ir::DType dtype = ir::DType::f32;
};

Storage storage_of(const Op& param, const Strategy& strategy) {
  const Type& type = param.result()->type();
  Storage s;
  s.boxed = param.has_attr("box");
  s.axes = s.boxed ? strategy.expert_shard_axes() : strategy.shard_axes();
  const int64_t world = strategy.mesh.group_size(s.axes);
  s.dtype = param.has_attr("storage") ? param.attr<ir::DType>("storage") : type.dtype;
  s.placements = zero_placements(strategy.options.zero_stage);
  const bool frozen = param.has_attr("trainable") && !param.attr<bool>("trainable");
  // A frozen parameter has no update to share out: it is cut only where gathering it at its readers is wanted.
  const ir::Placement stored = frozen ? s.placements.parameters : s.placements.state;
  s.sharded = stored == kShard && strategy.options.mode != DataParallelMode::Replicate && world > 1 &&
              !type.dims.empty() && type.numel() > 0 && (s.boxed || type.numel() >= strategy.options.min_shard_numel);
  s.global_rows = type.dims.empty() ? 1 : type.dims[0].size;
  s.rows = s.sharded ? (s.global_rows + world - 1) / world : s.global_rows;
  s.padded_rows = s.sharded ? s.rows * world : s.global_rows;
  return s;
}

// A contiguous tensor. Summands over a model axis stay summands; otherwise placed alike everywhere.
Type plain(Type type, ir::DType dtype) {
  type.dtype = dtype;
  type.strides.clear();
  std::erase_if(type.placements, [](const ir::AxisPlacement& p) {
    return p.placement.kind != ir::Placement::Kind::Partial || !is_model_axis(p.axes[0]);
  });
  return type;
}

// The model axes over which a value is a summand, in the order of the mesh; not those of `but`.
AxisList summed_over(const Type& type, const Strategy& strategy, const AxisList& but) {
  AxisList axes;
  for (const std::string& axis : strategy.model_axes())
    if (type.placement_on(axis).kind == ir::Placement::Kind::Partial && std::ranges::find(but, axis) == but.end())
      axes.push_back(axis);
  return axes;
}

// Without what is added up over these axes.
Type reduced(Type type, const AxisList& axes) {
  std::erase_if(type.placements, [&](const ir::AxisPlacement& p) {
    return std::ranges::all_of(p.axes,
                               [&](const std::string& axis) { return std::ranges::find(axes, axis) != axes.end(); });
  });
  return type;
}

// What a model axis cuts stays cut.
Type with_rows(Type type, int64_t rows) {
  type.strides.clear();
  if (!type.dims.empty()) type.dims[0] = Dim{rows, std::move(type.dims[0].split), false};
  return type;
}

Value* cast(const ir::Builder::Place& place, Value* value, ir::DType dtype, const std::string& hint) {
  return value->type().dtype == dtype ? value : place.value("cast", {value}, plain(value->type(), dtype), hint);
}

// cast -> all_gather -> narrow: the cast comes first, so that the wire carries the compute dtype.
Value* materialise(const ir::Builder::Place& place, Value* stored, const Storage& s, const Type& full,
                   const AxisList& over) {
  const std::string name = stored->name();
  Value* value = cast(place, stored, full.dtype, name + ".cast");
  if (!s.sharded) return value;
  value = place.value("all_gather", {value}, with_rows(full, s.padded_rows), name + ".full",
                      {{"axis", ir::axis_attr(over)}, {"dim", int64_t{0}}});
  if (s.padded_rows == s.global_rows) return value;
  return place.value("narrow", {value}, full, name + ".unpad",
                     {{"dim", int64_t{0}}, {"start", int64_t{0}}, {"length", s.global_rows}});
}

bool is_backward(const Op& op) { return op.section == Section::Bwd; }

// `readers`: the ops that read the parameter, in order.
void shard_parameter(ir::Builder& build, Op* param, std::span<Op* const> readers, const Storage& s,
                     const Strategy& strategy) {
  Value* stored = param->result();
  const Type full = stored->type();
  Type stored_type = plain(full, s.dtype);
  if (s.sharded) {
    stored_type = with_rows(stored_type, s.rows);
    for (const std::string& axis : s.axes) stored_type.dims[0].split.push_back(axis);
    stored_type.dims[0].padded = s.padded_rows != s.global_rows;
  }
  stored->set_type(stored_type);
  param->attrs.erase("storage");
  if (s.sharded) param->attrs["rows"] = s.global_rows;

  Value* materialised = nullptr;
  bool in_backward = false;
  for (Op* reader : readers) {
    const bool again = strategy.options.reshard_after_forward && s.sharded && s.placements.parameters == kShard &&
                       is_backward(*reader) && !in_backward;
    if (!materialised || again) {
      in_backward = is_backward(*reader);
      materialised = materialise(build.before(reader).at(param->module_path), stored, s, full, s.axes);
    }
    for (Value*& operand : reader->operands)
      if (operand == stored) operand = materialised;
  }
}

// cast -> pad -> reduce_scatter per micro-batch into the shard. What adds up whole (stage 1, or reduce_once) is reduced by
// the last micro-batch, under its backward: a reduction per micro-batch would move the same bytes k times.
// Whole gradients add up in the dtype of their reduction, shards in that of the stored parameter, as FSDP2's do: k
// shards in bf16 would round k times.
// Right after the gradient is made: the whole of it is to live no longer than it must.
void reduce_gradient(Graph& graph, ir::Builder& build, Op* gradient, const Storage& s, const Strategy& strategy,
                     const GradientOptions& options) {
  Value* value = gradient->operands[0];
  const std::string name = gradient->attr<std::string>("param") + ".grad";
  auto place = build.after(value->producer()).in(Section::Bwd).at(gradient->module_path);
  // On the shard: a gradient of what all ranks of a model axis have.
  const AxisList model = summed_over(value->type(), strategy, s.sharded ? s.axes : AxisList());
  // A rank's summand over a model axis is not rounded before it is summed: such a gradient is sent in the wider dtype that it is made in,
  // and in which it adds up over micro-batches.
  const ir::DType asked = strategy.options.mixed_precision.reduce_dtype.value_or(value->type().dtype);
  const auto sent_in = [&](ir::DType own) {
    return !model.empty() && ir::size_in_bytes(own) > ir::size_in_bytes(asked) ? own : asked;
  };
  const ir::DType reduce_dtype = sent_in(value->type().dtype);
  const ir::DType kept_dtype = strategy.options.mixed_precision.grad_dtype.value_or(s.dtype);
  value = cast(place, value, reduce_dtype, name + ".cast");
  if (s.sharded && s.padded_rows != s.global_rows)
    value = place.value("pad", {value}, with_rows(value->type(), s.padded_rows), name + ".pad",
                        {{"dim", int64_t{0}}, {"size", s.padded_rows}});
  const AxisList& shards = s.axes;
  const auto reduce_scatter = [&] {
    Type part = reduced(with_rows(value->type(), s.rows), shards);
    if (!strategy.token_axes().empty())
      part.dims[0].split.insert(part.dims[0].split.end(), shards.begin(), shards.end());
    value = place.value("reduce_scatter", {value}, part, name + ".rs",
                        {{"axis", ir::axis_attr(shards)}, {"dim", int64_t{0}}});
  };
  AxisList axes = s.sharded ? strategy.replicate_axes() : strategy.data_axes();
  axes.insert(axes.end(), model.begin(), model.end());
  const bool several = graph.micro_batches > 1;
  const bool once = s.placements.gradients == kWhole || strategy.options.reduce_once;
  if (s.sharded && !once) {
    reduce_scatter();
    if (several) value = cast(place, value, kept_dtype, name + ".stored");
  }
  if (several) value = place.value("accumulate", {value}, plain(value->type(), value->type().dtype), name + ".acc");
  if (s.sharded && once) {
    reduce_scatter();
    if (several) value->producer()->attrs["once"] = true;
  }
  if (const ir::DType sent = sent_in(value->type().dtype); !axes.empty() && value->type().dtype != sent) {
    value = cast(place, value, sent, name + ".sent");
    value->producer()->attrs["once"] = true;
  }
  place = build.before(gradient).in(Section::Clip);
  if (!axes.empty()) {
    Type type = plain(value->type(), value->type().dtype);
    type.placements.clear();
    value = place.value("all_reduce", {value}, type, name + ".ar", {{"axis", ir::axis_attr(axes)}});
  }
  value = cast(place, value, kept_dtype, name + ".stored");
  if (options.factor != 1)
    value = place.value("mul_scalar", {value}, plain(value->type(), value->type().dtype), name + ".mean",
                        {{"value", options.factor}});
  gradient->operands[0] = value;
  gradient->section = Section::Clip;
  gradient->result()->set_type(value->type());
  gradient->attrs["replicated"] = !s.sharded && !s.boxed;
  if (s.boxed) gradient->attrs["boxed"] = true;
}

void mark_inputs(Graph& graph, const Strategy& strategy) {
  const auto axes = strategy.data_axes();
  if (axes.empty()) return;
  for (const auto& op : graph.ops()) {
    if (!op->is("input")) continue;
    Type type = op->result()->type();
    type.placements = {{ir::Placement::own(), axes}};
    op->result()->set_type(type);
  }
}

void check_reduced(const Graph& graph, const Strategy& strategy) {
  if (strategy.data_ranks() == 1) return;
  for (const auto& op : graph.ops()) {
    if (!op->is("gradient")) continue;
    bool reduced = false;
    for (const Op* at = op.get(); at && !at->operands.empty(); at = at->operands[0]->producer()) {
      if (at->is("reduce_scatter", "all_reduce")) reduced = true;
      if (reduced) break;
      if (!at->is("gradient", "cast", "accumulate", "pad", "mul_scalar")) break;
    }
    SFSDP_CHECK(reduced, "gradient of ", op->attr<std::string>("param"), " is not reduced over the data axes");
  }
}

}  // namespace

MeanShare share_of_mean(int64_t parts, bool half_precision) {
  SFSDP_CHECK(parts > 0, "a mean over ", parts, " parts");
  const auto count = static_cast<uint64_t>(parts);
  const uint64_t power = half_precision ? std::bit_floor(count) : count;
  return {1.0 / static_cast<double>(power), static_cast<double>(power) / static_cast<double>(count)};
}

void apply_data_parallel(Graph& graph, const Strategy& strategy, const GradientOptions& options) {
  graph.mesh = strategy.mesh.axes();
  graph.view = Graph::View::Local;
  std::vector<Op*> params, gradients;
  for (const auto& op : graph.ops()) {
    if (op->is("param")) params.push_back(op.get());
    if (op->is("gradient")) gradients.push_back(op.get());
  }
  const ir::Index index(graph);
  std::map<std::string, Storage> storages;
  for (Op* param : params) storages[param->attr<std::string>("name")] = storage_of(*param, strategy);
  ir::Builder build(graph);
  for (Op* gradient : gradients)
    reduce_gradient(graph, build, gradient, storages.at(gradient->attr<std::string>("param")), strategy, options);
  for (Op* param : params)
    shard_parameter(build, param, index.readers(param->result()), storages.at(param->attr<std::string>("name")),
                    strategy);
  build.apply();
  mark_inputs(graph, strategy);
  check_reduced(graph, strategy);
}

}  // namespace parallel
}  // namespace sfsdp
