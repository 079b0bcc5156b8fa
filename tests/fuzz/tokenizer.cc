// SPDX-License-Identifier: BSD-3-Clause
// tokenizer.json, and texts through what it describes.
#include "sfsdp/train/data/tokenizer/tokenizer.h"

#include <cstdint>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

// Scripts, marks, spaces, digits, controls, bad bytes, and what added tokens are made of.
constexpr std::string_view kText =
    "Hello, I'LL  say 12345 thi\xc5\xbfs\r\n\r\n  \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd e\xcc\x81\xcc\xa3 "
    "\xea\xb0\x80\xe1\x86\xa8 "
    "\xe4\xb8\xad\xe6\x96\x87 \xe0\xb8\xa0\xe0\xb8\xb2 \xff\xc3 <|end|><s>word abab "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\t";

void read(std::string_view bytes) {
  using train::SpecialTokens;
  const auto tokenizer = train::Tokenizer::parse(bytes, "", "tokenizer.json");
  for (const std::string_view text : {kText, std::string_view(), bytes.substr(0, 2000)}) {
    const auto ids = tokenizer.encode(text, SpecialTokens::Add);
    for (const int32_t id : ids) SFSDP_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id ", id);
    try {
      tokenizer.decode(ids, SpecialTokens::Skip);
    } catch (const UserError&) {  // a post-processor may name ids that no token has
    }
  }
}

constexpr std::string_view kModel = R"("model": {"type": "BPE", "dropout": null, "unk_token": "<u>", "fuse_unk": true,
 "byte_fallback": true, "ignore_merges": true, "vocab": {"<u>": 0, "a": 1, "b": 2, "ab": 3, "abab": 4, "H": 5, "l": 6, "ll": 7,
 "Ġ": 8, "Ġa": 9, "e": 10, "<0xFF>": 11, "▁": 12, "Ċ": 13, "1": 14, "12": 15}, "merges": [["a", "b"], "ab ab", "l l", "Ġ a"]})";

constexpr std::string_view kAdded = R"("added_tokens": [
 {"id": 16, "content": "<|end|>", "single_word": false, "lstrip": true, "rstrip": true, "normalized": false, "special": true},
 {"id": 17, "content": "word", "single_word": true, "lstrip": false, "rstrip": false, "normalized": true, "special": false}])";

std::string file(std::string_view steps) {
  return concat("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, ", kAdded, ", ", steps, ", ", kModel,
                "}");
}

std::vector<std::string> seeds() {
  return {
      file(
          R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend",
 "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "Strip", "strip_left": true,
 "strip_right": false}]}, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Sequence", "decoders": [
 {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip",
 "content": " ", "start": 1, "stop": 0}]})"),
      file(R"j("normalizer": {"type": "NFKD"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
 "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
 "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
 "use_regex": false}]}, "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true,
 "trim_offsets": false, "use_regex": true}, {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>",
 "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>",
 "ids": [16], "tokens": ["<|end|>"]}}}]}, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
 "use_regex": true})j"),
      file(R"j("normalizer": null, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits",
 "individual_digits": false}, {"type": "WhitespaceSplit"}, {"type": "Split", "pattern": {"Regex": "[a-f\\d]|(?<=l)o|\\bx$|^.{2,3}?"},
 "behavior": "MergedWithNext", "invert": true}, {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
 "use_regex": true}, {"type": "Whitespace"}, {"type": "Split", "pattern": {"String": "é"}, "behavior": "Contiguous",
 "invert": false}]}, "post_processor": {"type": "RobertaProcessing", "sep": ["<u>", 0], "cls": ["a", 1], "trim_offsets": true,
 "add_prefix_space": false}, "decoder": null)j")};
}

SFSDP_FUZZ_TARGET(tokenizer, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
