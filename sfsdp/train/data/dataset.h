// SPDX-License-Identifier: BSD-3-Clause
// Token ids on disk, cut into samples. A sample is seq_len + 1 ids: the first seq_len are the input, the last seq_len the
// target. Sample i begins at token i * seq_len, so neighbours share one id; what is left over at the end is not read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::train {

enum class TokenDtype : uint8_t { UInt8 = 1, UInt16 = 2, UInt32 = 4 };  // the value is the width in bytes
// "uint16", "uint32"; throws UserError.
TokenDtype parse_token_dtype(std::string_view text);

// Read-only after opening: may be read from several threads.
class TokenDataset {
 public:
  // `bytes` must live as long as `owner`. `order` maps sample numbers to places in the file; empty: file order.
  struct Source {
    std::string name;  // file or folder, for messages
    std::shared_ptr<const void> owner;
    std::span<const uint8_t> bytes;
    TokenDtype dtype = TokenDtype::UInt16;
    std::vector<int64_t> order;
  };
  TokenDataset(Source source, int64_t seq_len, int64_t vocab_size);

  int64_t size() const { return samples_; }  // N
  int64_t num_tokens() const { return tokens_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t vocab_size() const { return vocab_size_; }
  const std::string& name() const { return source_.name; }

  // Fills `ids`, which must hold seq_len + 1, with sample `index` of 0 .. size() - 1.
  //   throws: UserError naming the position of an id that is not below vocab_size
  void read_sample(int64_t index, std::span<int32_t> ids) const;

 private:
  int64_t token(int64_t position) const;  // checked against vocab_size_

  Source source_;
  int64_t seq_len_ = 0;
  int64_t vocab_size_ = 0;
  int64_t tokens_ = 0;
  int64_t samples_ = 0;
};

struct DatasetOptions {
  std::string name = "tokens";  // tokens or libtorch_headers
  std::string path;             // the file; the include folder
  int64_t seq_len = 0;
  int64_t vocab_size = 0;                       // tokens only: the model's; libtorch_headers has 256, the bytes
  TokenDtype token_dtype = TokenDtype::UInt16;  // tokens only
  int64_t max_bytes = 8 << 20;                  // libtorch_headers only; 0: no limit
  uint64_t seed = 0;                            // libtorch_headers only: order of the samples
};

// tokens: a flat little-endian file, mapped, read in file order.
// libtorch_headers: the bytes of all *.h and *.hpp below a folder, in order of their paths, up to max_bytes; samples come
// in an order shuffled by `seed`, the same on every machine and in every pass over the data.
//   throws: UserError if the path is missing, not readable, or holds fewer than seq_len + 1 tokens
TokenDataset open_dataset(const DatasetOptions& options);

// Entropy, in nats, of ids that occur counts[id] times each: the loss of a model that only knows how frequent each id is.
// A training loss below it shows that context is used.
double unigram_entropy(std::span<const int64_t> counts);

// Sample j, of 0 .. global_batch - 1, of a step that counts from 1; after the last sample comes the first again.
int64_t sample_of_step(int64_t step, int64_t j, int64_t global_batch, int64_t num_samples);

// What to log at `step` if it is the first to come back to sample 0; the same step on every rank and after a resume.
std::optional<std::string> wrap_notice(const TokenDataset& dataset, int64_t step, int64_t global_batch);

}  // namespace sfsdp::train
