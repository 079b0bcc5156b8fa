// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/normalizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

// With overloads: the step that std::visit finds.
template <class... Bodies>
struct Overloaded : Bodies... {
  using Bodies::operator()...;
};
template <class... Bodies>
Overloaded(Bodies...) -> Overloaded<Bodies...>;

}  // namespace

Pattern parse_pattern(const Field& field) {
  field.allow_only({"String", "Regex"});
  if (const auto text = field.find("String")) {
    if (text->text().empty()) text->refuse("a text that is not empty");
    return Pattern::literal(text->text());
  }
  const Field pattern = field.at("Regex");
  return Pattern::compile(pattern.text(), pattern.where());
}

size_t longest_from(size_t bytes) {
  constexpr size_t kTimes = 16, kShort = 1024, kMost = size_t{4} << 30;  // four times the longest document
  return std::min(kTimes * bytes + kShort, std::max(bytes, kMost));
}

Replace::Replace(const Field& field)
    : pattern_(parse_pattern(field.at("pattern"))),
      with_(field.at("content").text()),
      where_(field.at("content").where()) {
  field.allow_only({"pattern", "content"});
}

std::string Replace::apply(std::string_view text, size_t longest, MatchMemory& memory) const {
  std::string out;
  const auto append = [&](std::string_view part) {
    if (part.size() > longest - out.size())
      throw UserError(concat(where_, ": this rule makes a text longer than ", longest,
                             " bytes\n  expected rules that make a text at most 16 times as long, and 4 GiB in all"));
    out.append(part);
  };
  size_t done = 0;
  Matches matches(pattern_, text, memory);
  while (const auto match = matches.next()) {
    append(text.substr(done, match->begin - done));
    append(with_);
    done = match->end;
  }
  append(text.substr(done));
  return out;
}

Normalizer Normalizer::parse(const Field& field) {
  Normalizer normalizer;
  normalizer.add(field, 0);
  return normalizer;
}

void Normalizer::add(const Field& field, int depth) {
  if (depth > kMostDepth) field.refuse("fewer sequences in sequences");
  static const std::map<std::string, NormalForm> kForms = {
      {"NFC", NormalForm::NFC}, {"NFD", NormalForm::NFD}, {"NFKC", NormalForm::NFKC}, {"NFKD", NormalForm::NFKD}};
  const Field type = field.at("type");
  const std::string& name = type.text();
  if (name == "Sequence") {
    field.allow_only({"normalizers"});
    for (const Field& item : field.at("normalizers").items()) add(item, depth + 1);
  } else if (const auto form = kForms.find(name); form != kForms.end()) {
    field.allow_only({});
    steps_.emplace_back(form->second);
  } else if (name == "Lowercase") {
    field.allow_only({});
    steps_.emplace_back(Lowercase{});
  } else if (name == "Strip") {
    field.allow_only({"strip_left", "strip_right"});
    steps_.emplace_back(Strip{field.at("strip_left").flag(), field.at("strip_right").flag()});
  } else if (name == "Prepend") {
    field.allow_only({"prepend"});
    steps_.emplace_back(Prepend{field.at("prepend").text()});
  } else if (name == "Replace") {
    steps_.emplace_back(Replace(field));
  } else {
    type.refuse("NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace or Sequence");
  }
}

void Normalizer::apply(std::string& text, MatchMemory& memory) const {
  const size_t longest = longest_from(text.size());
  const Overloaded apply_step = {
      [&](NormalForm form) { normalise(text, form); },
      [&](const Lowercase&) { lower_case(text); },
      [&](const Strip& step) {
        if (step.right) text.resize(text.size() - white_space_before(text));
        if (step.left) text.erase(0, white_space_after(text));
      },
      [&](const Prepend& step) {
        if (!text.empty()) text.insert(0, step.text);
      },
      [&](const Replace& step) { text = step.apply(text, longest, memory); },
  };
  for (const Step& step : steps_) std::visit(apply_step, step);
}

}  // namespace sfsdp::train::tokenizer
