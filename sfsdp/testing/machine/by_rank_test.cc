// SPDX-License-Identifier: BSD-3-Clause
// Ops that one text gives to all ranks and that each runs in its own way: the machine against the interpreter, and texts that are
// broken in one place.
#include <doctest/doctest.h>

#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/machine/reference.h"

namespace sfsdp::plan::machine::by_rank_test {
namespace {

// Each of four ranks reads its quarter of what all have, through views of a view.
constexpr const char* kQuarters = R"(
graph mesh [dp_shard=2, u=2] view local
  %w = param name=w : f32[64, 4]
fwd:
  %x = aten.neg %w kernel=0 : f32[64, 4]
  %a = view %x offset="0 + 128*dp_shard" : f32[32, 4]
  %b = narrow %a dim=0 length=16 start="0 + 16*u" : f32[16, 4]
  %c = aten.mul.Scalar %b kernel=1 other=0.5 : f32[16, 4]
  %g = all_gather %c axis=u dim=0 : f32[32, 4]
  %h = all_gather %g axis=dp_shard dim=0 : f32[64, 4]
  return %h
)";

// Products, a sum and a norm of the first rows alone.
constexpr const char* kRows = R"(
graph mesh [dp_shard=1] view local
  %w = param name=w : f32[4, 8]
  %n = state name=n : i64[]
  %x = input name=x : f32[16, 8]
fwd:
  %a = linear %x, %w, %n counted=[0] kernel=0 : f32[16, 4]
  %b = aten.relu %a, %n counted=[0] kernel=1 : f32[16, 4]
  %c = aten.add.Tensor %b, %a, %n counted=[0, 1] kernel=2 : f32[16, 4]
  %dw = linear_dw %c, %x, %n counted=[0, 1] kernel=3 : f32[4, 8]
  %s = aten.sum.dim_IntList %c, %n counted=[0] dim=[0] keepdim=false kernel=4 : f32[4]
  return %dw, %s
)";

// Ranks have 5 and 3 rows; padded, they are gathered.
constexpr const char* kUneven = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w row_axis=dp_shard row_counts=[5, 3] : f32[5/dp_shard, 4]
fwd:
  %a = aten.neg %w counted=[0] kernel=0 row_axis=dp_shard row_counts=[5, 3] : f32[5/dp_shard, 4]
  %b = aten.mul.Scalar %a counted=[0] kernel=1 other=0.5 row_axis=dp_shard row_counts=[5, 3] : f32[5/dp_shard, 4]
  %p = pad %b counted=[0] dim=0 kernel=2 row_axis=dp_shard row_counts=[5, 3] size=5 : f32[5/dp_shard, 4]
  %g = all_gather %p axis=dp_shard dim=0 : f32[10, 4]
  return %g
)";

Edit with_rows(double rows) {
  return [rows](std::vector<Inputs>& by_rank) {
    for (Inputs& inputs : by_rank) inputs.at("n").data = {rows};
  };
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

StepPlan plan_of(const std::string& text) { return make_plan(ir::parse_or_throw(text)); }

std::string errors_of(const std::string& text) {
  const ir::ParseResult parsed = ir::parse(text);
  REQUIRE_MESSAGE(parsed.ok(), ir::to_string(parsed.diagnostics));
  if (const auto wrong = ir::verify(parsed.graph); !wrong.empty()) return ir::to_string(wrong);
  return join(verify_plan(make_plan(parsed.graph.clone())), "\n");
}

bool says(const std::string& errors, const std::string& expected) {
  const bool found = errors.find(expected) != std::string::npos;
  if (!found) MESSAGE("got: ", errors);
  return found;
}

}  // namespace

TEST_CASE("affine offsets: each of 2 x 2 ranks sees its own part, by one text") {
  const StepPlan plan = plan_of(kQuarters);
  CHECK(join(verify_plan(plan), "\n") == "");
  const std::string text = print(plan);
  CHECK(text.substr(text.find("views:")) == "views:\n  %a at +0 +512*dp_shard\n  %b at +0 +512*dp_shard +256*u\n");
  CHECK(hash(parse_plan(text)) == hash(plan));
  CHECK(faults_under(plan, 20) == "");
  const std::vector<Inputs> inputs = ir::interp::seeded_inputs(plan.graph, 7);
  const Outcome outcome = run(plan, {inputs});
  for (size_t rank = 0; rank < 4; ++rank)
    for (size_t e = 0; e < 256; ++e)
      CHECK(outcome.steps[0][rank].outputs[0].data[e] == inputs[0].at("w").data[e] * -0.5);
}

