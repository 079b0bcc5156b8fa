// SPDX-License-Identifier: BSD-3-Clause
// Low-rank adapters that PEFT has saved, to begin a run with: which modules they are of, and their values. Torch-free.
// Source: PEFT's tuners/lora/config.py and utils/save_and_load.py.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/plan/storage_layout.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

// What adapter_config.json says.
struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> targets =
      {};  // names or ends of module paths; empty: a pattern or a word, which are not compared
  std::vector<std::string> notices = {};  // what it asks for and is not done, a line each
};

//   throws: UserError naming the file, the key, and what to do: what our adapters do not compute is refused
PeftConfig parse_peft_config(std::string_view text, const std::string& file);

class PeftAdapter {
 public:
  // Opens FOLDER/adapter_config.json and adapter_model.safetensors.
  //   throws: UserError naming file, tensor, expected and got: a tensor that is no lora_A or lora_B of such a module, or has
  //           another rank or a dtype that is not floating; one without the other; targets and tensors that do not agree
  explicit PeftAdapter(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const PeftConfig& config() const { return config_; }
  size_t size() const { return modules_.size(); }

  // Finds the module of ours that each one of the file is.
  //   ours:    paths of all our modules with a matrix
  //   hf:      of a model of models/, whose modules have other names in Python; null: they have the same
  //   returns: the paths of those with an adapter
  //   throws:  UserError naming a module that the model has not
  std::vector<std::string> match(const std::vector<std::string>& ours, const HfConfig* hf);

  // Elements `box` of one of our adapters' parameters, in row-major order, converted.
  //   name, shape: of the whole parameter: "layers.0.attention.wq.lora_B.weight"
  //   throws:      UserError naming the tensor: of another shape, or with values that are not finite or too large
  void read(const std::string& name, const std::vector<int64_t>& shape, const plan::Box& box, std::span<std::byte> out,
            ir::DType dtype) const;

 private:
  struct Module {
    std::string path;  // in Python
    HfTensor rows;     // how the rows of B are ordered there
  };
  std::string folder_;
  PeftConfig config_;
  SafetensorsFile file_;
  std::set<std::string, std::less<>> modules_;          // in Python
  std::map<std::string, Module, std::less<>> matched_;  // by our path
};

}  // namespace sfsdp::train
