// SPDX-License-Identifier: BSD-3-Clause
// The worked example of docs/writing-a-pass.md; sfsdp/step/passes_test.cc runs it in a compiled step,
// tests/e2e/own_project.sh in a project of its own.
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>

#include "examples/own_pass/drop_mul_by_one.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::passes::own_pass_test {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(sfsdp::testing::source_dir() + "/" + path);
  REQUIRE_MESSAGE(file, path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// By name, once per process.
void registered() {
  if (!find_pass("drop_mul_by_one")) register_drop_mul_by_one();
}

TEST_CASE("the page on passes shows the example as it is compiled") {
  const std::string code = read("examples/own_pass/drop_mul_by_one.h");
  CHECK(read("docs/writing-a-pass.md").find("```cpp\n" + code + "```\n") != std::string::npos);
}

TEST_CASE("drop_mul_by_one: a product by 1 is its operand, also of products, in forward and backward") {
  registered();
  testing::expect_pass("drop_mul_by_one", R"(
    graph mesh [a=2] view local
      %x = input name=x : f32[4] own(a)
    fwd:
      %r = aten.relu %x : f32[4]
      %1 = aten.mul.Scalar %r other=1.0 : f32[4]
      %2 = aten.mul.Scalar %1 other=1 : f32[4]
      %y = aten.mul.Scalar %2 other=0.5 : f32[4]
    bwd:
      %g = aten.mul.Scalar %y other=1.0 : f32[4]
      return %y, %g
  )",
                       R"(
    graph mesh [a=2] view local
      %x = input name=x : f32[4] own(a)
    fwd:
      %r = aten.relu %x : f32[4]
      %y = aten.mul.Scalar %r other=0.5 : f32[4]
    bwd:
      return %y, %y
  )");
}

TEST_CASE("drop_mul_by_one: leaves what changes the type, what is carried or given away, and backward if told so") {
  registered();
  testing::expect_unchanged("drop_mul_by_one", R"(
    graph mesh [] view local
      %n = input name=n : i64[4]
      %p = param name=p : f32[4]
    fwd:
      %f = aten.mul.Scalar %n other=1.0 : f32[4]
      %p.new = aten.mul.Scalar %p other=1.0 : f32[4]
      return %f
      carry %p = %p.new
  )");
  testing::expect_unchanged("drop_mul_by_one backward=false", R"(
    graph mesh [] view local
      %x = input name=x : f32[4]
    bwd:
      %g = aten.mul.Scalar %x other=1.0 : f32[4]
      return %g
  )");
}

TEST_CASE("a pass is registered under a name of its own, with options that can be written") {
  registered();
  CHECK(is_registered(*find_pass("drop_mul_by_one")));
  CHECK_FALSE(is_registered(*find_pass("dead_code")));
  CHECK(all_passes().back() == find_pass("drop_mul_by_one"));
  CHECK(parse_passes("dead_code, drop_mul_by_one backward=false").size() == 2);
  CHECK_THROWS_WITH_AS(parse_passes("drop_mul_by_on"), doctest::Contains("did you mean drop_mul_by_one?"), UserError);
  const auto refused = [](PassInfo info, const char* part) {
    CHECK_THROWS_WITH_AS(register_pass(std::move(info)), doctest::Contains(part), UserError);
  };
  const PassInfo own = *find_pass("drop_mul_by_one");
  refused(own, "there is a pass drop_mul_by_one already");
  const auto changed = [&](auto change) {
    PassInfo info = own;
    info.name = "another";
    change(info);
    return info;
  };
  refused(changed([](PassInfo& info) { info.name = "dead_code"; }), "there is a pass dead_code already");
  refused(changed([](PassInfo& info) { info.name = "not a word"; }), "expected a word");
  refused(changed([](PassInfo& info) { info.run = nullptr; }), "another has no function");
  refused(changed([](PassInfo& info) { info.options.push_back(info.options[0]); }), "expected words, each once");
  refused(changed([](PassInfo& info) { info.options[0].fallback = std::vector<int64_t>{}; }),
          "expected a bool, int64_t");
  CHECK_FALSE(find_pass("another"));
}

}  // namespace
}  // namespace sfsdp::passes::own_pass_test
