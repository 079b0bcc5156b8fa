// SPDX-License-Identifier: BSD-3-Clause
// Starts a step from the weights of a Hugging Face checkpoint, and writes its weights as one.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/step/step.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_folder.h"
#include "sfsdp/train/weights/hf_layout.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

// Copies this rank's part of every parameter into the step, converted to the parameter's dtype. No other bytes of the
// files are read, and each thread takes 256 KiB. Not a collective call. Optimizer state stays as it is.
//   throws: UserError naming folder, tensor, expected and got: one is missing, has another shape or a dtype we lack, is none
//           of the model's (hf_unread.h), or holds a value that is not finite; a file that is cut while it is read
void load_hf_weights(Step& step, const SafetensorsCheckpoint& checkpoint, const HfConfig& config);

// Name and shape of each parameter, in the program's order.
std::vector<HfSource> hf_sources(const Program& program);

struct HfExportOptions {
  ir::DType dtype = ir::DType::f32;  // f32, bf16 or f16
  uint64_t max_file_bytes = kHfFileBytes;
  size_t staging_bytes = kHfStagingBytes;  // the most that a rank takes beyond its shards
  int64_t max_positions = 2048;            // max_position_embeddings, where hf_assets has none
  // A folder with config.json and a tokenizer's files, which are taken along, or "". Only rank 0 reads it.
  std::string assets = {};
};

struct HfExported {
  uint64_t tensor_bytes = 0;
  size_t files = 0;
  size_t staging_bytes = 0;  // that this rank took
  std::string set_aside;     // where what an export that died had left is now; rank 0's
};

// Writes a folder that transformers loads: every rank its own parts, so nothing is gathered. All ranks must see the
// folder. A collective call; `world` is null for one rank.
//   config:  of the model: hf_config_of_model, or that of the folder it came from
//   folder:  must not exist, or be empty. It appears under its name once all of it is on disk
//   throws:  UserError on all ranks, naming the first one that could not go on and its reason; CommError where one is lost.
//            A rank whose disk is slow is not
HfExported export_hf_folder(const Step& step, comm::CommWorld* world, const HfConfig& config, const std::string& folder,
                            const HfExportOptions& options = {});

}  // namespace sfsdp::train