TEST_CASE("affine offsets: one spelling each") {
  CHECK(ir::to_string(*ir::parse_affine("4096 + 512*dp_shard + -2*u")) == "4096 + 512*dp_shard + -2*u");
  for (const char* text : {"", "x", "4096", "512*dp_shard", "4096 + 0*u", "4096 +512*u", "4096 + 512 * u",
                           "1 + 2*u + 3*dp_shard", "1 + 2*u + 3*u", "1 + 2*u ", "01 + 2*u", "1 + 99999999999999*u"})
    CHECK_MESSAGE(!ir::parse_affine(text), text);
}

TEST_CASE("counts in memory: the first rows are computed, no others read or written") {
  const StepPlan plan = plan_of(kRows);
  CHECK(join(verify_plan(plan), "\n") == "");
  for (const double rows : {0.0, 1.0, 7.0, 16.0}) {
    CAPTURE(rows);
    CHECK(faults_under(plan, 20, with_rows(rows)) == "");
  }
}

TEST_CASE("counts in memory: what lies beyond the rows stays as it is") {
  const StepPlan plan = plan_of(R"(
graph mesh [dp_shard=1] view local
  %n = input name=n : i64[]
  %w = state name=w : f32[16, 8]
fwd:
  %a = aten.neg %w, %n counted=[0] kernel=0 : f32[16, 8]
  %s = aten.sum %a, %n counted=[0] kernel=1 : f32[]
  return %s
)");
  std::vector<Inputs> inputs = ir::interp::seeded_inputs(plan.graph, 7);
  inputs[0].at("n").data = {5};
  double sum = 0;
  for (size_t e = 0; e < 40; ++e) sum -= inputs[0].at("w").data[e];
  for (size_t e = 40; e < 128; ++e) inputs[0].at("w").data[e] = std::numeric_limits<double>::quiet_NaN();
  const Outcome outcome = run(plan, {inputs});
  CHECK(outcome.steps[0][0].outputs[0].data[0] == sum);
  inputs[0].at("n").data = {17};
  CHECK_THROWS_WITH_AS(run(plan, {inputs}), doctest::Contains("has 17 rows"), UserError);
  CHECK_THROWS_AS(ir::interp::run(plan.graph, inputs), UserError);
}

TEST_CASE("sizes by rank: shards of 5 and 3 rows, buffers of 5") {
  const StepPlan plan = plan_of(kUneven);
  CHECK(join(verify_plan(plan), "\n") == "");
  CHECK(faults_under(plan, 20) == "");
  CHECK(hash(plan) !=
        hash(plan_of(replaced(replaced(replaced(replaced(kUneven, "5, 3", "5, 2"), "5, 3", "5, 2"), "5, 3", "5, 2"),
                              "5, 3", "5, 2"))));
}

TEST_CASE("product kernels: parsed, printed, hashed, and known") {
  const StepPlan plan = plan_of(replaced(kRows, "kernel=0", "kernel=0 product_kernel=onednn.brgemm"));
  CHECK(join(verify_plan(plan), "\n") == "");
  CHECK(print(parse_plan(print(plan))) == print(plan));
  CHECK(hash(plan) != hash(plan_of(kRows)));
  CHECK(hash(plan) != hash(plan_of(replaced(kRows, "kernel=0", "kernel=0 product_kernel=onednn.matmul"))));
}

TEST_CASE("buckets: members that overlap or leave the bucket are refused") {
  const auto bucket = [](const char* offsets, const char* numels) {
    return concat("graph mesh [dp_shard=2] view local\n  %w = param members=[a, b] name=w numels=", numels,
                  " offsets=", offsets, " size=128 : f32[64/dp_shard]\n");
  };
  const auto errors = [](const std::string& text) { return ir::to_string(ir::verify(ir::parse_or_throw(text))); };
  CHECK(errors(bucket("[0, 64]", "[60, 64]")) == "");
  CHECK(errors(bucket("[64, 0]", "[64, 60]")) == "");
  CHECK(says(errors(bucket("[0, 64]", "[65, 60]")), "expected its end at 64 at most, where b begins"));
  CHECK(says(errors(bucket("[64, 0]", "[65, 60]")), "expected its end at 128 at most, where size= ends"));
}

