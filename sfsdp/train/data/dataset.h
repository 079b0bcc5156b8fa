// SPDX-License-Identifier: BSD-3-Clause
// Datasets by name: from the words of a config to the samples of a source.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "sfsdp/train/data/sample_source.h"

namespace sfsdp::train {

enum class Shuffle : uint8_t {
  Default,  // documents, in another order each epoch; libtorch_headers in one order; other ids in the files' order
  Always,   // also samples of ids without documents, in another order each epoch
  Never,    // the files' order
};

// What stands around each document; TorchTitan's rule is both, where the tokenizer has them.
struct DocumentFrame {
  std::optional<int32_t> bos, eos;
};

struct DatasetOptions {
  std::string name = "tokens";  // tokens or libtorch_headers
  std::string path;             // a file, a folder, a pattern with * ? []; the include folder
  int64_t seq_len = 0;
  int64_t vocab_size = 0;                       // the model's
  bool fixed_vocab = false;                     // no flag changes it: that of an archive
  TokenDtype token_dtype = TokenDtype::UInt16;  // of files without a header
  int64_t max_bytes = 8 << 20;                  // libtorch_headers only; 0: no limit
  Shuffle shuffle = Shuffle::Default;
  uint64_t seed = 0;    // of the order
  bool masked = false;  // samples say which targets the loss counts; files with masks ask for it
  bool apart = false;   // documents of a sample are apart, see SampleOptions
  // Asked for where documents are known, with the dataset's name and the hash of the tokenizer that made its ids.
  std::function<DocumentFrame(const std::string& name, uint64_t tokenizer_hash)> frame = {};
};

// libtorch_headers reads bytes: its ids are below this.
inline constexpr int64_t kByteVocab = 256;

// tokens: files of ids (find_tokens), or token files of sfsdp with their documents (token_file.h), one after the other by name.
// libtorch_headers: the bytes of all *.h and *.hpp below a folder, in order of their paths, up to max_bytes; samples come
// in an order shuffled by `seed`, the same on every machine.
//   throws: UserError if the path is missing, not readable, holds fewer than seq_len + 1 tokens, or ids that the vocabulary has not
SampleSource open_dataset(const DatasetOptions& options);

// Entropy, in nats, of ids that occur counts[id] times each: the loss of a model that only knows how frequent each id is.
// A training loss below it shows that context is used.
double unigram_entropy(std::span<const int64_t> counts);

// What to log at the first step that reads a source's samples again.
std::string wrap_notice(const Samples& source, int64_t step);

}  // namespace sfsdp::train
