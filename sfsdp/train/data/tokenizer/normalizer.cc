// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/normalizer.h"

#include <map>
#include <utility>

#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr int kMostDepth = 8;  // of sequences in sequences

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
    return Pattern::literal(text->text(), text->where());
  }
  const Field pattern = field.at("Regex");
  return Pattern::compile(pattern.text(), pattern.where());
}

std::string replace_all(const Pattern& pattern, std::string_view text, std::string_view with, MatchMemory& memory) {
  std::string out;
  size_t done = 0;
  Matches matches(pattern, text, memory);
  while (const auto match = matches.next()) {
    out.append(text, done, match->begin - done).append(with);
    done = match->end;
  }
  return out.append(text, done);
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
    field.allow_only({"pattern", "content"});
    steps_.emplace_back(Replace{parse_pattern(field.at("pattern")), field.at("content").text()});
  } else {
    type.refuse("NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace or Sequence");
  }
}

void Normalizer::apply(std::string& text, MatchMemory& memory) const {
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
      [&](const Replace& step) { text = replace_all(step.pattern, text, step.with, memory); },
  };
  for (const Step& step : steps_) std::visit(apply_step, step);
}

}  // namespace sfsdp::train::tokenizer
