// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/size_expression.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::exported {

// Recursive descent, over one text, to kMostDepth. A method returns false where the text is of another form.
class SizeParser {
 public:
  explicit SizeParser(std::string_view text) : text_(text) {}

  std::optional<SizeExpression> parse() {
    if (text_.size() > SizeExpression::kMostBytes || !sum()) return std::nullopt;
    skip_spaces();
    if (at_ != text_.size()) return std::nullopt;
    SizeExpression expression;
    expression.parts_ = std::move(parts_);
    return expression;
  }

 private:
  using Kind = SizeExpression::Kind;

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  std::string_view word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool number() {
    skip_spaces();
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    const std::optional<int64_t> value = parse_int(text_.substr(begin, at_ - begin));
    if (!value) return false;
    parts_.push_back({Kind::Number, *value});
    return true;
  }
  bool operation(Kind kind, int64_t operands) {
    parts_.push_back({kind, operands});
    return true;
  }

  bool sum() {
    if (++depth_ > SizeExpression::kMostDepth || !product()) return false;
    while (true) {
      if (take("+")) {
        if (!product() || !operation(Kind::Add, 2)) return false;
      } else if (take("-")) {
        if (!negated_product() || !operation(Kind::Add, 2)) return false;
      } else {
        --depth_;
        return true;
      }
    }
  }

  bool negated_product() {
    const auto begin = static_cast<std::ptrdiff_t>(parts_.size());
    if (!product()) return false;
    SizeExpression::Part& first = parts_[static_cast<size_t>(begin)];
    if (parts_.size() == static_cast<size_t>(begin) + 1 && first.kind == Kind::Number && first.number >= 0) {
      first.number = -first.number;
      return true;
    }
    parts_.insert(parts_.begin() + begin, {Kind::Number, -1});
    return operation(Kind::Mul, 2);
  }

  bool product() {
    if (!power()) return false;
    while (true) {
      if (take("//")) {
        if (!power() || !operation(Kind::FloorDiv, 2)) return false;
      } else if (take("*")) {
        if (!power() || !operation(Kind::Mul, 2)) return false;
      } else if (take("%")) {
        if (!power() || !operation(Kind::Mod, 2)) return false;
      } else {
        return true;
      }
    }
  }

  bool power() {
    if (!atom()) return false;
    return !take("**") || (number() && operation(Kind::Pow, 2));
  }

  bool atom() {
    if (take("(")) return sum() && take(")");
    skip_spaces();
    if (at_ == text_.size()) return false;
    const bool minus = text_[at_] == '-';
    if (is_digit(text_[minus && at_ + 1 < text_.size() ? at_ + 1 : at_])) return number();
    if (minus) {
      ++at_;
      parts_.push_back({Kind::Number, -1});
      return ++depth_ <= SizeExpression::kMostDepth && power() && operation(Kind::Mul, 2);
    }
    const std::string_view name = word();
    if (name.empty()) return false;
    if (!take("(")) {
      parts_.push_back({Kind::Symbol, 0, std::string(name)});
      return true;
    }
    if (name == "Integer") return number() && take(")");
    if (name == "Symbol") return symbol();
    return call(name);
  }

  // 's0', positive=True, integer=True)
  bool symbol() {
    if (!take("'")) return false;
    const std::string_view name = word();
    if (name.empty() || !take("'")) return false;
    parts_.push_back({Kind::Symbol, 0, std::string(name)});
    while (take(","))
      if (word().empty() || !take("=") || word().empty()) return false;
    return take(")");
  }

  bool call(std::string_view name) {
    struct Function {
      std::string_view name;
      Kind kind;
      bool takes_two;
    };
    constexpr std::array kFunctions = {
        Function{"Add", Kind::Add, false},          Function{"Mul", Kind::Mul, false},
        Function{"Max", Kind::Max, false},          Function{"Min", Kind::Min, false},
        Function{"Pow", Kind::Pow, true},           Function{"PowByNatural", Kind::Pow, true},
        Function{"FloorDiv", Kind::FloorDiv, true}, Function{"CleanDiv", Kind::FloorDiv, true},
        Function{"PythonMod", Kind::Mod, true},     Function{"Mod", Kind::Mod, true}};
    const auto* function = std::ranges::find(kFunctions, name, &Function::name);
    if (function == kFunctions.end()) return false;
    int64_t operands = 0;
    do {
      if (!sum()) return false;
      ++operands;
    } while (take(","));
    if (!take(")") || (function->takes_two && operands != 2)) return false;
    return operation(function->kind, operands);
  }

  std::string_view text_;
  size_t at_ = 0, depth_ = 0;
  std::vector<SizeExpression::Part> parts_;
};

std::optional<SizeExpression> SizeExpression::parse(std::string_view text) { return SizeParser(text).parse(); }

