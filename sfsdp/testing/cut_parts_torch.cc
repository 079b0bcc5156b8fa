// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/cut_parts_torch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "sfsdp/base/check.h"

namespace sfsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// The numbers one after the other: real and imaginary parts of complex ones.
Tensor numbers_of(const Tensor& tensor) {
  const Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.to(at::kDouble).contiguous();
}

std::span<const double> span_of(const Tensor& numbers) {
  return {numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())};
}

size_t axis_of(std::span<const MeshAxis> mesh, const std::string& name) {
  const auto found = std::ranges::find(mesh, name, &MeshAxis::name);
  SFSDP_CHECK(found != mesh.end(), "no axis ", name);
  return static_cast<size_t>(found - mesh.begin());
}

// Parts of the ranges of a dimension, joined range by range.
Tensor joined(const Tensors& parts, int64_t dim, int64_t blocks) {
  Tensors in_blocks;
  SFSDP_CHECK(blocks > 0, "a dimension cut in ", blocks, " ranges");
  for (const Tensor& part : parts) in_blocks.push_back(part.unflatten(dim, {blocks, part.size(dim) / blocks}));
  return at::cat(in_blocks, dim + 1).flatten(dim, dim + 1);
}

class Gathering {
 public:
  Gathering(const Tensors& of_rank, const ir::Type& type, std::span<const MeshAxis> mesh, double within)
      : of_rank_(of_rank), type_(type), mesh_(mesh), within_(within), rank_(mesh.size()), order_(mesh.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (const ir::Dim& dim : type.dims)  // what is within is joined first
      for (size_t i = 0; i < dim.split.size(); ++i)
        for (size_t j = i + 1; j < dim.split.size(); ++j)
          put_before(axis_of(mesh, dim.split[i]), axis_of(mesh, dim.split[j]));
  }

  Gathered all() {
    made_.value = over(0);
    return made_;
  }

 private:
  void put_before(size_t outer, size_t inner) {
    const auto at = std::ranges::find(order_, outer), within = std::ranges::find(order_, inner);
    if (at > within) std::iter_swap(at, within);
  }

  Tensor over(size_t depth) {
    if (depth == order_.size()) {
      int64_t number = 0;
      for (size_t a = 0; a < mesh_.size(); ++a) number = number * mesh_[a].size + rank_[a];
      return of_rank_[static_cast<size_t>(number)];
    }
    const size_t axis = order_[depth];
    Tensors parts;
    for (rank_[axis] = 0; rank_[axis] < mesh_[axis].size; ++rank_[axis]) parts.push_back(over(depth + 1));
    return together(parts, mesh_[axis].name);
  }

  Tensor together(const Tensors& parts, const std::string& axis) {
    const ir::Placement placement = type_.placement_on(axis);
    if (placement.kind == ir::Placement::Kind::Shard) return joined(parts, placement.dim, placement.blocks);
    if (placement.kind == ir::Placement::Kind::Partial) {
      double sum = 0;
      for (const Tensor& part : parts) sum += largest(part);
      made_.scale = std::max(made_.scale, sum);
      return at::stack(parts).sum(0);
    }
    for (const Tensor& part : parts) made_.alike &= distance(part, parts[0], largest(parts[0])) <= within_;
    return parts[0];
  }

  const Tensors& of_rank_;
  const ir::Type& type_;
  const std::span<const MeshAxis> mesh_;
  const double within_;
  Coordinates rank_;
  std::vector<size_t> order_;  // of axes, outer first
  Gathered made_;
};

}  // namespace

bool has_summands(const Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

std::vector<Coordinates> all_ranks(std::span<const MeshAxis> mesh) {
  std::vector<Coordinates> ranks = {{}};
  for (const MeshAxis& axis : mesh) {
    std::vector<Coordinates> further;
    for (const Coordinates& rank : ranks)
      for (int64_t i = 0; i < axis.size; ++i) {
        further.push_back(rank);
        further.back().push_back(i);
      }
    ranks = std::move(further);
  }
  return ranks;
}

Tensor part_of(const Tensor& whole, const ir::Type& type, std::span<const MeshAxis> mesh, const Coordinates& rank) {
  Tensor part = whole;
  for (size_t d = 0; d < type.dims.size(); ++d)
    for (size_t i = 0; i < type.dims[d].split.size(); ++i) {
      const size_t axis = axis_of(mesh, type.dims[d].split[i]);
      const auto dim = static_cast<int64_t>(d);
      const int64_t blocks = type.dims[d].blocks_of(i);
      SFSDP_CHECK(blocks > 0 && part.size(dim) % (blocks * mesh[axis].size) == 0, type, " of ", whole.sizes());
      const int64_t size = part.size(dim) / blocks / mesh[axis].size;
      part = part.unflatten(dim, {blocks, size * mesh[axis].size})
                 .narrow(dim + 1, rank[axis] * size, size)
                 .flatten(dim, dim + 1);
    }
  SFSDP_CHECK(part.sizes().vec() == type.shape(), "part ", type, " of ", whole.sizes());
  // What is expanded reads an element at several places, where no part could be written.
  if (type.strides.empty() || std::ranges::find(type.strides, 0) != type.strides.end()) return part.contiguous();
  return at::empty_strided(part.sizes(), type.strides, part.options()).copy_(part);
}

Tensors summands_of(const Tensor& tensor, int64_t count) {
  Tensors summands;
  Tensor left = tensor;
  for (int64_t i = 1; i < count; ++i) {
    summands.push_back(at::randn_like(tensor));
    left = left - summands.back();
  }
  summands.push_back(left);
  return summands;
}

Gathered gathered(const Tensors& of_rank, const ir::Type& type, std::span<const MeshAxis> mesh, double within) {
  return Gathering(of_rank, type, mesh, within).all();
}

double largest(const Tensor& tensor) {
  double most = 0;
  if (!has_summands(tensor)) return most;
  const Tensor numbers = numbers_of(tensor);
  for (const double x : span_of(numbers))
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

double distance(const Tensor& a, const Tensor& b, double scale) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  if (a.sizes() != b.sizes()) return kFar;
  if (!has_summands(a) || !has_summands(b)) return at::equal(a.to(b.scalar_type()), b) ? 0 : kFar;
  const Tensor left = numbers_of(a), right = numbers_of(b);
  if (left.sizes() != right.sizes()) return kFar;
  const std::span<const double> x = span_of(left), y = span_of(right);
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!std::isfinite(x[i]) || !std::isfinite(y[i]) || scale == 0) return kFar;
    most = std::max(most, std::abs(x[i] - y[i]) / scale);
  }
  return most;
}

}  // namespace sfsdp::testing
