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
  //   evaluation: what eval mode runs instead: the same model, with inputs, parameters and buffers that `program` has too,
  //   by name; null: `program`, with dropout off and running statistics read
  //   throws: UserError for an op that is not trained, a name that is no path, constants that the file is too short for, and
  //   where `evaluation` is another model
  explicit ExportedModuleImpl(std::shared_ptr<const exported::Program> program, std::optional<ir::DType> stored = {},
                              std::shared_ptr<const exported::Program> evaluation = nullptr);

  // inputs: one for each of program().inputs. Returns the user's outputs by place in output_names(): undefined where one
  // is None or a number.
  //   throws: UserError naming input, expected and got, if sizes or dtype are not those that the graph was exported for
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  const exported::Program& program() const { return *training_.program; }
  // In the mode that the module is in.
  const std::vector<std::string>& output_names() const { return running().output_names; }

 private:
  struct Side {
    struct Write {
      size_t output, place;  // of the graph; in `state`
    };
    std::shared_ptr<const exported::Program> program;
    ExportedGraph graph;
    std::vector<at::Tensor> state = {};  // by place in program->state
    std::vector<size_t> inputs = {};     // of the training program's inputs, for each of its own
    std::vector<Write> writes = {};
    std::vector<std::string> output_names = {};
  };
  static Side side_of(std::shared_ptr<const exported::Program> program);
  const Side& running() const { return evaluation_ && !is_training() ? *evaluation_ : training_; }
  void register_state(const exported::StateTensor& tensor, size_t place);
  void share_state();
  torch::nn::Module& module_of(const std::string& path);

  std::optional<ir::DType> stored_;
  Side training_;
  std::optional<Side> evaluation_;
};
TORCH_MODULE(ExportedModule);

}  // namespace sfsdp::models
