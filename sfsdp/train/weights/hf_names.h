// SPDX-License-Identifier: BSD-3-Clause
// Where a parameter of our models lies in a Hugging Face checkpoint, and how its rows are ordered there.
// Source: TorchTitan models/llama3/state_dict_adapter.py; the module names of Hugging Face's models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/train/weights/hf_config.h"

namespace sfsdp::train {

struct HfTensor {
  enum Transform : uint8_t {
    None,
    // q and k, with their biases and norms: a head's rows are rotary pairs side by side here, first halves then second
    // halves there. A norm's weight, which all heads share, is one head.
    PermuteHeads,
    Transpose,  // Conv1D: [in, out] there, [out, in] here
  };
  std::string hf_name;  // where there are slices, with {} for the number of one
  Transform transform = None;
  int64_t heads = 0;       // of PermuteHeads
  std::string other_name;  // tried when hf_name is absent: GPT-2 base files lack "transformer."; "" if there is none
  // Above 0: as many tensors, the parts of our parameter along its first dimension, as experts are stacked here.
  int64_t slices = 0;
};

// The tensors: the one itself, or as many as there are slices.
std::vector<HfTensor> tensors_of(const HfTensor& tensor);

// Whether a buffer of our models is a tensor of checkpoints: what chooses experts is no parameter, and is not trained.
bool is_saved_buffer(std::string_view our_name);

// None if the model has no such parameter. A tied output is the embedding's tensor.
//   our_name: as in our module, "layers.3.attention.wq.weight" or "h.3.attn.c_attn.weight"; a parameter or a saved buffer
std::optional<HfTensor> hf_tensor_of(std::string_view model, std::string_view our_name, const HfConfig& config);

// Our row `row` of a parameter of `rows` rows is which row of the checkpoint's tensor; its column for Transpose.
// PermuteHeads needs rows = heads * head width, the width even.
int64_t source_row(const HfTensor& tensor, int64_t rows, int64_t row);

}  // namespace sfsdp::train
