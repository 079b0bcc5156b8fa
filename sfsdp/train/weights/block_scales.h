// SPDX-License-Identifier: BSD-3-Clause
// Weights in float8 with a scale for each block of a matrix, as DeepSeek-V3's and Qwen3's FP8 folders have them: a number is
// its float8 times the scale of its block, in float32. Torch-free.
// Source: DeepSeek-V3's inference/kernel.py (weight_dequant); transformers' FineGrainedFP8Config.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_copy.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

// The tensor NAME_scale_inv of the float8 matrix NAME: [rows, columns] of it over those of a block, rounded up. Null: `view`
// holds its numbers as they are, in a dtype of weights.
//   throws: UserError naming file, tensor, expected and got: no dtype of weights; float8 without scales, or of which
//           config.json does not say the blocks; no matrix; scales of another shape or dtype
const TensorView* find_scales(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const HfConfig& config);

// A float8 matrix as the float32 numbers that it stands for. What is asked for is read of it, no more. The scales, of
// which a block of 128 x 128 has one, are read whole; their dtype is F32, BF16, F16 or F8_E8M0 (powers of two).
class ScaledMatrix {
 public:
  // view, scales: as find_scales has them; they outlive this
  //   throws: UserError naming file, tensor and index of a scale that is 0, negative, infinite or no number
  ScaledMatrix(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const TensorView& scales,
               const WeightBlock& block);
  // Fills `out` with bytes [first, first + out.size()) of the matrix in float32. Both are multiples of 4. From any thread.
  void read(uint64_t first, std::span<std::byte> out) const;

 private:
  const TensorView& view_;
  WeightBlock block_;
  int64_t columns_, columns_of_scales_;
  std::vector<float> scales_;
};

// What copy_from_hf reads of a tensor of the folder, and in which dtype. `view`, `scales` and the files outlive it.
struct HfNumbers {
  ir::DType dtype;
  HfRead read;
};
//   throws: UserError as ScaledMatrix does
HfNumbers numbers_of(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const TensorView* scales,
                     const HfConfig& config);

}  // namespace sfsdp::train
