// SPDX-License-Identifier: BSD-3-Clause
// Numbers that depend on the sizes, as torch.export has them: expressions in types, and nodes that compute them from inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <variant>

#include "sfsdp/exported/program.h"
#include "sfsdp/exported/sizes.h"

namespace sfsdp::exported {

// Lives as long as a graph is built; a number is computed once, by nodes at the graph's end when it is first asked for.
class SymNumbers {
 public:
  //   name: makes a name that no value of the graph has, from a word
  SymNumbers(const Sizes& sizes, Graph& graph, std::function<std::string(const std::string& word)> name)
      : sizes_(sizes), graph_(graph), name_(std::move(name)) {}

  static std::string symbol_name(size_t symbol) { return "s" + std::to_string(symbol); }

  // The number that had these values at the points, for a type.
  //   what:   names it in an error: "dimension 1 of aten.view at layers.0"
  //   throws: UserError where it is no sum of products of the sizes
  SymInt expression(std::span<const int64_t> values, const std::string& what) const;
  // For an argument: the number, or the slot that has it.
  std::variant<int64_t, ValueArgument> argument(std::span<const int64_t> values, const std::string& what);

 private:
  Polynomial find(std::span<const int64_t> values, const std::string& what) const;
  Slot slot_of(const Polynomial& polynomial);
  Slot size_of_input(size_t symbol);
  Slot compute(const char* target, Slot a, std::variant<int64_t, Slot> b, const Polynomial& result);
  Slot define(const std::string& word, const Polynomial& value);

  const Sizes& sizes_;
  Graph& graph_;
  std::function<std::string(const std::string& word)> name_;
  std::map<Polynomial, Slot> known_;
};

}  // namespace sfsdp::exported
