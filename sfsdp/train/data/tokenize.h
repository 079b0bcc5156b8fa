// SPDX-License-Identifier: BSD-3-Clause
// Text, JSON lines, gzip and zstd into token files (token_file.h): what `sfsdp tokenize` does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/train/data/documents.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::train {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // files, in the order of their documents
  std::string out;                  // folder, made if need be
  DocumentOptions documents = {};
  int64_t shard_tokens = 100'000'000;  // a shard ends with the first document that reaches so many
  int threads = 0;                     // that encode; 0: a thread per core
};

struct TokenizeProgress {
  int64_t bytes = 0, all_bytes = 0;  // of the input files, as they are on disk
  int64_t documents = 0, tokens = 0;
  int64_t resumed_documents = 0;  // of these, what an earlier call had written
  bool was_complete = false;      // it had written all
};

// Writes shards and dataset.json. What is written depends on inputs, tokenizer and options alone, not on threads; it may be
// killed at any point and called again: whole shards are verified and kept, and the rest is the same, byte for byte.
//   progress: called by this thread now and then, and at the end
//   throws: UserError naming file and line of what cannot be read; a folder of another run; a run in progress in it;
//           InputChanged, after which the folder holds no shards
TokenizeProgress tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                                const std::function<void(const TokenizeProgress&)>& progress = {});

}  // namespace sfsdp::train
