// SPDX-License-Identifier: BSD-3-Clause
// The low-rank adapters that a checkpoint holds: read, added to the weights beside them, written as PEFT's. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/train/checkpoint/stretch_reader.h"

namespace sfsdp::train {

inline constexpr const char* kLoraAlpha = "lora.alpha";  // among the model's arguments in a manifest

struct AdapterValues {
  std::string path;  // of the module: "layers.0.q_proj"
  int64_t in = 0, out = 0, rank = 0;
  std::vector<float> a, b;  // [rank, in] and [out, rank], row-major
};

class CheckpointAdapters {
 public:
  // Reads all of them: some thousandths of the model.
  //   throws: UserError for a checkpoint whose adapters are not whole, or that does not say their alpha
  explicit CheckpointAdapters(checkpoint::StretchReader& reader);

  bool empty() const { return by_path_.empty(); }
  double alpha() const { return alpha_; }
  const std::map<std::string, AdapterValues>& by_path() const { return by_path_; }

  // Null: `weight` ("layers.0.q_proj.weight") has no adapter.
  const AdapterValues* beside(std::string_view weight) const;
  // Adds alpha / rank · B·A to elements [begin, begin + weights.size()) of the weight beside `adapter`, in row-major order.
  void add_to(const AdapterValues& adapter, int64_t begin, std::span<float> weights) const;

 private:
  double alpha_ = 1;
  std::map<std::string, AdapterValues> by_path_;
};

// As StretchReader::read, with adapters added where a weight has one.
class MergedReader {
 public:
  //   merge:  false: there must be no adapters
  //   throws: UserError for a checkpoint that has some, saying what to ask for; as CheckpointAdapters
  MergedReader(checkpoint::StretchReader& reader, bool merge);
  std::span<const std::byte> read(const checkpoint::Piece& piece, int64_t begin, int64_t end);

 private:
  checkpoint::StretchReader& reader_;
  CheckpointAdapters adapters_;
  std::vector<float> wide_;
  std::vector<std::byte> narrow_;
};

// Writes adapter_model.safetensors and adapter_config.json, as PEFT's save_pretrained does, into a folder that must not be there.
//   checkpoint: a folder step-N of a run with [lora]
//   hf_assets:  a folder with the config.json of the model, for llama3 and gpt, whose Hugging Face names and order of rows the
//               adapters then have; "" for exported models, which have Python's
//   throws:     UserError for a checkpoint without adapters; as StretchReader does
void export_peft(const std::string& checkpoint, const std::string& folder, const std::string& hf_assets);

}  // namespace sfsdp::train
