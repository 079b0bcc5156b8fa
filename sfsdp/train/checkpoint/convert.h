// SPDX-License-Identifier: BSD-3-Clause
// One checkpoint into another, and what two of them have in common; a block at a time, whatever their size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"

namespace sfsdp::train::checkpoint {

struct ConvertOptions {
  int64_t ranks = 0;  // files to share the tensors out to; 0: as many as there are
  bool model_only = false;
  std::optional<ir::DType> dtype = {};  // of floating parameters; f32, bf16 or f16
};

// Writes the checkpoint `from` (a folder step-N) into the folder of checkpoints `to`, where a run can go on from it.
//   returns: the path of the new one
//   throws:  UserError, as Saver and load do; nothing is visible then
std::string convert(const std::string& from, const std::string& to, const ConvertOptions& options);

// Writes the parameters of the checkpoint `from` as a Hugging Face folder, which must not exist.
//   assets: a folder with the model's config.json, which is taken along with its tokenizer
//   merge:  low-rank adapters are added to the weights; without it there must be none
//   throws: UserError, before anything is written where names and shapes of the parameters, or what the manifest says of
//           the model, are not those of that config
void convert_to_hf(const std::string& from, const std::string& folder, const std::string& assets, ir::DType dtype,
                   bool merge = false);

struct TensorDifference {
  std::string name;
  std::string what;      // "only in the first", "shape", "dtype"; "" for values
  int64_t elements = 0;  // whose bits differ
  double largest = 0;    // |a - b|; infinite where one of them is not a number and the other is
};

// Tensors that differ, in the order of the first; elements are compared as numbers if both are floating.
//   compared: how many tensors both have
std::vector<TensorDifference> differences(const std::string& first, const std::string& second, int64_t* compared);

}  // namespace sfsdp::train::checkpoint
