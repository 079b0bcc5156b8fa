// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/localise.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/ranges.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/mesh/model_axis.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement, ir::Type;

// The dimensions in the same order in memory, without gaps; nullopt: those of `type` have some.
std::optional<std::vector<int64_t>> dense_strides(const Type& type, const std::vector<int64_t>& sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t d) { return type.strides[d]; });
  std::vector<int64_t> strides(sizes.size());
  int64_t whole = 1, part = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    if (type.dims[d].size > 1 && type.strides[d] != whole) return std::nullopt;
    strides[d] = part;
    whole *= type.dims[d].size;
    part *= sizes[d];
  }
  return strides;
}

// Attributes that say the shape of the result, or how many samples there are.
void set_sizes(Op& op, const std::vector<int64_t>& shape) {
  if (op.is("aten.native_group_norm", "aten.native_group_norm_backward")) op.attrs["N"] = shape.at(0);
  for (const char* key : {"size", "input_size", "input_sizes"})
    if (const auto* sizes = op.find_attr<std::vector<int64_t>>(key); sizes && sizes->size() == shape.size())
      op.attrs[key] = shape;
}

// LibTorch's kernel puts gaps between rows that are no multiple of 16 bytes. The whole's are one: it was captured without gaps.
void check_row_bytes(const Op& op, const Type& whole, const Type& part, std::string_view axis) {
  if (!op.is("aten._grouped_mm")) return;
  const int64_t multiple = 16 / ir::size_in_bytes(part.dtype), numbers = part.dims.back().size;
  if (whole.dims.back().size % multiple != 0 || numbers % multiple == 0) return;
  throw UserError(concat(verb_of(axis), ir::opcode_at(op), " makes rows of ", numbers,
                         " numbers on each rank\n  expected a multiple of ", multiple,
                         ": experts that are wider, or a smaller ", axis));
}

void set_strides(const Op& op, int result, const Type& whole, Type& part, std::string_view axis) {
  check_row_bytes(op, whole, part, axis);
  part.strides.clear();
  if (whole.strides.empty()) return;
  const int aliased = ir::aliased_operand(op);
  std::optional<std::vector<int64_t>> strides;
  if (aliased >= 0) {
    const Type& operand = op.operands[static_cast<size_t>(aliased)]->type();
    if (const auto geometry = ir::view_geometry(op, result, {ir::strides_of(operand), 0})) strides = geometry->strides;
  } else {
    strides = dense_strides(whole, part.shape());
  }
  if (!strides)
    throw UserError(concat(verb_of(axis), ir::opcode_at(op), " makes %", op.result(result)->name(), ", ", whole,
                           ", which leaves gaps in memory\n  expected a tensor without gaps; call contiguous() on it"));
  if (!ir::same_places(part, *strides)) part.strides = *strides;
}

// A view of what was gathered, which lies in memory without the gaps of what it was.
void follow_operand(Op& op) {
  const int aliased = ir::aliased_operand(op);
  if (aliased < 0) return;
  const std::vector<int64_t> strides = ir::strides_of(op.operands[static_cast<size_t>(aliased)]->type());
  for (size_t r = 0; r < op.results().size(); ++r) {
    Type type = op.results()[r]->type();
    const auto geometry = ir::view_geometry(op, static_cast<int>(r), {strides, 0});
    if (type.strides.empty() || !geometry || ir::same_places(type, geometry->strides)) continue;
    type.strides.clear();
    if (!ir::same_places(type, geometry->strides)) type.strides = geometry->strides;
    op.results()[r]->set_type(type);
  }
}

}  // namespace

std::string_view verb_of(std::string_view axis) {
  if (is_expert_axis(axis)) return "expert_parallel: ";
  return is_sequence_axis(axis) ? "context_parallel: " : "tensor_parallel: ";
}

void resize(Op& op, const std::vector<Type>& whole, std::string_view axis) {
  set_sizes(op, op.result()->type().shape());
  ir::shrink_ranges(op, whole[0]);
  for (size_t r = 0; r < whole.size(); ++r) {
    Type type = op.results()[r]->type();
    set_strides(op, static_cast<int>(r), whole[r], type, axis);
    op.results()[r]->set_type(type);
  }
}

void localise(ir::Graph& graph, const MeshAxis& axis, const Placements& placements, const Rooms& rooms) {
  for (const auto& op : graph.ops()) {
    bool any = false;
    std::vector<Type> whole;
    for (const auto& result : op->results()) {
      Type type = result->type();
      whole.push_back(type);
      const auto found = placements.find(result.get());
      if (found == placements.end()) continue;
      const Placement& placement = found->second;
      if (placement.kind == Placement::Kind::Shard) {
        type.dims[static_cast<size_t>(placement.dim)].cut(axis.name, axis.size, placement.blocks);
        any = true;
      } else if (placement.kind == Placement::Kind::Rows) {
        type.placements.push_back({Placement::rows(placement.dim), {axis.name}});
        if (const auto room = rooms.find(placement.blocks); room != rooms.end()) {
          type.dims[static_cast<size_t>(placement.dim)].size = room->second;
          any = true;
        }
      } else {
        type.placements.push_back({placement, {axis.name}});
      }
      result->set_type(type);
    }
    if (any)
      resize(*op, whole, axis.name);
    else
      follow_operand(*op);
  }
}

}  // namespace sfsdp::parallel
