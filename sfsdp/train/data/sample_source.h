// SPDX-License-Identifier: BSD-3-Clause
// The samples of one source, in the order they are trained on. A sample is seq_len + 1 ids: the first seq_len are the
// input, the last seq_len the target. Sample i of an epoch is ids i * seq_len .. i * seq_len + seq_len of the epoch's row,
// so neighbours share one id, and each id but the first is a target once; what is left over at the end is not read.
// The row is the store's ids, or with known documents BOS + ids + EOS of each one; empty documents are left out.
// Masks are packed with their ids: a target counts if the id that is predicted does. In a store with masks BOS never counts, and
// EOS where the document's last id does; in another everything counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/data/permutation.h"
#include "sfsdp/train/data/samples.h"
#include "sfsdp/train/data/token_store.h"

namespace sfsdp::train {

enum class SampleOrder : uint8_t {
  File,       // the row is the store; samples in its order, in every epoch
  Once,       // the same samples in an order shuffled by the seed, the same in every epoch
  Samples,    // the same samples in another order each epoch
  Documents,  // the row is the store's documents in another order each epoch, one after the other
};

struct SampleOptions {
  int64_t seq_len = 0;
  int64_t vocab_size = 0;
  SampleOrder order = SampleOrder::File;
  uint64_t seed = 0;
  std::optional<int32_t> bos = std::nullopt, eos = std::nullopt;  // put around documents
  bool masked = false;                                            // samples say which of their targets the loss counts
  // Documents of a sample know nothing of each other: positions begin anew with each, and the first id of one is no target.
  // What has begun before the sample is a document of its own.
  bool apart = false;
};

// In the place of a target that the loss does not count: what PyTorch's cross entropy ignores.
inline constexpr int64_t kIgnoredTarget = -100;

// What a sample of token ids is.
std::vector<SampleTensor> token_layout(int64_t seq_len, bool masked, bool apart = false);
// How many the loss counts.
int64_t count_targets(std::span<const int64_t> targets);

// State over time: `at_` remembers where in an epoch's documents the last sample began, so that the next is near; what is
// read depends on the sample's number alone. For one thread at a time.
class SampleSource : public Samples {
 public:
  //   throws: UserError if the store has fewer than seq_len + 1 tokens
  SampleSource(TokenStore store, const SampleOptions& options);

  int64_t num_tokens() const { return row_; }  // of an epoch's row, BOS and EOS too
  int64_t num_documents() const;               // 0: not known
  int64_t size() const override { return samples_; }
  int64_t seq_len() const override { return options_.seq_len; }
  const std::string& name() const override { return store_.name(); }
  // Made of sizes, order, BOS, EOS, and 16 stretches of ids over all of the store.
  int64_t content() const override { return content_; }
  std::string describe() const override;
  // The sample's first seq_len ids, its last seq_len ids: "tokens", "targets". If it is masked, kIgnoredTarget stands in
  // targets, and a third tensor is "labels": the tokens, for models that shift them, with kIgnoredTarget too. If
  // documents are apart, the last tensor is "positions", each id's in its document.
  const std::vector<SampleTensor>& layout() const override { return layout_; }
  void append(int64_t sample, std::span<std::vector<std::byte>> out) override;

  // Fills `ids`, which must hold seq_len + 1, with kNoTarget where the loss does not count them. `sample` counts on over the epochs: 0 .. N-1 are the first.
  //   throws: UserError as TokenStore::read does
  //   positions: of each id in its document, if documents are apart
  void read(int64_t sample, std::span<int32_t> ids, std::span<int64_t> positions = {});

 private:
  struct DocumentPlace {
    int64_t epoch = -1;
    int64_t number = 0;  // documents of the epoch before this one
    int64_t begin = 0;   // of this document, in the epoch's row
  };
  void read_documents(int64_t epoch, int64_t first, std::span<int32_t> ids, std::span<int64_t> positions);
  void read_document(int64_t document, int64_t first, std::span<int32_t> ids);
  bool counts_at_the_end(int64_t document);
  int64_t document(int64_t number) const;     // the epoch's document of that number: its place in the store
  int64_t length_of(int64_t document) const;  // with BOS and EOS
  int64_t make_content();

  TokenStore store_;
  SampleOptions options_;
  bool has_masks_ = false;  // the store
  int64_t row_ = 0;
  int64_t samples_ = 0;
  int64_t content_ = 0;
  std::vector<SampleTensor> layout_;
  std::vector<int64_t> once_;          // of order Once
  std::optional<Permutation> epochs_;  // of orders Samples and Documents: that of permutation_epoch_
  int64_t permutation_epoch_ = -1;
  DocumentPlace at_;
};

}  // namespace sfsdp::train
