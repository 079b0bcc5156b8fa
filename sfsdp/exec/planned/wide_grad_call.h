// SPDX-License-Identifier: BSD-3-Clause
// The gradient of a weight in float32, of operands in bfloat16: linear_dw or embedding_backward and the cast of what it makes, in
// one. The narrow gradient of all of the weight lies nowhere.
#pragma once

#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/exec/vocabulary.h"

namespace sfsdp::exec {

// Products are LibTorch's, of some rows of the result at a time, rounded to bfloat16 as without the cast.
class WideProductCall final : public OwnCall {
 public:
  using OwnCall::OwnCall;  // of the cast
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;
};

// embedding with axis=, written where the plan has it.
class EmbeddingPartCall final : public OwnCall {
 public:
  //   groups: of its axis=
  EmbeddingPartCall(const ir::Op& op, const Groups& groups);
  // throws: IndexError of LibTorch for an id that is no row of the whole table
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  OwnClasses own_;
};

// By the kernel of kernels/embedding.h.
class EmbeddingGradCall final : public OwnCall {
 public:
  //   op:        embedding_backward, or a cast of what it makes
  //   embedding: embedding_backward
  //   groups:    of its axis=
  EmbeddingGradCall(const ir::Op& op, const ir::Op& embedding, const Groups& groups);
  // throws: IndexError of LibTorch for an id that is no row of the weight
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  int64_t padding_;
  OwnClasses own_;
  std::vector<int64_t> order_;
};

}  // namespace sfsdp::exec
