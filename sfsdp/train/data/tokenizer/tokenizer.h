// SPDX-License-Identifier: BSD-3-Clause
// Text to token ids and back, as a Hugging Face tokenizer.json says: byte-level BPE (GPT-2, Llama 3, Qwen2) and BPE with
// byte fallback. Ids equal those of the library `tokenizers` 0.23; what of a file is not known is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::train {

enum class SpecialTokens : uint8_t {
  Leave,  // encode: adds none; decode: they stay in the text
  Add,    // encode: what the file's post-processor adds, such as a BOS
  Skip,   // decode: leaves out those marked special
};

// Immutable once loaded: any number of threads may call it at the same time.
class Tokenizer {
 public:
  // path: a tokenizer.json, or a folder that holds one. tokenizer_config.json beside it, if there is one, names BOS and EOS.
  //   throws: UserError naming file, field, what stands there and what is supported
  static Tokenizer load(const std::string& path);
  // The same from texts; `name` stands in messages. An empty config names no BOS and no EOS.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                         const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Text that spells an added token becomes that token, special or not. Bytes that are not UTF-8 are read as
  // replace_invalid_utf8 has them. Time grows with n log n of the text, for words of any length.
  //   throws: UserError if the file's pattern takes too long on this text: no well-known one does
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::Leave) const;
  // Appends to `ids`, which saves allocations in a loop.
  void encode_to(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const;

  // Bytes that are not UTF-8 come out as U+FFFD, one per maximal bad part.
  //   throws: UserError naming an id that no token has
  std::string decode(std::span<const int32_t> ids, SpecialTokens special = SpecialTokens::Leave) const;

  // One more than the largest id, added tokens included: what a model's vocab_size must at least be.
  int64_t vocab_size() const;
  // As tokenizer_config.json names them; a template that adds a BOS does so in encode() whatever stands here.
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // XXH3 of tokenizer.json's bytes: token files carry it, so that ids of two tokenizers are not mixed.
  uint64_t hash() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// As Python's bytes.decode("utf-8", errors="replace"): U+FFFD for each maximal part of a broken sequence (Unicode 15, 3.9,
// table 3-7). Returns false and leaves `out` alone where `text` is valid already.
bool replace_invalid_utf8(std::string_view text, std::string& out);

}  // namespace sfsdp::train
