// SPDX-License-Identifier: BSD-3-Clause
// From a config to the rows that a rank trains on. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/train/config/config.h"
#include "sfsdp/train/data/loader.h"

namespace sfsdp::train {

// One entry of training.sources: "WEIGHT DATASET PATH", such as "0.7 tokens data/web"; the path may hold blanks.
struct MixEntry {
  double weight = 0;
  std::string dataset, path;
};
//   throws: UserError naming the entry
MixEntry parse_mix_entry(const std::string& text);

struct JobDataOptions {
  int64_t vocab_size = 0;      // the model's; 0 for one that reads no tokens
  std::string include_folder;  // what libtorch_headers reads where no path is given; "": none is known
  // Told while this process makes token files of text, which may take long; the others of the host wait meanwhile.
  std::function<void(const std::string&)> say = {};
};

// What training.dataset asks for: one source, or those of training.sources.
//   throws: UserError as open_dataset, Tokenizer::load and tokenize_files do
std::vector<WeightedSource> open_job_sources(const JobConfig& config, const JobDataOptions& job);

// What a sample of training.dataset is.  throws: UserError for tensors whose files cannot be opened
std::vector<SampleTensor> sample_layout(const JobConfig& config);

// The set that [validation] names, in its files' order. Errors as above.
std::shared_ptr<Samples> open_validation_source(const JobConfig& config, const JobDataOptions& job);

// Whether to validate after step k, which was trained on `tokens_per_step` tokens as each before it.
bool validation_is_due(const Validation& validation, int64_t step, int64_t tokens_per_step);

// For the log: a line per source with its tokens, samples and share.
std::string describe(const Loader& loader);

}  // namespace sfsdp::train
