// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/size_expression.h"

#include <doctest/doctest.h>

#include <random>

#include "sfsdp/base/check.h"

namespace sfsdp::exported::size_expression_test {
namespace {

const std::string kS0 = "Symbol('s0', positive=True, integer=True)", kS1 = "Symbol('s1')";

std::string text_of(const std::string& text) {
  const auto expression = SizeExpression::parse(text);
  return expression ? expression->text() : "";
}

std::optional<int64_t> value_of(const std::string& text, int64_t s0, int64_t s1 = 1) {
  const auto expression = SizeExpression::parse(text);
  const auto line = expression ? expression->at({{"s0", s0}, {"s1", s1}}) : std::nullopt;
  return line && line->unknown.empty() ? std::optional(line->constant) : std::nullopt;
}

TEST_CASE("a size of an archive is printed as Python writes it, and read again") {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {kS0, "s0"},
      {"Integer(7)", "7"},
      {"Mul(Integer(2), " + kS0 + ")", "2*s0"},
      {"Add(" + kS0 + ", Integer(1))", "s0 + 1"},
      {"Add(Mul(Integer(6), " + kS0 + "), Integer(-3))", "6*s0 - 3"},
      {"Mul(Integer(-1), " + kS0 + ")", "-1*s0"},
      {"Mul(Integer(4), Add(" + kS0 + ", " + kS1 + "))", "4*(s0 + s1)"},
      {"Pow(" + kS0 + ", Integer(2))", "s0**2"},
      {"FloorDiv(Add(Mul(Integer(2), " + kS0 + "), Integer(2)), Integer(3))", "(2*s0 + 2)//3"},
      {"Add(Mod(" + kS0 + ", Integer(3)), Integer(5))", "s0 % 3 + 5"},
      {"Max(Integer(1), " + kS0 + ", " + kS1 + ")", "Max(1, s0, s1)"},
  };
  for (const auto& [text, printed] : rows) {
    CAPTURE(text);
    CHECK(text_of(text) == printed);
    CHECK(text_of(printed) == printed);
    CHECK(value_of(text, 11, 5) == value_of(printed, 11, 5));
  }
}

TEST_CASE("a size of an archive has the value that Python gives it") {
  CHECK(value_of("Mul(Integer(2), " + kS0 + ")", 4) == 8);
  CHECK(value_of("2*s0*s1 + 1 - s1", 4, 3) == 22);
  CHECK(value_of("(s0 + 1)//2", 4) == 2);
  CHECK(value_of("(1 - s0)//2", 4) == -2);
  CHECK(value_of("(1 - s0) % 5", 4) == 2);
  CHECK(value_of("PythonMod(s0, 3) + Min(s0, s1)", 4, 3) == 4);
  CHECK(value_of("s0**3 - -2", 4) == 66);
  CHECK(value_of("10 - 3 - 2", 0) == 5);
  CHECK(value_of("-s0 + 9", 4) == 5);
}

TEST_CASE("what a size is of one symbol that is not known is a line of it, or nothing") {
  const auto line = [](const std::string& text) { return SizeExpression::parse(text)->at({{"s1", 3}}); };
  const auto found = line("2*(s0 + s1) - 1");
  REQUIRE(found);
  CHECK(found->factor == 2);
  CHECK(found->constant == 5);
  CHECK(found->unknown == "s0");
  CHECK(line("s0 - s0")->unknown.empty());
  for (const char* text : {"s0*s0", "s0 + s2", "s0//2", "s0 % 2", "s0**2", "Max(s0, 2)"}) {
    CAPTURE(text);
    CHECK(!line(text));
  }
}

TEST_CASE("sizes of an archive that are no expressions, or have no value in 64 bits") {
  for (const char* text : {"",           " ",
                           "2*",         "*2",
                           "(s0",        "s0)",
                           "s0 s1",      "1.5",
                           "Float(2)",   "Mul()",
                           "Mod(s0)",    "Pow(2, 3, 4)",
                           "Symbol(s0)", "Symbol('s0'",
                           "Symbol('')", "s0/2",
                           "s0**s1",     "99999999999999999999",
                           "u\xff",      "s0\x1b",
                           "--",         "Symbol('s0', x)"})
    CHECK_MESSAGE(!SizeExpression::parse(text), text);
  for (const char* text : {"s0//0", "s0 % 0", "s0//(0 - 2)", "9223372036854775807*2", "9223372036854775807 + s0",
                           "s0**-1", "s0**65", "(s0 + 8)**64", "(-9223372036854775807 - 1)//(0 - 1)"})
    CHECK_MESSAGE(!value_of(text, 4), text);
  const size_t deep = 100'000;
  CHECK(!SizeExpression::parse(std::string(deep, '(')));
  CHECK(!SizeExpression::parse(std::string(1000, '(') + "1" + std::string(900, ')')));
  CHECK(!SizeExpression::parse(std::string(1000, '-') + "1"));
  std::string nested = "s0";
  for (int i = 0; i < 100; ++i) nested = "Add(" + nested + ")";
  CHECK(!SizeExpression::parse(nested));
  std::string many = "s0";
  while (many.size() + 3 < SizeExpression::kMostBytes) many += "//1";
  REQUIRE(SizeExpression::parse(many));
  CHECK(value_of(many, 4) == 4);
}

TEST_CASE("any text is read as a size of an archive, or is none") {
  std::mt19937 draw(1);
  const std::vector<std::string> words = {"s0", "Add(", "Mul(", "Symbol('", "')", "Integer(", "-",  "+",   "*",
                                          "**", "//",   "%",    "(",        ")",  ",",        " ",  "1",   "0",
                                          "'",  "=",    "Mod",  "Pow(s",    "99", "s1",       "\n", "Max("};
  int read = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (uint32_t n = draw() % 8; n > 0; --n) text += words[draw() % words.size()];
    if (const auto expression = SizeExpression::parse(text)) {
      ++read;
      const std::string printed = expression->text();
      CAPTURE(text);
      CAPTURE(printed);
      CHECK(value_of(printed, 7, 3) == value_of(text, 7, 3));
      static_cast<void>(expression->at({}));
    }
  }
  CHECK(read > 1000);
}

}  // namespace
}  // namespace sfsdp::exported::size_expression_test
