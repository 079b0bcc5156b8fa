// SPDX-License-Identifier: BSD-3-Clause
// Texts of plans that no plan printed.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::plan::parse_plan_test {
namespace {

// The plan of a block of Llama under HSDP 2 x 2.
const std::string& plan_text() {
  static const std::string kText = [] {
    std::ifstream file(testing::source_dir() + "/sfsdp/plan/testdata/llama_step.txt");
    const std::string step{std::istreambuf_iterator<char>(file), {}};
    return print(make_plan(ir::parse_or_throw(step)));
  }();
  return kText;
}

TEST_CASE("plan texts that are cut or changed are named by line") {
  const std::string& text = plan_text();
  CHECK_THROWS_WITH_AS(parse_plan("hello\n"), doctest::Contains("line 1"), UserError);
  CHECK_THROWS_WITH_AS(parse_plan(text.substr(0, text.find("lanes:"))), doctest::Contains("not followed by lanes:"),
                       UserError);
  std::string unknown = text;
  unknown.replace(unknown.find("  %106 window"), 6, "  %999 ");
  CHECK_THROWS_WITH_AS(parse_plan(unknown, "p.txt"), doctest::Contains("the name of a value"), UserError);
  std::string number = text;
  number.replace(number.find("bytes=", number.find("buffers:")), 6, "bytes=x");
  CHECK_THROWS_WITH_AS(parse_plan(number, "p.txt"), doctest::Contains("bytes=a number"), UserError);
}

TEST_CASE("plan texts say the bits of constants, or that they are not known, and are hashed with them") {
  StepPlan plan = make_plan(ir::parse_or_throw(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4]
      %two = scalar value=2.0 : f32[]
      %c = constant index=0 : f32[4]
    fwd:
      %y = aten.mul.Tensor %x, %c kernel=0 : f32[4]
      %z = aten.mul.Tensor %y, %two kernel=1 : f32[4]
      return %z
  )"));
  const std::string without = print(plan);
  CHECK(without.find(" bits=none\nstate:") != std::string::npos);
  CHECK(print(parse_plan(without)) == without);
  plan.constant_bits = {std::nullopt, 0x0123456789abcdefull};
  const std::string with = print(plan);
  const size_t at = with.find(" bits=0123456789abcdef\n");
  REQUIRE(at != std::string::npos);
  CHECK(print(parse_plan(with)) == with);
  CHECK(bits_of_constant(parse_plan(with), 1) == 0x0123456789abcdefull);
  const uint64_t before = hash(plan);
  plan.constant_bits[1] = 1;
  CHECK(hash(plan) != before);
  for (const char* wrong : {" bits=12", " bits=0123456789ABCDEF", " bits=", ""}) {
    std::string changed = with;
    changed.replace(at, std::string(" bits=0123456789abcdef").size(), wrong);
    CHECK_THROWS_WITH_AS(parse_plan(changed), doctest::Contains("bits="), UserError);
  }
}

// The fuzzer's: sums of such numbers overflowed in verify_plan.
TEST_CASE("plan texts with numbers beyond any machine are refused") {
  const std::string& text = plan_text();
  const size_t buffers = text.find("buffers:"), bytes = text.find("bytes=", buffers) + 6;
  const std::string line =
      text.substr(text.find('\n', buffers) + 1, text.find(" bytes=", buffers) - text.find('\n', buffers));
  for (const char* number : {"-9223372036854775808", "9223372036854775552", "-256"}) {
    std::string changed = text;
    changed.replace(bytes, text.find(' ', bytes) - bytes, number);
    CHECK_THROWS_WITH_AS(parse_plan(changed, "p.txt"), doctest::Contains("expected bytes="), UserError);
  }
  std::string many = text.substr(0, text.find("inside:"));  // each of them could be, all together not
  for (int i = 0; i < 2000; ++i) many += concat(line, "bytes=1125899906842624 first=0 last=0\n");
  CHECK_THROWS_WITH_AS(parse_plan(many, "p.txt"), doctest::Contains("that a machine could hold"), UserError);
  for (const char* alignment : {"0", "-256", "1125899906842624"}) {
    const size_t begin = text.find(" alignment=") + 11;
    std::string changed = text;
    changed.replace(begin, text.find(' ', begin) - begin, alignment);
    CHECK_THROWS_WITH_AS(parse_plan(changed, "p.txt"), doctest::Contains("line 1: alignment="), UserError);
  }
  std::string header = text;
  header.replace(header.find("live_bytes="), 11, "live_bytes=9223372036854775807");
  CHECK_THROWS_WITH_AS(parse_plan(header, "p.txt"), doctest::Contains("no live_bytes="), UserError);
}

}  // namespace
}  // namespace sfsdp::plan::parse_plan_test
