// SPDX-License-Identifier: BSD-3-Clause
// A canonical op by the ops of LibTorch that it stands for: to the bit what the reference executor has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/products.h"

namespace sfsdp::exec {

class CanonicalCall {
 public:
  //   op: must outlive the call
  CanonicalCall(const ir::Op& op, const Groups& groups, Rng rng);

  // Where result `index` is to be written from now on. Returns whether it will be: else run() returns another tensor.
  //   place: of the op's type; must not overlap what the op reads
  bool write_to(size_t index, const at::Tensor& place);

  // From now on these operands are what run() is given, where they are defined: views of them are made once. After all write_to.
  void bind(std::span<const at::Tensor> operands);

  // As OpCall::run, until the next run; the caller may take results that have no place. A result that is of use to backward in another
  // form than LibTorch's (left_for_backward) is undefined: the op that would read it makes LibTorch's form again.
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars, DataPosition position);

 private:
  struct Step {
    OpCall call;
    std::vector<size_t> operands;  // places in values_; kAbsent
    std::vector<size_t> results;
    std::vector<size_t> dead_after;
    at::Tensor out;                               // what its one result is written to; undefined: a new tensor
    ProductKernel product = ProductKernel::Aten;  // that computes it instead of its own call
    bool is_mm = false;                           // which is called without the dispatcher's list of arguments
    std::vector<at::Tensor> in = {};              // by operand: what stays, and while it runs the others
    std::vector<size_t> late = {};                // operands that do not stay
  };
  // After which step a value is not read any more.
  void find_last_readers();
  // What step's operands are, as far as they stay.
  void set_operands(Step& step);
  // What each run has to do about values that do not stay.
  void list_late();
  std::shared_ptr<const ir::Graph> graph_;
  std::vector<Step> steps_;
  std::vector<size_t> inputs_;    // by operand of the op
  std::vector<size_t> returned_;  // by result
  std::vector<at::Tensor> values_;
  std::vector<bool> stays_;          // by value: it is the same tensor in each run
  std::vector<at::Tensor> results_;  // of the latest run
  std::vector<bool> placed_;         // by result: the caller leaves it here
  // Operands, results and values that each run fills in.
  std::vector<size_t> late_inputs_, late_results_, late_values_;
};

}  // namespace sfsdp::exec