std::string SizeExpression::text() const {
  constexpr int kSum = 0, kProduct = 1, kAtom = 2;
  std::vector<std::pair<std::string, int>> stack;  // text, how tight it holds together
  for (const Part& part : parts_) {
    if (part.kind == Kind::Number || part.kind == Kind::Symbol) {
      const bool negative = part.kind == Kind::Number && part.number < 0;
      stack.emplace_back(part.kind == Kind::Number ? std::to_string(part.number) : part.symbol,
                         negative ? kProduct : kAtom);
      continue;
    }
    const std::vector<std::pair<std::string, int>> operands(stack.end() - part.number, stack.end());
    stack.resize(stack.size() - operands.size());
    const auto within = [&](int tight, std::string_view between) {
      std::vector<std::string> texts;
      for (const auto& [text, holds] : operands) texts.push_back(holds < tight ? concat("(", text, ")") : text);
      return join(texts, between);
    };
    switch (part.kind) {
      case Kind::Add: {
        std::string text = within(kSum, " + ");
        for (size_t at = 0; (at = text.find("+ -", at)) != std::string::npos;) text.replace(at, 3, "- ");
        stack.emplace_back(std::move(text), kSum);
        break;
      }
      case Kind::Mul: stack.emplace_back(within(kProduct, "*"), kProduct); break;
      case Kind::Pow: stack.emplace_back(within(kAtom, "**"), kProduct); break;
      case Kind::FloorDiv: stack.emplace_back(within(kAtom, "//"), kSum); break;
      case Kind::Mod: stack.emplace_back(within(kAtom, " % "), kSum); break;
      case Kind::Max: stack.emplace_back(concat("Max(", within(kSum, ", "), ")"), kAtom); break;
      case Kind::Min: stack.emplace_back(concat("Min(", within(kSum, ", "), ")"), kAtom); break;
      case Kind::Number:
      case Kind::Symbol: break;
    }
  }
  return stack.back().first;
}

std::optional<int64_t> SizeExpression::compute(Kind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (kind) {
    case Kind::Add: return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Kind::Mul: return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Kind::Max: return std::max(a, b);
    case Kind::Min: return std::min(a, b);
    case Kind::Pow:
      if (b < 0 || b > 64) return std::nullopt;
      result = 1;
      for (int64_t i = 0; i < b; ++i)
        if (__builtin_mul_overflow(result, a, &result)) return std::nullopt;
      return result;
    case Kind::FloorDiv:
    case Kind::Mod: {
      if (b <= 0) return std::nullopt;  // no size is divided so
      const bool below = a % b < 0;
      return kind == Kind::Mod ? a % b + (below ? b : 0) : a / b - (below ? 1 : 0);
    }
    case Kind::Number:
    case Kind::Symbol: break;
  }
  return std::nullopt;
}

std::optional<SizeExpression::Line> SizeExpression::combine(Kind kind, const Line& a, const Line& b) {
  const auto line = [](std::optional<int64_t> factor, std::optional<int64_t> constant,
                       const std::string& unknown) -> std::optional<Line> {
    if (!factor || !constant) return std::nullopt;
    return Line{*factor, *constant, *factor == 0 ? "" : unknown};
  };
  if (a.unknown.empty() && b.unknown.empty()) return line(0, compute(kind, a.constant, b.constant), "");
  if (kind == Kind::Add && (a.unknown.empty() || b.unknown.empty() || a.unknown == b.unknown))
    return line(compute(kind, a.factor, b.factor), compute(kind, a.constant, b.constant),
                a.unknown.empty() ? b.unknown : a.unknown);
  if (kind == Kind::Mul && b.unknown.empty())
    return line(compute(kind, a.factor, b.constant), compute(kind, a.constant, b.constant), a.unknown);
  if (kind == Kind::Mul && a.unknown.empty()) return combine(kind, b, a);
  return std::nullopt;
}

std::optional<SizeExpression::Line> SizeExpression::at(const std::map<std::string, int64_t>& known) const {
  std::vector<Line> stack;
  for (const Part& part : parts_) {
    if (part.kind == Kind::Number) {
      stack.push_back({0, part.number, ""});
    } else if (part.kind == Kind::Symbol) {
      const auto found = known.find(part.symbol);
      stack.push_back(found == known.end() ? Line{1, 0, part.symbol} : Line{0, found->second, ""});
    } else {
      const auto first = stack.end() - part.number;
      Line all = *first;
      for (auto operand = first + 1; operand != stack.end(); ++operand) {
        const std::optional<Line> next = combine(part.kind, all, *operand);
        if (!next) return std::nullopt;
        all = *next;
      }
      stack.erase(first, stack.end());
      stack.push_back(std::move(all));
    }
  }
  return stack.back();
}

}  // namespace sfsdp::exported
