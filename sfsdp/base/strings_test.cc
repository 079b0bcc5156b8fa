// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/strings.h"

#include <doctest/doctest.h>

#include <limits>

namespace sfsdp::strings_test {

TEST_CASE("split keeps empty pieces and join undoes it") {
  CHECK(split("a,b,", ',') == std::vector<std::string>{"a", "b", ""});
  CHECK(split("", ',') == std::vector<std::string>{""});
  for (const char* text : {"", ",", "a", "a,,b", ",a,"}) CHECK(join(split(text, ','), ",") == text);
}

TEST_CASE("trim takes blanks from both ends only") {
  CHECK(trim("  a b\t\n") == "a b");
  CHECK(trim(" \t") == "");
}

TEST_CASE("numbers are parsed whole or not at all") {
  CHECK(parse_int("-12") == -12);
  CHECK(parse_int("+12") == 12);
  for (const char* text : {"", "1 ", "1e3", "0x10", "1.0", "9223372036854775808", "+-1"}) CHECK_FALSE(parse_int(text));
  CHECK(parse_double("3e-4") == 3e-4);
  CHECK(parse_double("1") == 1.0);
  for (const char* text : {"", "1.0f", "nan", "inf", "1e999", "one"}) CHECK_FALSE(parse_double(text));
}

TEST_CASE("the shortest form of a double reads back and looks like a float") {
  CHECK(shortest(3e-4) == "0.0003");
  CHECK(shortest(1.0) == "1.0");
  CHECK(shortest(1e-8) == "1e-08");
  for (double value : {0.1, 1.0 / 3, 8e-4, 1e300, -2.5}) CHECK(parse_double(shortest(value)) == value);
}

TEST_CASE("commas part groups of three, before the point only") {
  CHECK(with_commas(int64_t{0}) == "0");
  CHECK(with_commas(int64_t{999}) == "999");
  CHECK(with_commas(int64_t{1000}) == "1,000");
  CHECK(with_commas(int64_t{-123456}) == "-123,456");
  CHECK(with_commas(int64_t{8030261248}) == "8,030,261,248");
  CHECK(with_commas(1234.5, 2) == "1,234.50");
  CHECK(with_commas(999.999, 2) == "1,000.00");
  CHECK(with_commas(0.126, 2) == "0.13");
  CHECK(with_commas(1234.0, 0) == "1,234");
  CHECK(with_commas(-std::numeric_limits<double>::quiet_NaN(), 2) == "nan");
}

TEST_CASE("a JSON string escapes what JSON must, and passes the rest through") {
  CHECK(json_quoted("") == R"("")");
  CHECK(json_quoted(R"(a "b" \c)") == R"("a \"b\" \\c")");
  CHECK(json_quoted("line\n\ttab\x01\x7f") == R"("line\u000a\u0009tab\u0001\u007f")");
  CHECK(json_quoted(std::string_view("a\0b", 3)) == R"("a\u0000b")");
  CHECK(json_quoted("λ·µ") == "\"λ·µ\"");
}

TEST_CASE("nearest suggests typing mistakes only, the first of equally close candidates") {
  const std::vector<std::string> names = {"all_gather", "reduce_scatter", "wait"};
  CHECK(nearest("all_gathr", names) == "all_gather");
  CHECK(nearest("wiat", names) == "wait");
  CHECK(nearest("wai", names) == "wait");
  CHECK(nearest("wi", names) == "");
  CHECK(nearest("matmul", names) == "");
  CHECK(nearest("stepz", {"seed", "steps", "stepy"}) == "steps");
  CHECK(nearest("x", {}) == "");
  const std::string long_name(128, 'a');
  CHECK(nearest(long_name, {"short", long_name + "b"}) == long_name + "b");
  CHECK(nearest(long_name + "a", {long_name}) == "");  // not typed by anybody
  CHECK(did_you_mean("wiat", names) == "; did you mean wait?");
  CHECK(did_you_mean("train", {"-n"}) == "");
}

}  // namespace sfsdp::strings_test