TEST_CASE("by rank: passes say that they know none") {
  ir::Graph graph = ir::parse_or_throw(kUneven);
  const std::vector<passes::PassCall> calls = {passes::make_call("dead_code")};
  CHECK_THROWS_WITH_AS(passes::run_passes(graph, calls, {}), doctest::Contains("differ by rank"), UserError);
}

TEST_CASE("by rank: broken texts are refused") {
  struct Mutant {
    const char *what, *text, *from, *to, *expected;
  };
  const Mutant mutants[] = {
      {"an offset is beyond the end at the last coordinate", kQuarters, "0 + 128*dp_shard", "4 + 128*dp_shard",
       "on the rank at dp_shard=1"},
      {"a start is beyond the end at the last coordinate", kQuarters, "0 + 16*u", "1 + 16*u", "on the rank at u=1"},
      {"a start is before the begin at the last coordinate", kQuarters, "0 + 16*u", "8 + -16*u", "on the rank at u=1"},
      {"an axis that the mesh lacks", kQuarters, "16*u", "16*cp", "names axis cp"},
      {"an offset that is no sum", kQuarters, "0 + 16*u", "16 * u", "expected a number, or"},
      {"an affine offset of an op that has none", kQuarters, "all_gather %g axis=dp_shard dim=0",
       "all_gather %g axis=dp_shard dim=\"0 + 1*u\"", "needs dim="},
      {"a part is taken for the whole", kQuarters, "  return %h", "  return %c", "each rank's own"},
      {"a reader takes rows that are not there", kRows, "aten.relu %a, %n counted=[0]", "aten.relu %a",
       "that nobody has made"},
      {"a reader counts by another number", kRows, "aten.relu %a, %n counted=[0]", "aten.relu %a, %m counted=[0]",
       "that nobody has made"},
      {"counted rows are returned", kRows, "return %dw", "return %c", "is returned, and has counted rows"},
      {"one of two operands is not counted", kRows, "counted=[0, 1] kernel=2", "counted=[0] kernel=2",
       "aten.add.Tensor"},
      {"the weight is counted", kRows, "%w, %n counted=[0] kernel=0", "%w, %n counted=[0, 1] kernel=0", "as many rows"},
      {"rows are counted by a real number", kRows, "name=n : i64[]", "name=n : f32[]",
       "expected a number as its last operand"},
      {"an operand that is not there is counted", kRows, "counted=[0] kernel=1", "counted=[1] kernel=1", "below 1"},
      {"uneven rows are gathered", kUneven, "all_gather %p", "all_gather %b", "that nobody has made"},
      {"sizes for another number of ranks", kUneven,
       "row_counts=[5, 3] :", "row_counts=[5, 3, 1] :", "each place on dp_shard"},
      {"no rank has the largest size", kUneven, "row_counts=[5, 3] :", "row_counts=[4, 3] :", "the largest 5"},
      {"a reader has other sizes", kUneven, "%w counted=[0] kernel=0 row_axis=dp_shard row_counts=[5, 3]",
       "%w counted=[0] kernel=0 row_axis=dp_shard row_counts=[5, 2]", "that nobody has made"},
      {"a reader has none", kUneven, "%w counted=[0] kernel=0 row_axis=dp_shard row_counts=[5, 3]", "%w kernel=0",
       "that nobody has made"},
      {"sizes without their axis", kUneven, "%w counted=[0] kernel=0 row_axis=dp_shard", "%w counted=[0] kernel=0",
       "needs row_axis="},
      {"a library that is not known", kRows, "kernel=0", "kernel=0 product_kernel=cublas.geem",
       "expected one of aten.mm, mkl.gemm"},
      {"a library of what is no product", kRows, "kernel=1", "kernel=1 product_kernel=mkl.gemm",
       "expected it on a product"},
  };
  for (const Mutant& mutant : mutants) {
    CAPTURE(mutant.what);
    std::string text = replaced(mutant.text, mutant.from, mutant.to);
    if (text.find("%m counted") != std::string::npos)
      text = replaced(text, "  %x = input", "  %m = state name=m : i64[]\n  %x = input");
    CHECK(says(errors_of(text), mutant.expected));
  }
}

}  // namespace sfsdp::plan::machine::by_rank_test
