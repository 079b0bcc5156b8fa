// SPDX-License-Identifier: BSD-3-Clause
// A pass's options struct as rows: texts and pipelines fill it by name, help lists it. Defaults stand in the struct alone.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// One option, as written on the command line: name=value.
struct PassOption {
  std::string name;
  ir::Attr fallback;  // bool, int64_t, double or string; a value must be of the same kind
  double min = 0;     // of numbers
  double max = 0;
  std::string help;
  std::vector<std::string> words = {};  // all that a string may be; empty: anything
};

using OptionValues = std::map<std::string, ir::Attr>;  // every option of the pass, fallbacks filled in

struct Range {
  double min = 0, max = 0;
};

template <class Options>
struct Field {
  PassOption option;
  std::function<ir::Attr(const Options&)> get;
  std::function<void(Options&, const ir::Attr&)> set;
};

template <class Options, class T>
requires(!std::is_enum_v<T>) Field<Options> field(std::string name, T Options::*member, Range range, std::string help) {
  return {{std::move(name), Options{}.*member, range.min, range.max, std::move(help)},
          [member](const Options& o) -> ir::Attr { return o.*member; },
          [member](Options& o, const ir::Attr& value) { o.*member = std::get<T>(value); }};
}

template <class Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

template <class Enum>
std::string word_of(const Words<Enum>& words, Enum value) {
  for (const auto& [word, meaning] : words)
    if (meaning == value) return word;
  return "";
}

// An enum, by the word for each value.
template <class Options, class Enum>
requires std::is_enum_v<Enum> Field<Options> field(std::string name, Enum Options::*member, const Words<Enum>& words,
                                                   std::string help) {
  Field<Options> row{{std::move(name), word_of(words, Options{}.*member), 0, 0, std::move(help)},
                     [member, words](const Options& o) -> ir::Attr { return word_of(words, o.*member); },
                     [member, words](Options& o, const ir::Attr& value) {
                       for (const auto& [word, meaning] : words)
                         if (word == std::get<std::string>(value)) o.*member = meaning;
                     }};
  for (const auto& [word, meaning] : words) row.option.words.push_back(word);
  return row;
}

// Options::fields() lists all rows of a struct.
template <class Options>
OptionValues values_of(const Options& options) {
  OptionValues values;
  for (const Field<Options>& row : Options::fields()) values[row.option.name] = row.get(options);
  return values;
}

template <class Options>
Options options_of(const OptionValues& values) {
  Options options;
  for (const Field<Options>& row : Options::fields()) row.set(options, values.at(row.option.name));
  return options;
}

}  // namespace sfsdp::passes
