// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/document_parts.h"

#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

constexpr const char* kMasks = R"({"prompt": "...", "completion": "..."} or {"tokens": [5, 7], "mask": [0, 1]})";

// State over time: a text that is taken leaves an empty one.
class Line {
 public:
  Line(JsonValue& line, const LineOptions& options, const std::string& where)
      : line_(line), options_(options), where_(where) {}

  std::vector<DocumentPart> parts() {
    const bool has_text = line_.find(options_.field) != nullptr;
    const bool has_prompt = line_.find("prompt") || line_.find("completion");
    const bool has_ids = line_.find("tokens") || line_.find("mask");
    if (!options_.masks) {
      const std::string cure =
          !has_text && (has_prompt || has_ids)
              ? "; prompts and masks need --loss-mask of sfsdp tokenize, training.loss_mask of a run"
              : "; --field names another member";
      return {{text(options_.field, concat("{", quote_safe(options_.field), ": \"...\"} on each line", cure))}};
    }
    const int kinds = int{has_text} + int{has_prompt} + int{has_ids};
    const std::string expected = concat("one of {", quote_safe(options_.field), ": \"...\"}, ", kMasks);
    if (kinds != 1) fail(kinds == 0 ? "no document" : "more than one document", expected);
    if (has_text) return {{text(options_.field, expected)}};
    return has_prompt ? prompt_and_completion(expected) : tokens_and_mask(expected);
  }

 private:
  [[noreturn]] void fail(const std::string& got, const std::string& expected) const {
    throw UserError(concat(where_, ": ", got, "\n  expected ", expected));
  }
  JsonValue& member(const std::string& name, const std::string& expected) {
    const JsonValue* value = line_.find(name);
    if (!value) fail(concat("no member ", quote_safe(name)), expected);
    return const_cast<JsonValue&>(*value);
  }
  std::string text(const std::string& name, const std::string& expected) {
    JsonValue& value = member(name, expected);
    auto* text = std::get_if<std::string>(&value.value);
    if (!text) fail(concat(quote_safe(name), " is ", describe(value)), expected);
    return std::move(*text);
  }
  const JsonArray& list(const std::string& name, const std::string& expected) {
    const JsonValue& value = member(name, expected);
    const auto* list = value.as<JsonArray>();
    if (!list) fail(concat(quote_safe(name), " is ", describe(value)), expected);
    return *list;
  }

  std::vector<DocumentPart> prompt_and_completion(const std::string& expected) {
    DocumentPart prompt = {text("prompt", expected), {}, false}, completion = {text("completion", expected)};
    if (completion.text.empty())
      fail("\"completion\" is empty", "a text to train on, as a prompt alone teaches nothing; leave the line out");
    return {std::move(prompt), std::move(completion)};
  }

  // A part for each stretch of ids that count, or do not.
  std::vector<DocumentPart> tokens_and_mask(const std::string& expected) {
    const JsonArray &tokens = list("tokens", expected), &mask = list("mask", expected);
    if (tokens.size() != mask.size())
      fail(concat("\"tokens\" has ", tokens.size(), " members, \"mask\" ", mask.size()),
           "as many: 1 for each id that the loss counts, 0 for the others");
    std::vector<DocumentPart> parts;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto* id = tokens[i].as<uint64_t>();
      const auto* counts = mask[i].as<uint64_t>();
      if (!id || *id >= static_cast<uint64_t>(options_.vocab_size))
        fail(concat("\"tokens\"[", i, "] is ", describe(tokens[i])),
             concat("an id of the tokenizer, below ", options_.vocab_size));
      if (!counts || *counts > 1) fail(concat("\"mask\"[", i, "] is ", describe(mask[i])), "0 or 1");
      if (parts.empty() || parts.back().counts != (*counts == 1)) parts.push_back({"", {}, *counts == 1});
      parts.back().ids.push_back(static_cast<int32_t>(*id));
    }
    return parts;
  }

  JsonValue& line_;
  const LineOptions& options_;
  const std::string& where_;
};

}  // namespace

std::vector<DocumentPart> parts_of_line(JsonValue line, const LineOptions& options, const std::string& where) {
  return Line(line, options, where).parts();
}

}  // namespace sfsdp::train
