// SPDX-License-Identifier: BSD-3-Clause
// Ops over a rank's part of a vocabulary (axis= on embedding, cross_entropy_backward and their like): ids and classes that others
// have are passed over. In the dtypes of LibTorch; planned/ has faster ones for some.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "sfsdp/exec/kernels.h"

namespace sfsdp::exec {

// Which ids, or classes, of the whole vocabulary one rank has.
struct OwnClasses {
  int64_t first = 0, count = 0, whole = 0;
  bool has(int64_t id) const { return id >= first && id < first + count; }
  bool is_known(int64_t id) const { return id >= 0 && id < whole; }
  // How many of the `count` rows or classes of its tensors are there: fewer on the last ranks where these do not divide the whole.
  int64_t counted() const { return std::clamp<int64_t>(whole - first, 0, count); }
};
// Each rank of the op's axis= has `count`; without one these are the whole. num_weights= or classes= say how many that is, where the
// ranks do not divide it.
OwnClasses own_classes(const ir::Op& op, const Groups& groups, int64_t count);

// throws: IndexError of LibTorch for an id that the whole vocabulary lacks
void check_ids(std::span<const int64_t> ids, const OwnClasses& own);
// The same for a target that is not ignored. Returns how many are not.
int64_t check_targets(std::span<const int64_t> targets, int64_t ignored, const OwnClasses& own);

// Rows of w, [own.count, width], by id, in `out`, contiguous all; zeros for ids of others.
//   throws: as check_ids
void look_up(const at::Tensor& w, const at::Tensor& ids, const OwnClasses& own, const at::Tensor& out);

// The rows of opset.def say what these compute.
std::vector<at::Tensor> embedding_of_part(const KernelContext& c);
std::vector<at::Tensor> embedding_backward_of_part(const KernelContext& c);
std::vector<at::Tensor> cross_entropy_parts(const KernelContext& c);
std::vector<at::Tensor> cross_entropy_of_parts(const KernelContext& c);
std::vector<at::Tensor> cross_entropy_backward_of_part(const KernelContext& c);

}  // namespace sfsdp::exec
