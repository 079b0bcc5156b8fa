// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/sample_source.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

namespace {

// splitmix64: std::shuffle gives another order with every standard library.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::vector<int64_t> shuffled(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(seed) % i]);
  return order;
}

}  // namespace

std::vector<SampleTensor> token_layout(int64_t seq_len, bool masked, bool apart) {
  std::vector<SampleTensor> layout = {{"tokens", ir::DType::i64, {seq_len}}, {"targets", ir::DType::i64, {seq_len}}};
  if (masked) layout.push_back({"labels", ir::DType::i64, {seq_len}});
  if (apart) layout.push_back({"positions", ir::DType::i64, {seq_len}});
  return layout;
}

SampleSource::SampleSource(TokenStore store, const SampleOptions& options)
    : store_(std::move(store)), options_(options), has_masks_(store_.masked()) {
  SFSDP_CHECK(options.seq_len >= 1 && options.vocab_size >= 1, "seq_len ", options.seq_len, ", vocab_size ",
              options.vocab_size);
  SFSDP_CHECK(options.masked || !has_masks_, name(), " has masks that nobody reads");
  SFSDP_CHECK(options.order != SampleOrder::Documents || !store_.borders().empty(), name(), " has no documents");
  if (store_.borders().empty()) row_ = store_.size();
  for (int64_t d = 0; d < num_documents(); ++d) row_ += length_of(d);
  samples_ = row_ < 1 ? 0 : (row_ - 1) / options.seq_len;
  if (samples_ == 0)
    throw UserError(concat(name(), ": ", row_, " tokens are less than one sample\n  expected at least ",
                           options.seq_len + 1, " (seq_len + 1); use a larger file or a smaller --training.seq_len"));
  if (options.order == SampleOrder::Once) once_ = shuffled(samples_, options.seed);
  content_ = make_content();
  SFSDP_CHECK(!options.apart || (options.masked && !store_.borders().empty()), name(), " has no documents to be apart");
  layout_ = token_layout(options.seq_len, options.masked, options.apart);
}

std::string SampleSource::describe() const {
  std::string text = concat(with_commas(num_tokens()), " tokens, ", with_commas(size()), " samples");
  if (num_documents() > 0) text += concat(", ", with_commas(num_documents()), " documents");
  return text;
}

void SampleSource::append(int64_t sample, std::span<std::vector<std::byte>> out) {
  SFSDP_CHECK(out.size() == layout_.size(), out.size(), " tensors");
  std::vector<int32_t> ids(static_cast<size_t>(seq_len() + 1));
  std::vector<int64_t> positions(options_.apart ? ids.size() : 0), tokens, targets;
  read(sample, ids, positions);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool begins = options_.apart && positions[i] == 0;
    tokens.push_back(id_of(ids[i]));
    targets.push_back(is_target(ids[i]) && !begins ? ids[i] : kIgnoredTarget);
  }
  const auto add = [&](size_t tensor, const std::vector<int64_t>& from, size_t first) {
    const auto bytes = std::as_bytes(std::span(from).subspan(first, ids.size() - 1));
    out[tensor].insert(out[tensor].end(), bytes.begin(), bytes.end());
  };
  add(0, tokens, 0);
  add(1, targets, 1);
  if (options_.masked) add(2, targets, 0);
  if (options_.apart) add(3, positions, 0);
}

int64_t count_targets(std::span<const int64_t> targets) {
  return static_cast<int64_t>(targets.size()) - std::ranges::count(targets, kIgnoredTarget);
}

std::span<const int64_t> ids_of(const MicroBatch& batch, size_t tensor) {
  const std::vector<std::byte>& bytes = batch.tensors.at(tensor);
  return {reinterpret_cast<const int64_t*>(bytes.data()), bytes.size() / sizeof(int64_t)};
}

int64_t SampleSource::make_content() {
  constexpr int64_t kStretches = 16, kLength = 1024;
  ContentHash hash;
  hash.add(concat(store_.size(), " ", num_documents(), " ", static_cast<int>(options_.order), " ",
                  options_.bos.value_or(-1), " ", options_.eos.value_or(-1)));
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kLength, store_.size())));
  const int64_t last = store_.size() - static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < kStretches; ++i) {
    store_.read(last * i / (kStretches - 1), ids, std::numeric_limits<int32_t>::max());
    hash.add({reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(ids[0])});
  }
  store_.close_files();  // many sources may be opened long before they are read
  return static_cast<int64_t>(hash.value() >> 1);
}

