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

namespace sfsdp::passes::preconditions_test {
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
  expect_refused(step(), "split_collectives, remat mode=full", "before split_collectives");
  expect_refused(replaced(step(), "carry %a.0.w = %a.0.w.new", "carry %a.0.w = %a.0.w.grad"), "wrap, bucket",
                 "is carried on by another op than its update");
  expect_refused(replaced(step(), "return ", "return %a.1.w.f.all, "), "wrap, bucket", "still reads it");
  expect_refused(replaced(step(), "  %a.1.w.sq =", "  %peek = aten.neg %a.1.w.f.all : f32[6, 4]\n  %a.1.w.sq ="),
                 "wrap, bucket", "parameter a.1.w is read in two shapes, f32[6, 4] and f32[5, 4]");
  expect_refused(replaced(step(), "weight_decay=0.125", "axis=dp_shard begins=[0, 3] weight_decay=[0.125, 0.0]"),
                 "wrap, bucket", "parameter a.0.w is updated in segments");
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

TEST_CASE("preconditions: reshard keeps no gather that stands after those of backward") {
  testing::expect_unchanged("reshard keep_last=false", R"(graph mesh [dp_shard=2] view local
  %w = param keep=true name=w : f32[2/dp_shard]
bwd:
  %b = all_gather %w axis=dp_shard dim=0 : f32[4]
  %m = aten.neg %b : f32[4]
fwd:
  %f = all_gather %w axis=dp_shard dim=0 : f32[4]
  %n = aten.neg %f : f32[4]
  return %n, %m
)");
}

TEST_CASE("preconditions: bucket packs padded gradients of any section, and none that are padded later") {
  ir::Graph graph = read(replaced(step(), "bwd:\n", ""));
  CHECK_NOTHROW(run_passes(graph, parse_passes("wrap, bucket")));
  expect_refused(
      replaced(step(), "%a.1.w.acc = accumulate %a.1.w.rs",
               "%a.1.w.late = pad %a.1.w.rs dim=0 size=3 : f32[3, 4]\n  %a.1.w.acc = accumulate %a.1.w.late"),
      "wrap, bucket", "padded after it is reduced");
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

// The pass changes the graph, and it means the same.
void expect_sound(const std::string& passes, const std::string& text) {
  CAPTURE(passes);
  const ir::Graph before = read(text);
  ir::Graph graph = before.clone();
  CHECK(run_passes(graph, parse_passes(passes))[0].changed);
  CHECK(testing::check_same_meaning(before, graph, testing::Agreement::Bitwise) == "");
}

TEST_CASE("preconditions: gathers of forward that backward waits for start beside the first of backward") {
  expect_sound("prefetch_gathers", R"(graph mesh [dp_shard=2] view local
  %a = param name=a : f32[2/dp_shard]
  %b = param name=b : f32[2/dp_shard]
  %c = param name=c : f32[2/dp_shard]
fwd:
  %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
  %b.start = all_gather.start %b axis=dp_shard dim=0 : async f32[4]
bwd:
  %a.full = wait %a.start : f32[4]
  %c.start = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
  %b.full = wait %b.start : f32[4]
  %c.full = wait %c.start : f32[4]
  return %a.full, %b.full, %c.full
)");
}

TEST_CASE("preconditions: a pack that several starts read stays where it is") {
  expect_sound("early_all_reduces", R"(graph mesh [dp_replicate=2, dp_shard=2] view local
  %a = param name=a : f32[4]
  %x = input name=x : f32[4] own(dp_replicate, dp_shard)
bwd:
  %g = aten.neg %x : f32[4]
clip:
  %p = pack [%g] offsets=[0] : f32[4]
  %s = all_reduce %p axis=dp_replicate : f32[4]
  %t = all_reduce %p axis=dp_shard : f32[4]
  %u = aten.add.Tensor %s, %t : f32[4]
  %never = full value=0.0 : f32[]
opt:
  %a.new = sgd %a, none, %u, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
  return %u
  carry %a = %a.new
)");
  testing::expect_unchanged("sink_waits", R"(graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] own(dp_shard)
bwd:
  %p = pack [%x] offsets=[0] : f32[4]
  %a.start = reduce_scatter.start %p axis=dp_shard dim=0 : async f32[2]
  %a = wait %a.start : f32[2]
  %b.start = reduce_scatter.start %p axis=dp_shard dim=0 : async f32[2]
  %b = wait %b.start : f32[2]
clip:
  return %a, %b
)");
}

TEST_CASE("preconditions: a wait does not sink before its own start") {
  testing::expect_unchanged("sink_waits", R"(graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] own(dp_shard)
bwd:
  %p = pack [%x] offsets=[0] : f32[4]
  %q = pack [%x] offsets=[0] : f32[4]
  %a.start = reduce_scatter.start %q axis=dp_shard dim=0 : async f32[2]
  %a = wait %a.start : f32[2]
  %b.start = reduce_scatter.start %p axis=dp_shard dim=0 : async f32[2]
  %b = wait %b.start : f32[2]
clip:
  return %a, %b
)");
}

TEST_CASE("preconditions: copy_buckets with crossing units, shared casts and chains of casts") {
  expect_sound("copy_buckets", R"(graph mesh [dp_replicate=2] view local
  %a = param name=a unit=u : f32[4]
  %b = param name=b unit=u : f32[4]
  %c = param name=c unit=v : f32[4]
  %d = param name=d unit=v : f32[4]
  %x = input name=x : f32[4] own(dp_replicate)
clip:
  %a.ar = all_reduce %x axis=dp_replicate : f32[4]
  %a.g = gradient %a.ar param=a : f32[4]
  %c.ar = all_reduce %x axis=dp_replicate : f32[4]
  %c.g = gradient %c.ar param=c : f32[4]
  %m = aten.add.Tensor %a.g, %c.g : f32[4]
  %b.ar = all_reduce %x axis=dp_replicate : f32[4]
  %b.g = gradient %b.ar param=b : f32[4]
  %d.ar = all_reduce %x axis=dp_replicate : f32[4]
  %d.g = gradient %d.ar param=d : f32[4]
  return %m, %b.g, %d.g
)");
  expect_sound("copy_buckets", R"(graph mesh [dp_shard=2] view local
  %a = param name=a unit=u : f32[4/dp_shard]
  %b = param name=b unit=u : f32[4/dp_shard]
  %x = input name=x : f32[8] own(dp_shard)
fwd:
  %a.f = all_gather %a axis=dp_shard dim=0 : f32[8]
  %y = aten.neg %a.f : f32[8]
  %b.c = cast %b : f32[4/dp_shard]
  %b.f = all_gather %b.c axis=dp_shard dim=0 : f32[8]
  %b.e = all_gather %b.c axis=dp_shard dim=0 : f32[8]
  %z = aten.add.Tensor %b.f, %b.e : f32[8]
  return %y, %z
)");
  expect_sound("copy_buckets", R"(graph mesh [dp_shard=2] view local
  %a = param name=a unit=u : bf16[4/dp_shard]
  %b = param name=b unit=u : f32[4/dp_shard]
  %x = input name=x : bf16[8] own(dp_shard)
fwd:
  %a.f = all_gather %a axis=dp_shard dim=0 : bf16[8]
  %y = aten.neg %a.f : bf16[8]
  %b.w = cast %b : f64[4/dp_shard]
  %b.c = cast %b.w : bf16[4/dp_shard]
  %b.f = all_gather %b.c axis=dp_shard dim=0 : bf16[8]
  %z = aten.add.Tensor %b.f, %y : bf16[8]
  return %y, %z
)");
}

TEST_CASE("preconditions: copy_buckets refuses gradients that are computed from each other's reduced ones") {
  expect_refused(R"(graph mesh [dp_replicate=2] view local
  %a = param name=a unit=u : f32[4]
  %b = param name=b unit=u : f32[4]
  %x = input name=x : f32[4] own(dp_replicate)
clip:
  %a.ar = all_reduce %x axis=dp_replicate : f32[4]
  %a.g = gradient %a.ar param=a : f32[4]
  %y = aten.neg %a.g : f32[4]
  %b.ar = all_reduce %y axis=dp_replicate : f32[4]
  %b.g = gradient %b.ar param=b : f32[4]
  return %a.g, %b.g
)",
                 "copy_buckets", "%b.ar is computed from a gradient of unit u");
}

}  // namespace
}  // namespace sfsdp::passes::preconditions_test
