// SPDX-License-Identifier: BSD-3-Clause
// A size of an archive that is computed of others, "2*s0": read, printed, evaluated. The text comes from anywhere: what is too
// long, too deep or of another form is no expression, and what does not fit into 64 bits has no value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::exported {

class SizeExpression {
 public:
  static constexpr size_t kMostBytes = 2000, kMostDepth = 32;

  // Both forms that torch writes: of Python's repr, "Mul(Integer(2), Symbol('s0', positive=True, integer=True))", and as in
  // Python, "2*s0", "(s0 + 1)//2", "Mod(s0, 3)". none: of another form
  static std::optional<SizeExpression> parse(std::string_view text);

  // "2*s0 + 1"
  std::string text() const;

  // factor * unknown + constant; a number, if unknown is empty
  struct Line {
    int64_t factor = 0, constant = 0;
    std::string unknown;
  };
  // What it is where some symbols are known. none: it has more than one other, is no line of it, or has no value there
  std::optional<Line> at(const std::map<std::string, int64_t>& known) const;

 private:
  friend class SizeParser;
  enum class Kind : uint8_t { Number, Symbol, Add, Mul, Pow, FloorDiv, Mod, Max, Min };
  struct Part {
    Kind kind = Kind::Number;
    int64_t number = 0;  // of operands, unless it is a number
    std::string symbol = {};
  };
  static std::optional<int64_t> compute(Kind kind, int64_t a, int64_t b);
  static std::optional<Line> combine(Kind kind, const Line& a, const Line& b);

  std::vector<Part> parts_;  // each after its operands
};

}  // namespace sfsdp::exported
