// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/cut_proof_torch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/access_map.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/parallel/localise.h"

namespace sfsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ir::Placement;

constexpr Placement kSum = Placement::partial(ir::ReduceOp::Sum);

std::string text_of(const parallel::OpCut& way, int64_t ranks) {
  std::string text;
  for (const auto& operand : way.operands)
    text += concat(text.empty() ? "" : ", ", !operand ? "-"
                                             : *operand == Placement::replicate()
                                                 ? "whole"
                                                 : concat(operand->dim, operand->blocks == 1 ? "" : ":",
                                                          operand->blocks == 1 ? "" : concat(operand->blocks)));
  return concat(ranks, " ranks, operands cut in ", text);
}

bool is_narrow(ir::DType dtype) {
  return dtype == ir::DType::f16 || dtype == ir::DType::bf16 || dtype == ir::DType::f32;
}

ir::Type widened(ir::Type type) {
  if (is_narrow(type.dtype)) type.dtype = ir::DType::f64;
  return type;
}

Tensor widened(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.is_complex()          ? tensor.to(at::kComplexDouble)
         : tensor.is_floating_point() ? tensor.to(at::kDouble)
                                      : tensor;
}

// The op alone, on inputs: all sizes, or those of one rank.
ir::Graph alone(const ir::Op& op, bool widen) {
  ir::Graph graph;
  const auto type_of = [&](const ir::Value& value) { return widen ? widened(value.type()) : value.type(); };
  std::vector<ir::Value*> operands;
  for (size_t k = 0; k < op.operands.size(); ++k)
    operands.push_back(op.operands[k] ? graph.add("input", {}, {{concat("in", k), type_of(*op.operands[k])}})->result()
                                      : nullptr);
  std::vector<ir::Graph::NewResult> results;
  for (const auto& result : op.results()) results.push_back({result->name(), type_of(*result)});
  ir::Op* made = graph.add(op.opcode, operands, std::move(results));
  made->attrs = op.attrs;
  made->operand_lists = op.operand_lists;
  return graph;
}
ir::Graph local_op(const ir::Op& op, const parallel::OpCut& way, int64_t ranks) {
  ir::Graph graph = alone(op, false);
  graph.mesh = {{"tp", ranks}};
  const ir::Op& made = *graph.ops().back();
  parallel::Placements placements;
  for (size_t k = 0; k < op.operands.size(); ++k)
    if (op.operands[k] && way.operands[k] && *way.operands[k] != Placement::replicate())
      placements[made.operands[k]] = *way.operands[k];
  for (size_t r = 0; r < way.results.size(); ++r)
    if (way.results[r] != Placement::replicate()) placements[made.results()[r].get()] = way.results[r];
  parallel::localise(graph, graph.mesh[0], placements);
  for (const auto& each : graph.ops())  // one rank's program knows no mesh
    for (const auto& result : each->results()) {
      ir::Type type = result->type();
      for (ir::Dim& dim : type.dims) dim = ir::Dim{.size = dim.size, .split = {}};
      type.placements.clear();
      result->set_type(type);
    }
  return graph;
}

Tensor joined(const Tensors& parts, const Placement& placement) {
  Tensors in_blocks;
  for (const Tensor& part : parts)
    in_blocks.push_back(part.unflatten(placement.dim, {placement.blocks, part.size(placement.dim) / placement.blocks}));
  return at::cat(in_blocks, placement.dim + 1).flatten(placement.dim, placement.dim + 1);
}

Tensors copies_of(const Tensors& tensors) {
  Tensors made;
  for (const Tensor& tensor : tensors) made.push_back(tensor.defined() ? tensor.clone() : tensor);
  return made;
}

// The rank's part, as its type lies in memory.
Tensor part_of(const Tensor& whole, const std::optional<Placement>& placement, const ir::Value* local, int64_t ranks,
               int64_t rank) {
  if (!local || !whole.defined()) return whole;
  Tensor part = whole;
  if (placement && placement->kind == Placement::Kind::Shard) {
    const int64_t dim = placement->dim, blocks = placement->blocks, size = whole.size(dim) / blocks / ranks;
    part = whole.unflatten(dim, {blocks, size * ranks}).narrow(dim + 1, rank * size, size).flatten(dim, dim + 1);
  }
  SFSDP_CHECK(part.sizes().vec() == local->type().shape(), "part ", local->type(), " of ", whole.sizes());
  if (local->type().strides.empty()) return part.contiguous();
  return at::empty_strided(part.sizes(), local->type().strides, part.options()).copy_(part);
}

}  // namespace

