// SPDX-License-Identifier: BSD-3-Clause
// Tensors as ranks of one or two axes have them, read off the types that a plan gives: what each rank holds, and what all of
// them hold together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/type.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::testing {

// A rank by its place on each axis.
using Coordinates = std::vector<int64_t>;
// All ranks in the order of their numbers: the last axis counts first.
std::vector<Coordinates> all_ranks(std::span<const MeshAxis> mesh);

// The rank's part, as its type says where it lies: the axes of a dimension outer first, in memory by the strides.
//   whole: all of the value, or all of a summand of it
//   type:  the rank's own
at::Tensor part_of(const at::Tensor& whole, const ir::Type& type, std::span<const MeshAxis> mesh,
                   const Coordinates& rank);

// Floating or complex numbers.
bool has_summands(const at::Tensor& tensor);
// `count` tensors of normal numbers, so of both signs, that add up to the tensor.
std::vector<at::Tensor> summands_of(const at::Tensor& tensor, int64_t count);

// What all ranks' values make together: parts joined, summands added up.
struct Gathered {
  at::Tensor value;
  double scale = 0;   // where summands were added, of an element what their magnitudes add up to, at most
  bool alike = true;  // what the type says to be whole is the same on all ranks
};
// of_rank: by all_ranks(). within: how far apart numbers may be, in parts of the largest, that are the same.
Gathered gathered(const std::vector<at::Tensor>& of_rank, const ir::Type& type, std::span<const MeshAxis> mesh,
                  double within);

// The largest magnitude among finite numbers; 0 where there are none.
double largest(const at::Tensor& tensor);
// How far the numbers are apart, in parts of `scale`: 0 where they have the same bits, infinite where one is no number and the other
// is, or the sizes differ. What is no floating number has to be the same.
double distance(const at::Tensor& a, const at::Tensor& b, double scale);

}  // namespace sfsdp::testing
