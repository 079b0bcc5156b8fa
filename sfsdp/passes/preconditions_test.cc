// SPDX-License-Identifier: BSD-3-Clause
// Graphs that verify and are not what a pass is made for: it says so, or leaves them sound. Found by testing/fuzz_ir.
#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes {
namespace {

ir::Graph read(const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(text);
  ir::verify_or_throw(graph);
  return graph;
}

std::string step() { return testing::sharded_step_text(2, {{"a.0.w", 8, 4}, {"a.1.w", 5, 4}}); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& text, const std::string& passes, const std::string& message) {
  CAPTURE(passes);
  ir::Graph graph = read(text);
  CHECK_THROWS_WITH_AS(run_passes(graph, parse_passes(passes)), doctest::Contains(message.c_str()), UserError);
}

TEST_CASE("preconditions: passes that store parameters elsewhere say what they need") {
  expect_refused(step(), "bucket", "parameter a.0.w has no unit");
  expect_refused(step(), "copy_buckets", "has no unit");
  expect_refused(step(), "split_collectives, wrap, bucket", "before split_collectives");
  expect_refused(step(), "split_collectives, keep_whole", "before split_collectives");
  expect_refused(step(), "split_collectives, remat mode=full", "before split_collectives");
  expect_refused(replaced(step(), "carry %a.0.w = %a.0.w.new", "carry %a.0.w = %a.0.w.grad"), "wrap, bucket",
                 "is carried on by another op than its update");
  expect_refused(replaced(step(), "return ", "return %a.1.w.f.all, "), "wrap, bucket", "still reads it");
}

TEST_CASE("preconditions: reshard keeps a gather for backward that another section makes") {
  ir::Graph graph = read(R"(graph mesh [dp_shard=2] view local
  %w = param keep=true name=w : f32[2/dp_shard]
fwd:
  %c = cast %w : bf16[2/dp_shard]
opt:
  %f = all_gather %c axis=dp_shard dim=0 : bf16[4]
  %n = aten.neg %f : bf16[4]
bwd:
  %d = cast %w : bf16[2/dp_shard]
  %b = all_gather %d axis=dp_shard dim=0 : bf16[4]
  %m = aten.neg %b : bf16[4]
  return %n, %m
)");
  run_passes(graph, parse_passes("reshard keep_last=false"));
  CHECK(ir::to_string(ir::verify(graph)) == "");
}

TEST_CASE("preconditions: gathers started in another order than they are waited for stay above their waits") {
  ir::Graph graph = read(R"(graph mesh [a=2] view local
  %v = param name=v : f32[2]
  %w = param name=w : f32[2]
fwd:
  %v.s = all_gather.start %v axis=a dim=0 : async f32[4]
  %w.s = all_gather.start %w axis=a dim=0 : async f32[4]
  %w.f = wait %w.s : f32[4]
  %v.f = wait %v.s : f32[4]
  return %v.f, %w.f
)");
  run_passes(graph, parse_passes("prefetch_gathers"));
  CHECK(ir::to_string(ir::verify(graph)) == "");
}

}  // namespace
}  // namespace sfsdp::passes