void CutProof::prove(const ir::Op& op, const Tensors& operands, const Run& run) {
  const ir::Graph wide = alone(op, /*widen=*/true);
  Tensors doubles;
  for (const Tensor& operand : operands) doubles.push_back(widened(operand));
  Tensors whole;
  try {
    whole = run(*wide.ops().back(), copies_of(doubles));
  } catch (const std::exception&) {
    return;  // no kernel of doubles
  }
  prove_wide(*wide.ops().back(), doubles, whole, run);
}

void CutProof::prove_wide(const ir::Op& op, const Tensors& operands, const Tensors& whole, const Run& run) {
  for (const int64_t ranks : {2, 3})
    for (size_t k = 0; k < operands.size(); ++k) {
      if (!operands[k].defined()) continue;
      for (int64_t d = 0; d < operands[k].dim(); ++d) {
        for (const int64_t blocks : {1, 2, 3}) {
          if (operands[k].size(d) == 0 || operands[k].size(d) % (ranks * blocks) != 0) continue;
          std::vector<Placement> placements(operands.size());
          placements[k] = Placement::shard(d, blocks);
          for (const parallel::OpCut& way : parallel::cuts_of(op, placements, ranks))
            if (way.operands[k] && *way.operands[k] == placements[k]) cut(op, way, ranks, operands, whole, run);
        }
      }
    }
  if (const ir::AccessMap* map = ir::map_of(op.opcode.row()))
    for (const std::vector<size_t>& group : map->linear) tear(op, group, operands, whole, run);
}

void CutProof::cut(const ir::Op& op, const parallel::OpCut& way, int64_t ranks, const Tensors& operands,
                   const Tensors& whole, const Run& run) {
  const std::string how = text_of(way, ranks);
  std::vector<Tensors> made;
  try {
    const ir::Graph graph = local_op(op, way, ranks);
    const ir::Op& local = *graph.ops().back();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Tensors parts;
      for (size_t k = 0; k < operands.size(); ++k)
        parts.push_back(part_of(operands[k], way.operands[k], local.operands[k], ranks, rank));
      made.push_back(run(local, copies_of(parts)));
    }
  } catch (const UserError&) {  // gaps in memory; what is refused is not claimed
    return;
  } catch (const std::exception& error) {
    wrong_.insert(concat(op.opcode, ", ", how, ": ", error.what(), ", as in ", ir::print(op)));
    return;
  }
  ++cuts_[op.opcode];
  for (size_t r = 0; r < whole.size(); ++r) {
    if (!whole[r].defined()) continue;
    Tensors parts;
    for (const Tensors& of_rank : made) parts.push_back(of_rank[r]);
    if (way.results[r].kind == Placement::Kind::Shard) {
      compare(op, how, r, joined(parts, way.results[r]), whole[r]);
    } else if (way.results[r] == kSum) {
      compare(op, how, r, at::stack(parts).sum(0), whole[r]);
    } else {
      for (const Tensor& part : parts) compare(op, how, r, part, whole[r]);
    }
  }
}

void CutProof::tear(const ir::Op& op, const std::vector<size_t>& group, const Tensors& operands, const Tensors& whole,
                    const Run& run) {
  Tensors first = operands, second = operands;
  for (const size_t k : group) {
    if (k >= operands.size() || !operands[k].defined()) continue;
    if (!operands[k].is_floating_point() && !operands[k].is_complex()) return;
    first[k] = at::randn_like(operands[k]);
    second[k] = operands[k] - first[k];
  }
  const Tensors a = run(op, copies_of(first)), b = run(op, copies_of(second));
  ++groups_[op.opcode];
  for (size_t r = 0; r < whole.size(); ++r) {
    if (!whole[r].defined() || !(whole[r].is_floating_point() || whole[r].is_complex())) continue;
    const Tensor finite = at::isfinite(whole[r]);  // infinite summands have no sum
    compare(op, "torn into summands", r, at::where(finite, a[r] + b[r], 0), at::where(finite, whole[r], 0));
  }
}

void CutProof::compare(const ir::Op& op, const std::string& how, size_t result, const Tensor& got,
                       const Tensor& expected) {
  const bool exact = !expected.is_floating_point() && !expected.is_complex();
  const bool same = got.sizes() == expected.sizes() &&
                    (exact ? at::equal(got.to(expected.scalar_type()), expected)
                           : at::allclose(got.to(expected.scalar_type()), expected, 1e-10, 1e-10, /*equal_nan=*/true));
  if (!same)
    wrong_.insert(concat(op.opcode, ", result ", result, ", ", how, ": another result, as in ", ir::print(op)));
}

}  // namespace sfsdp::testing
