// SPDX-License-Identifier: BSD-3-Clause
// Expected ids are Hugging Face's: tests/fixtures/tokenizer_reference.py wrote them.
#include "sfsdp/train/data/tokenizer/tokenizer.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <thread>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::tokenizer_test {
namespace {

const std::vector<std::string> kPipelines = {"gpt2",  "llama3", "qwen2",     "deepseek",
                                             "o200k", "falcon", "starcoder", "sentencepiece"};

std::string folder_of(const std::string& pipeline) {
  return testing::source_dir() + "/tests/fixtures/tokenizers/" + pipeline;
}

struct Expected {
  std::string name;
  Tokenizer tokenizer;
  JsonValue json;

  explicit Expected(const std::string& pipeline)
      : name(pipeline),
        tokenizer(Tokenizer::load(folder_of(pipeline))),
        json(parse_json(read_text_file(folder_of(pipeline) + "/expected.json", 16 << 20), "expected.json")) {}

  const JsonArray& list(const char* key) const { return *json.find(key)->as<JsonArray>(); }
};

std::string text_of(const JsonValue& object, const char* key) { return *object.find(key)->as<std::string>(); }
uint64_t number_of(const JsonValue& object, const char* key) { return *object.find(key)->as<uint64_t>(); }

std::vector<int32_t> ids_of(const JsonValue& object) {
  std::vector<int32_t> ids;
  for (const JsonValue& id : *object.find("ids")->as<JsonArray>())
    ids.push_back(static_cast<int32_t>(*id.as<uint64_t>()));
  return ids;
}

uint32_t digest(const std::vector<int32_t>& ids) {
  uint32_t value = 0;
  for (const int32_t id : ids) value = value * 1000003 + static_cast<uint32_t>(id) + 1;
  return value;
}

std::string repeat(const std::string& text, uint64_t times) {
  std::string out;
  for (uint64_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST_CASE("ids equal Hugging Face's on every pipeline: scripts, marks, emoji, spaces, controls, code, added tokens") {
  for (const std::string& pipeline : kPipelines) {
    CAPTURE(pipeline);
    const Expected expected(pipeline);
    for (const JsonValue& one : expected.list("cases")) {
      const std::string text = text_of(one, "text");
      CHECK_MESSAGE(expected.tokenizer.encode(text) == ids_of(one), quote_safe(text));
    }
    for (const JsonValue& one : expected.list("with_special"))
      CHECK(expected.tokenizer.encode(text_of(one, "text"), SpecialTokens::Add) == ids_of(one));
  }
}

TEST_CASE("words of 100 KB have Hugging Face's ids") {
  for (const std::string& pipeline : kPipelines) {
    CAPTURE(pipeline);
    const Expected expected(pipeline);
    for (const JsonValue& one : expected.list("repeated")) {
      const std::string text = text_of(one, "text");
      const auto ids = expected.tokenizer.encode(repeat(text, number_of(one, "times")));
      CHECK_MESSAGE(ids.size() == number_of(one, "count"), quote_safe(text));
      CHECK_MESSAGE(digest(ids) == number_of(one, "digest"), quote_safe(text));
    }
  }
}

TEST_CASE("any ids decode to Hugging Face's text, special tokens kept or skipped") {
  for (const std::string& pipeline : kPipelines) {
    CAPTURE(pipeline);
    const Expected expected(pipeline);
    for (const JsonValue& one : expected.list("decodes")) {
      CHECK(expected.tokenizer.decode(ids_of(one)) == text_of(one, "text"));
      CHECK(expected.tokenizer.decode(ids_of(one), SpecialTokens::Skip) == text_of(one, "skipped"));
    }
  }
}

TEST_CASE("bytes that are not UTF-8 are read as Python replaces them: U+FFFD per maximal bad part") {
  const auto replaced = [](std::string text) {
    replace_invalid_utf8(text, text);
    return text;
  };
  const std::string r = "\xef\xbf\xbd";
  // python3 -c 'print(b"...".decode("utf-8", "replace"))'
  CHECK(replaced("a\x80z") == "a" + r + "z");
  CHECK(replaced("\xe4\xb8z") == r + "z");
  CHECK(replaced("\xf0\x9f\x98") == r);
  CHECK(replaced("\xed\xa0\x80") == r + r + r);
  CHECK(replaced("\xf4\x90\x80\x80") == r + r + r + r);
  CHECK(replaced("\xc0\xaf\xe0\x80\xaf") == r + r + r + r + r);
  CHECK(replaced("\xf0\x80\x80\x41") == r + r + r + "A");
  std::string untouched = "before";
  CHECK_FALSE(replace_invalid_utf8("\xe4\xb8\xad", untouched));
  CHECK(untouched == "before");
  const Tokenizer tokenizer = Tokenizer::load(folder_of("llama3"));
  CHECK(tokenizer.encode("a\xff z") == tokenizer.encode("a" + r + " z"));
}

TEST_CASE("many threads share one tokenizer") {
  const Expected expected("qwen2");
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong)
    threads.emplace_back([&expected, &count] {
      for (const JsonValue& one : expected.list("cases"))
        count += expected.tokenizer.encode(text_of(one, "text")) == ids_of(one) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

// --- files ---

constexpr const char* kSmall = R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": ADDED,
  "normalizer": NORMALIZER, "pre_tokenizer": CUTS, "post_processor": AROUND, "decoder": DECODER,
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": MERGES}})";

// kSmall with one place filled in; the others are empty.
std::string small(const std::string& place = "", const std::string& with = "") {
  std::string json = kSmall;
  const std::pair<const char*, const char*> places[] = {{"ADDED", "[]"},     {"NORMALIZER", "null"},
                                                        {"CUTS", "null"},    {"AROUND", "null"},
                                                        {"DECODER", "null"}, {"MERGES", "[[\"a\", \"b\"]]"}};
  for (const auto& [name, fallback] : places)
    json.replace(json.find(name), std::string(name).size(), name == place ? with : fallback);
  return json;
}

std::string error_of(const std::string& json, const std::string& config = "") {
  try {
    Tokenizer::parse(json, config, "t.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a file without steps is BPE alone; characters without a token vanish, as with Hugging Face") {
  const Tokenizer tokenizer = Tokenizer::parse(small(), "", "t.json");
  CHECK(tokenizer.encode("abcab") == std::vector<int32_t>{2, 3, 2});
  CHECK(tokenizer.encode("axb") == std::vector<int32_t>{2});
  CHECK(tokenizer.decode(std::vector<int32_t>{2, 3}) == "ab c");
  CHECK(tokenizer.vocab_size() == 4);
  CHECK_THROWS_WITH_AS(tokenizer.decode(std::vector<int32_t>{4}), doctest::Contains("id 4"), UserError);
}

TEST_CASE("merges are pairs or texts with a blank; of two equal ones the last counts") {
  CHECK(Tokenizer::parse(small("MERGES", R"(["a b"])"), "", "t.json").encode("ab") == std::vector<int32_t>{2});
  for (const char* bad : {R"(["ab"])", R"(["a b c"])", R"([["a"]])", "[1]", "{}", R"(["a c"])", R"(["a d"])"})
    CHECK(error_of(small("MERGES", bad)).find("t.json: model.merges") == 0);
}

TEST_CASE("what is not known is refused with file, path, what stands there and what is supported") {
  const auto refuses = [](const char* place, const char* with, const char* path, const char* expected) {
    const std::string error = error_of(small(place, with));
    CHECK_MESSAGE(error.find("t.json: " + std::string(path)) == 0, error);
    CHECK_MESSAGE(error.find(expected) != std::string::npos, error);
  };
  refuses("CUTS", R"({"type": "Metaspace"})", "pre_tokenizer.type = \"Metaspace\"", "Split, ByteLevel");
  refuses("CUTS", R"({"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]})",
          "pre_tokenizer.pretokenizers[0].type", "Whitespace");
  refuses("CUTS", R"({"type": "Digits", "individual_digits": true, "more": 1})", "pre_tokenizer: member \"more\"",
          "only");
  refuses("CUTS", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Cut", "invert": false})",
          "pre_tokenizer.behavior = \"Cut\"", "MergedWithNext");
  refuses("CUTS", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": false})",
          "pre_tokenizer.pattern.Regex: pattern \"(a\"", "Oniguruma");
  refuses("NORMALIZER", R"({"type": "StripAccents"})", "normalizer.type", "NFKC");
  refuses("AROUND", R"({"type": "Other"})", "post_processor.type", "TemplateProcessing");
  refuses("DECODER", R"({"type": "WordPiece"})", "decoder.type", "ByteFallback");
  refuses("ADDED",
          R"([{"id": 9, "content": "x", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                        "special": true}])",
          "added_tokens[0].id = 9", "expected 4");
  CHECK(error_of(R"({"model": {"type": "Unigram"}})").find("t.json: model.type = \"Unigram\"") == 0);
  CHECK(error_of(R"({"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}})").find("model.dropout") !=
        std::string::npos);
  CHECK(error_of(R"({"truncation": {}, "model": {"vocab": {}, "merges": []}})").find("truncation") !=
        std::string::npos);
  CHECK(error_of(R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})").find("an id of its own") !=
        std::string::npos);
  CHECK(error_of(R"({"model": {"vocab": {"a": 4000000000}, "merges": []}})").find("expected an id below") !=
        std::string::npos);
  CHECK(error_of("[]").find("t.json") == 0);
  CHECK(error_of(std::string(1000, '[')).find("nested too deep") != std::string::npos);
}

TEST_CASE("rules that double a text again and again end with an error that names the rule, before the memory does") {
  const auto rules = [](const char* with, int count) {
    std::string steps;
    for (int i = 0; i < count; ++i)
      steps += concat(i ? ", " : "", R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")", with, "\"}");
    return steps;
  };
  const auto error_of_use = [](const std::string& json, const auto& use) -> std::string {
    try {
      use(Tokenizer::parse(json, "", "t.json"));
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string text(1000, 'a');
  const auto encode = [&](const Tokenizer& tokenizer) { tokenizer.encode(text); };
  const auto decode = [](const Tokenizer& tokenizer) { tokenizer.decode(std::vector<int32_t>(1000, 0)); };
  const std::string normalizer = R"({"type": "Sequence", "normalizers": [)",
                    decoder = R"({"type": "Sequence", "decoders": [)";
  // 1000 a become 16000; the rule after that would make 32000 of more than 16 * 1000 + 1024.
  for (const int count : {5, 40})
    CHECK(error_of_use(small("NORMALIZER", concat(normalizer, rules("aa", count), "]}").c_str()), encode)
              .starts_with("t.json: normalizer.normalizers[4].content: this rule makes a text longer than 17024 bytes\n"
                           "  expected "));
  CHECK(error_of_use(small("NORMALIZER", concat(normalizer, rules("aa", 4), "]}").c_str()), encode) == "no error");
  CHECK(error_of_use(small("DECODER", concat(decoder, rules("aaaa", 30), "]}").c_str()), decode)
            .find("t.json: decoder.decoders[") == 0);
  const std::string one = concat(R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")", text, "\"}");
  CHECK(error_of_use(small("NORMALIZER", one.c_str()), encode).find("t.json: normalizer.content") == 0);
  CHECK(Tokenizer::parse(small("NORMALIZER", one.c_str()), "", "t.json").encode("a").size() ==
        1000);  // short texts may grow
}

TEST_CASE("BOS and EOS come from tokenizer_config.json, as a text or an object") {
  const Tokenizer tokenizer =
      Tokenizer::parse(small(), R"({"bos_token": {"content": "c"}, "eos_token": "ab", "more": 1})", "t.json");
  CHECK(tokenizer.bos() == 3);
  CHECK(tokenizer.eos() == 2);
  CHECK_FALSE(Tokenizer::parse(small(), R"({"bos_token": null})", "t.json").bos());
  CHECK(error_of(small(), R"({"bos_token": "<s>"})").find("bos_token = \"<s>\"") != std::string::npos);
}

TEST_CASE("a folder, or the file in it, is loaded with the config beside it") {
  const testing::TemporaryFolder folder;
  folder.write("tokenizer.json", small());
  folder.write("tokenizer_config.json", R"({"eos_token": "c"})");
  CHECK(Tokenizer::load(folder.path()).eos() == 3);
  CHECK(Tokenizer::load(folder / "tokenizer.json").eos() == 3);
  CHECK_THROWS_WITH_AS(Tokenizer::load(folder / "none"), doctest::Contains("none"), UserError);
}

}  // namespace
}  // namespace sfsdp::train::tokenizer_test
