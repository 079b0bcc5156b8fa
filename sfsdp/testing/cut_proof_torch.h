// SPDX-License-Identifier: BSD-3-Clause
// What rows say of how ops may be cut (parallel/op_cuts.h) and in which operands they are linear, held against LibTorch's
// kernels: operands are cut, or torn into summands of random signs, the op runs on each part, and what the parts make together
// must be what the whole makes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::testing {

// Grows with each call.
class CutProof {
 public:
  using Run = std::function<std::vector<at::Tensor>(const ir::Op& op, const std::vector<at::Tensor>& operands)>;

  // Every dimension of every operand over 2 and 3 ranks, as one range and in 2 and 3 blocks, and every group of operands that the row calls linear; in double
  // precision, for which an op has to have a kernel.
  void prove(const ir::Op& op, const std::vector<at::Tensor>& operands, const Run& run);

  const std::set<std::string>& wrong() const { return wrong_; }
  // By opcode, how many ways were run; by opcode, how many groups.
  const std::map<std::string, int>& cuts() const { return cuts_; }
  const std::map<std::string, int>& groups() const { return groups_; }

 private:
  using Tensors = std::vector<at::Tensor>;
  void prove_wide(const ir::Op& op, const Tensors& operands, const Tensors& whole, const Run& run);
  void cut(const ir::Op& op, const parallel::OpCut& way, int64_t ranks, const Tensors& operands, const Tensors& whole,
           const Run& run);
  void tear(const ir::Op& op, const std::vector<size_t>& group, const Tensors& operands, const Tensors& whole,
            const Run& run);
  void compare(const ir::Op& op, const std::string& how, size_t result, const at::Tensor& got,
               const at::Tensor& expected);

  std::set<std::string> wrong_;
  std::map<std::string, int> cuts_, groups_;
};

}  // namespace sfsdp::testing
