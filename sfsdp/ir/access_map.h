// SPDX-License-Identifier: BSD-3-Clause
// The text of an access map, read once for each row of the op set. What it means: access.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

struct AccessMap {
  // How many dimensions a factor stands for.
  enum class Length : uint8_t { One, Any, Dots, Counted, Listed };
  struct Factor {
    std::string name;
    Length length = Length::One;
    std::string attribute;            // which counts or lists them
    std::optional<int64_t> fallback;  // what the attribute is where it is absent
    int64_t size = 0;                 // where the map says it; else 0
  };
  struct Use {
    int factor = 0;  // kOnes: dimensions of size 1
    char mark = ' ';
  };
  static constexpr int kOnes = -1;
  using Dimension = std::vector<Use>;  // several uses: a dimension of several factors, outer first
  struct Pattern {
    std::vector<Dimension> dims;
    bool read = true;
    bool list = false;  // stands for as many operands or results as there are
    Factor ones;        // whose attribute says where dimensions of size 1 are; "": at the end
  };
  struct Clause {
    std::vector<Pattern> operands, results;
  };
  struct Choice {
    std::string flag;  // "": always
    std::vector<Clause> clauses;
  };
  std::vector<Factor> factors;
  std::vector<Choice> choices;
  // By group, the operands in which all results are linear together, as the sum of its results is the result of their sums.
  std::vector<std::vector<size_t>> linear;
  bool exact = false;        // a dimension of size 1 is not broadcast: it is the first of more
  bool by_place = false;     // what an element becomes depends on its place in the whole tensor
  bool elementwise = false;  // "..., ... -> ...": one choice, one result, no marks, nothing else
};

// Throws InternalError that says what is wrong with the text.
AccessMap parse_access_map(std::string_view text);

// nullptr: the row has none.
const AccessMap* map_of(const OpRow* row);

}  // namespace sfsdp::ir
