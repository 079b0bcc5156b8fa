// SPDX-License-Identifier: BSD-3-Clause
// Where every tensor of a Hugging Face folder lies, byte for byte, from names and shapes alone: known before anything is
// written, so each rank writes its own ranges and nothing is gathered. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/ir/type.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_names.h"

namespace sfsdp::train {

// A parameter of our model, or a saved buffer.
struct HfSource {
  std::string name;
  std::vector<int64_t> shape;
};

struct HfPlaced {
  HfTensor tensor;             // its name there, and how its rows are ordered
  HfSource source;             // ours; of a slice the shape is its own
  std::vector<int64_t> shape;  // there
  ir::DType dtype = ir::DType::f32;
  size_t file = 0;     // in HfLayout::files
  uint64_t begin = 0;  // of its first byte in the file
  uint64_t bytes = 0;
  int64_t slice = -1;  // of the source along its first dimension; -1: it is all of it
};

struct HfFile {
  std::string name;    // "model-00002-of-00030.safetensors", or "model.safetensors" if it is the only one
  std::string header;  // its first bytes: length, JSON, blanks up to a multiple of 8
  uint64_t bytes = 0;  // of the whole file
};

struct HfLayout {
  std::vector<HfPlaced> tensors;  // in the order of files and bytes; a tied weight once
  std::vector<HfFile> files;
  uint64_t tensor_bytes = 0;
  std::string index;  // model.safetensors.index.json; "" for one file

  const HfPlaced* find(const std::string& source) const;  // by our name; of slices the first
  uint64_t largest_tensor() const;                        // bytes
};

inline constexpr uint64_t kHfFileBytes = 5'000'000'000;  // transformers' own max_shard_size

// Files are filled in the order of `sources`. A new one begins where the next tensor would take the file's tensors above
// max_file_bytes; a larger tensor has a file of its own. Source: huggingface_hub's split_torch_state_dict_into_shards.
//   dtype:  f32, bf16 or f16; saved buffers stay in f32, as transformers keeps them
//   throws: UserError naming a source that the architecture has no tensor for
HfLayout lay_out_hf(const std::vector<HfSource>& sources, const HfConfig& config, ir::DType dtype,
                    uint64_t max_file_bytes = kHfFileBytes);

}  // namespace sfsdp::train
