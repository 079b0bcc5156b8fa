// SPDX-License-Identifier: BSD-3-Clause
// Which parameters a config.json asks for: whether weights and config are of one model. Torch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_layout.h"

namespace sfsdp::train {

// A tied output may be there or not. Parameters that the config has no place for are lay_out_hf's to refuse.
//   parameters: of our model, names and shapes
//   from, file: what has the parameters, and the config's file; for messages
//   throws:     UserError naming the first parameter that is missing or has another shape
void expect_parameters_of(const HfConfig& config, const std::vector<HfSource>& parameters, const std::string& from,
                          const std::string& file);

// As checkpoints hold them: "4", "1e-05", "true".
std::map<std::string, std::string> texts_of_args(const std::map<std::string, HfConfig::Value>& args);

// "mscale = 0.7, there 0.707" of each argument that the config has otherwise than a model that was built of all of them. Widths that
// the model leaves to a rule are left out.
std::vector<std::string> args_that_differ(const HfConfig& config, const std::map<std::string, HfConfig::Value>& built);

// A model that is to begin with a folder's weights has as many words as these.
//   config: of the folder; built: the model's arguments
//   throws: UserError naming both numbers, and what to do
void expect_vocabulary_of(const HfConfig& config, const std::map<std::string, HfConfig::Value>& built,
                          const std::string& folder);

// What shapes do not show: heads, rotary bases, epsilons.
//   model, args: of the model that has the weights; "" and none where they are not known
//   throws:      UserError naming the first argument that the config has otherwise
void expect_args_of(const HfConfig& config, const std::string& model, const std::map<std::string, std::string>& args,
                    const std::string& from, const std::string& file);

}  // namespace sfsdp::train