int64_t SampleSource::num_documents() const {
  return std::max<int64_t>(0, static_cast<int64_t>(store_.borders().size()) - 1);
}

void SampleSource::read(int64_t sample, std::span<int32_t> ids, std::span<int64_t> positions) {
  SFSDP_CHECK(sample >= 0, "sample ", sample);
  SFSDP_CHECK(static_cast<int64_t>(ids.size()) == seq_len() + 1, ids.size(), " ids for seq_len ", seq_len());
  const int64_t epoch = sample / samples_;
  int64_t index = sample % samples_;
  const bool by_epoch = options_.order == SampleOrder::Samples || options_.order == SampleOrder::Documents;
  if (by_epoch && permutation_epoch_ != epoch) {
    epochs_.emplace(options_.order == SampleOrder::Samples ? samples_ : num_documents(), options_.seed, epoch);
    permutation_epoch_ = epoch;
  }
  if (options_.order == SampleOrder::Once) index = once_[static_cast<size_t>(index)];
  if (options_.order == SampleOrder::Samples) index = (*epochs_)[index];
  if (store_.borders().empty())
    store_.read(index * seq_len(), ids, options_.vocab_size);
  else
    read_documents(epoch, index * seq_len(), ids, positions);
}

int64_t SampleSource::document(int64_t number) const {
  return options_.order == SampleOrder::Documents ? (*epochs_)[number] : number;
}

int64_t SampleSource::length_of(int64_t document) const {
  const auto d = static_cast<size_t>(document);
  const int64_t ids = store_.borders()[d + 1] - store_.borders()[d];
  return ids == 0 ? 0 : ids + (options_.bos ? 1 : 0) + (options_.eos ? 1 : 0);
}

void SampleSource::read_documents(int64_t epoch, int64_t first, std::span<int32_t> ids, std::span<int64_t> positions) {
  if (at_.epoch != epoch || at_.begin > first) at_ = {epoch, 0, 0};
  // On to the document that holds the first id.
  int64_t d = document(at_.number);
  while (at_.begin + length_of(d) <= first) {
    at_.begin += length_of(d);
    d = document(++at_.number);
  }
  // From there on, one document after the other.
  int64_t number = at_.number, skip = first - at_.begin;
  while (true) {
    const auto here = std::min(static_cast<int64_t>(ids.size()), length_of(d) - skip);
    read_document(d, skip, ids.first(static_cast<size_t>(here)));
    ids = ids.subspan(static_cast<size_t>(here));
    if (!positions.empty()) {
      std::iota(positions.begin(), positions.begin() + here, int64_t{0});
      positions = positions.subspan(static_cast<size_t>(here));
    }
    if (ids.empty()) return;
    skip = 0;
    d = document(++number);
  }
}

// Whether the document's last id, and so its EOS, is a target.
bool SampleSource::counts_at_the_end(int64_t document) {
  if (!has_masks_) return true;
  int32_t last = 0;
  store_.read(store_.borders()[static_cast<size_t>(document) + 1] - 1, {&last, 1}, options_.vocab_size);
  return is_target(last);
}

// Ids first .. first + ids.size() - 1 of BOS + document + EOS.
void SampleSource::read_document(int64_t document, int64_t first, std::span<int32_t> ids) {
  if (ids.empty()) return;
  if (options_.bos && first == 0) {
    ids.front() = *options_.bos | (has_masks_ ? kNoTarget : 0);
    ids = ids.subspan(1);
    ++first;
  }
  if (options_.eos && first + static_cast<int64_t>(ids.size()) == length_of(document)) {
    ids.back() = *options_.eos | (counts_at_the_end(document) ? 0 : kNoTarget);
    ids = ids.first(ids.size() - 1);
  }
  const int64_t begin = store_.borders()[static_cast<size_t>(document)];
  if (!ids.empty()) store_.read(begin + first - (options_.bos ? 1 : 0), ids, options_.vocab_size);
}

}  // namespace sfsdp::train
