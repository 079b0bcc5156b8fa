// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/explain_plan.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/plan_file.h"

namespace sfsdp::tools::explain_plan_test {
namespace {

const char* const kText = R"(graph mesh [dp_shard=1] view local
  %w = param name=w : f32[8, 8] at layers.0
  %n = param name=n : f32[8] at layers.0.norm
  %x = input name=x : f32[4, 8]
fwd:
  %h, %r = rms_norm %x, %n dims=1 eps=0.5 kernel=0 : f32[4, 8], f32[4, 1] at layers.0.norm
  %y = linear %h, %w kernel=1 : f32[4, 8] at layers.0
  %z = aten.relu %y kernel=2 : f32[4, 8] at layers.0
  %o, %s = rms_norm %z, %n dims=1 eps=0.5 kernel=2 : f32[4, 8], f32[4, 1] at layers.1
  %p = linear %o, %w kernel=3 : f32[4, 8] at layers.1
  return %p
)";

std::string explained(const std::string& path) {
  std::ostringstream out;
  explain_plan(plan::make_plan(ir::parse_or_throw(kText)), path, out);
  return out.str();
}

TEST_CASE("plan --explain: pairs of kernels apart and results with memory of their own, by reason") {
  CHECK(explained("") ==
        R"(Pairs of kernels that read the same or one what the other makes, and were not joined: 3
  2: a product, attention or copy begins a kernel
      linear %y at layers.0, apart from rms_norm %h at layers.0.norm
      linear %p at layers.1, apart from rms_norm %o at layers.1
  1: the rule would join them: other passes or options made these kernels
      aten.relu %z at layers.0, apart from linear %y at layers.0
Results with memory of their own, written over nothing that their kernel reads: 5
  2: an op of its kernel reads it at other places than it writes
      linear %y at layers.0, not over %h
      linear %p at layers.1, not over %o
  2: its kernel reads no memory that comes and goes
      rms_norm %h at layers.0.norm
      rms_norm %r at layers.0.norm
  1: what its kernel reads has another size, or it has strides
      rms_norm %s at layers.1, not over %y
)");
}

TEST_CASE("plan --explain: of the modules below a path") {
  const std::string one = explained("layers.1");
  CHECK(one.find("linear %p") != std::string::npos);
  CHECK(one.find("linear %y at layers.0,") == std::string::npos);
  CHECK(explained("layers.0").find("rms_norm %h at layers.0.norm\n") != std::string::npos);
  CHECK_THROWS_WITH_AS(explained("layer.1"), doctest::Contains("--explain layer.1 is the path of no op"), UserError);
}

struct Called {
  int status;
  std::string out, err;
};

Called call(const Run& run, const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int status = run_command(find_command("plan"), args, run, out, err);
  return {status, out.str(), err.str()};
}

TEST_CASE("plan --diff: 0 for one plan twice, 1 for two, 2 where one cannot be read; plan --check explains a file") {
  const testing::TemporaryFolder folder;
  const std::string text = plan::print(plan::make_plan(ir::parse_or_throw(kText)));
  std::string other = text;
  other.replace(other.find("aten.relu"), 9, "aten.tanh");
  const std::string a = folder.write("a.plan", text), b = folder.write("b.plan", other);
  CHECK(call(run_diff_plans, {"--diff", a, a}).status == 0);
  CHECK(call(run_diff_plans, {"--diff", a, a}).out.ends_with("the plans are the same\n"));
  const Called two = call(run_diff_plans, {"--diff", a, b});
  CHECK(two.status == 1);
  CHECK(two.out.find("op %z is in A [fwd] %z = aten.relu %y : f32[4, 8] at layers.0\n    in B [fwd] %z = aten.tanh") !=
        std::string::npos);
  CHECK(call(run_diff_plans, {"--diff", a, a + "x"}).status == 2);
  CHECK(call(run_diff_plans, {"--diff", a}).err.find("--diff takes two plans") != std::string::npos);
  CHECK(call(run_diff_plans, {"--diff", a, b, "--json"}).status == 2);
  CHECK(call(run_check_plan, {"--check", a, b}).err.find("--diff A B compares two plans") != std::string::npos);
  const Called why = call(run_check_plan, {"--check", a, "--explain", "layers.1"});
  CHECK(why.err == "");
  CHECK(why.out == explained("layers.1"));
}

}  // namespace
}  // namespace sfsdp::tools::explain_plan_test
