// SPDX-License-Identifier: BSD-3-Clause
// An op that a kernel of sfsdp's own computes (kernels/), as the plan names it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "sfsdp/exec/executor.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

class OwnCall {
 public:
  //   op: must outlive the call, whose results are the op's
  explicit OwnCall(const ir::Op& op);
  //   op: the first of several, whose results the call makes
  OwnCall(const ir::Op& op, std::vector<const ir::Value*> results);
  virtual ~OwnCall() = default;
  OwnCall(const OwnCall&) = delete;
  OwnCall& operator=(const OwnCall&) = delete;

  // Where result `index` is to be written from now on. Returns whether it will be: else run() returns another tensor.
  //   place: of the op's type; must not overlap what the op reads, unless reads_before_it_writes(index) and operands of
  //          the same type lie just there
  bool write_to(size_t index, const at::Tensor& place);
  // Whether element i of result `index` is written after the last read of element i of each operand.
  virtual bool reads_before_it_writes(size_t /*index*/) const { return false; }
  // One tensor per result, until the next run: at its place, or new. The caller may take those that have no place.
  virtual std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) = 0;

 protected:
  const ir::Op& op() const { return op_; }
  // At their places, or new; a token is undefined.
  std::span<at::Tensor> results();

 private:
  virtual bool can_write(size_t /*index*/, const at::Tensor& place) const { return place.is_contiguous(); }

  const ir::Op& op_;
  std::vector<const ir::Value*> results_;
  std::vector<bool> has_place_;    // by result: else it is a new tensor
  std::vector<at::Tensor> given_;  // by result: its place, or the tensor of the latest run
};

// The one number of a tensor.
inline float number_in(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? *tensor.const_data_ptr<float>() : tensor.item<float>();
}

// The tensor, or a copy, with the elements of a row side by side.
at::Tensor by_row(const at::Tensor& tensor);

// Null: the plan names none of sfsdp's kernels.
//   within: the op whose result `op` alone reads (kernels::computed_with), where the call is to compute both; its operands stand
//           where that result does, and what is left of them after all others. Null: `op` alone
std::unique_ptr<OwnCall> make_own_call(const ir::Op& op, const ir::Op* within, const Groups& groups);
// The operands of such a call.
std::vector<const ir::Value*> operands_of_call(const ir::Op& op, const ir::Op* within);

}  // namespace sfsdp::exec
