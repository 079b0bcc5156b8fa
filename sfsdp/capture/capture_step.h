// SPDX-License-Identifier: BSD-3-Clause
// One training step of a module, forward to gradients, as a graph over whole parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/capture/meta_init.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::capture {

// What a loss function returns: the mean, or a sum and how many targets it is over (padding left out); the step then
// divides by the count of all ranks and micro-batches.
struct LossValue {
  at::Tensor value;                 // one floating number
  std::optional<at::Tensor> count;  // one number; nullopt: `value` is a mean
};

using Batch = std::vector<at::Tensor>;

// "i64[8, 128] i64[8, 128]": what a captured graph is valid for. Strides are none of it: tensors are made contiguous.
std::string shape_key(const Batch& batch);
using LossFunction = std::function<LossValue(const Batch&)>;

// A tensor of the module that lives from step to step.
struct StateTensor {
  std::string name;  // path in the module; of a tied parameter the first one
  std::vector<std::string> other_names;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_buffer = false;
  bool trainable = true;
  at::Tensor value;   // real weights that the module came with, else undefined
  InitRecipe recipe;  // else how to make them
};

// Parameters and buffers of `module` in registration order, tied ones once. Real weights are moved out: the module's
// tensors become meta tensors. Throws UserError for a meta parameter that nothing says how to initialise, for a module
// that was taken before, and for two tensors over one memory.
std::vector<StateTensor> take_state(torch::nn::Module& module);

// The same of a module that stays as it is: values are its own tensors, and none where they are gone or never were.
std::vector<StateTensor> look_at_state(torch::nn::Module& module);

// Meta tensors like those of `example` with `factor` times the rows, to capture the step with.
//   batch_dims: which dimension of each tensor has the rows, -1: none; empty: dimension 0 of all
Batch with_more_rows(const Batch& example, const std::vector<int64_t>& batch_dims, int64_t factor);

struct CaptureOptions {
  std::optional<ir::DType> param_dtype;  // dtype in which floating parameters and inputs enter the trace
  std::vector<size_t> uncast = {};       // tensors of the batch that keep their dtype then, such as targets
  bool training = true;                  // false: no backward; the module is in eval mode while traced
};

struct CapturedStep {
  ir::Graph graph;  // outputs: value[, count]; one op `gradient param=…` per parameter that got one
  std::vector<at::Tensor> constants;
};

// Traces `loss` on meta tensors of the batch's shapes. Throws UserError naming op and module path for what cannot be
// captured (.item(), shapes from data, an op without a shape function).
CapturedStep capture_step(torch::nn::Module& module, const std::vector<StateTensor>& state, const LossFunction& loss,
                          const Batch& example, const CaptureOptions& options);

using ForwardFunction = std::function<std::vector<at::Tensor>(const Batch&)>;

// Traces forward alone, in eval mode and without gradients, for another program to run: attention is one op, whatever kernel
// this machine would take. The module is as it was afterwards, with its values.
//   state:   as look_at_state(module)
//   returns: graph.outputs are the tensors of `forward`; a carry for each buffer that it writes
//   throws:  as capture_step, and for a forward that returns no tensor
CapturedStep capture_forward(torch::nn::Module& module, const std::vector<StateTensor>& state,
                             const ForwardFunction& forward, const Batch& example,
                             std::optional<ir::DType> param_dtype);

}  // namespace sfsdp::capture
