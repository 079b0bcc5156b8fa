// SPDX-License-Identifier: BSD-3-Clause
// write_pt2(): a module's forward as an archive that Python's torch.export.load opens and runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sfsdp/capture/capture_step.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/exported/write_program.h"

namespace sfsdp {

// The sizes that one may have: from `min` to `max`, or any above where there is no max.
struct SizeRange {
  int64_t min = 1;
  std::optional<int64_t> max = {};
};

struct Pt2Options {
  // Which sizes may vary: for each input a name for each dimension, such as {{"batch", "length"}, {"batch"}}. "", and what
  // is left out, is fixed as the example has it. Dimensions of one name are of one size.
  std::vector<std::vector<std::string>> sizes = {};
  std::map<std::string, SizeRange> ranges = {};  // of some of those names
  std::vector<std::string> inputs = {};          // names of the inputs; {}: input_0, input_1, …
  std::optional<c10::ScalarType> dtype =
      {};  // of floating parameters, and floating inputs are cast to it; unset: theirs
  // Where values come from, whole tensors by their path, as [&](const auto& path) { return step.gather(path); } of a trained
  // Step has them; unset: the module's own.
  std::function<at::Tensor(const std::string& path)> values = {};
};

namespace step {

struct CapturedProgram {
  exported::Contents contents;
  std::vector<at::Tensor> constants;  // by the number in their names, constant_0, …
};

// Captures forward at five sizes of each kind, on meta tensors: a model of any size takes no memory.
//   state: as capture::look_at_state(module)
CapturedProgram capture_program(torch::nn::Module& module, const std::vector<capture::StateTensor>& state,
                                const capture::ForwardFunction& forward, const capture::Batch& example,
                                const Pt2Options& options);

// Writes the archive to a new file; with an empty path it is only asked for values. Constants are the program's; parameters
// and buffers come from `values`.
void write_archive(const CapturedProgram& program, const std::string& path, const exported::ReadElements& values);

void write_pt2(torch::nn::Module& module, const capture::ForwardFunction& forward, const capture::Batch& example,
               const std::string& path, const Pt2Options& options);

}  // namespace step

// Writes the module's forward, in eval mode, with its parameters and buffers: torch.export.load(path).module()(input, …) runs
// it. Floating inputs and constants of the forward become part of the graph. The module stays as it is; one that was
// compiled has no values left, so that `options.values` must have them. With several ranks all of them call this, as they
// do gather(); an empty path on all but one has only that one write. Ranks that are threads give it a module each.
//   forward: (model, batch) -> a tensor, or a vector of tensors
//   example: its shapes and dtypes are read, values are not
//   throws:  UserError naming op, module path and numbers for what cannot be captured, or depends on sizes in a way that no
//            product and sum tells; for a path that is taken
template <class Model, class Forward>
void write_pt2(Model model, Forward forward, const capture::Batch& example, const std::string& path,
               const Pt2Options& options = {}) {
  std::shared_ptr<torch::nn::Module> module;
  if constexpr (requires { model.ptr(); })
    module = model.ptr();
  else
    module = model;
  const auto tensors = [&](const capture::Batch& batch) -> std::vector<at::Tensor> {
    if constexpr (std::convertible_to<std::invoke_result_t<Forward&, Model&, const capture::Batch&>, at::Tensor>)
      return {forward(model, batch)};
    else
      return forward(model, batch);
  };
  step::write_pt2(*module, tensors, example, path, options);
}

}  // namespace sfsdp
