// SPDX-License-Identifier: BSD-3-Clause
// An ordinary torch::nn::Module made of an archive of torch.export: parameters and buffers under their Python names, and a
// forward that calls the graph's ops. Whatever is done with a module can be done with it; nothing else knows of archives.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/exported/program.h"
#include "sfsdp/models/exported/exported_graph.h"

namespace sfsdp::models {

class ExportedModuleImpl : public torch::nn::Module {
 public:
  // Parameters and buffers begin as zeros: whoever starts a run reads their values from the archive, each rank its part.
  // Constant tensors are read here. A tensor under two names is tied.
  //   stored: dtype that floating parameters are kept in; none: that of the archive. forward must meet the archive's
  //   throws: UserError for an op that is not trained, a name that is no path, constants that the file is too short for
  explicit ExportedModuleImpl(std::shared_ptr<const exported::Program> program, std::optional<ir::DType> stored = {});

  // inputs: one for each of program().inputs. Returns the user's outputs by place in output_names(): undefined where one
  // is None or a number.
  //   throws: UserError naming input, expected and got, if sizes or dtype are not those that the graph was exported for
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  const exported::Program& program() const { return *program_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

 private:
  void register_state(const exported::StateTensor& tensor, size_t place);
  torch::nn::Module& module_of(const std::string& path);
  void check_inputs(const std::vector<at::Tensor>& inputs) const;

  std::shared_ptr<const exported::Program> program_;
  std::optional<ir::DType> stored_;
  ExportedGraph graph_;
  std::vector<at::Tensor> state_;  // by place in program().state
  std::vector<std::string> output_names_;
};
TORCH_MODULE(ExportedModule);

}  // namespace sfsdp::models
