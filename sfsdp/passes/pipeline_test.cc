// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pipeline.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::pipeline_test {
namespace {

using Place = ExtraPass::Place;

std::string names_of(const PipelineOptions& options, const std::optional<plan::BucketLayouts>& layout = std::nullopt) {
  std::vector<std::string> names;
  for (const PassCall& call : pipeline_passes(options, layout)) names.push_back(call.info->name);
  return join(names, " ");
}

const std::string kCleanUp = "canonicalise fold_views merge_duplicates dead_code hoist_casts ",
                  kKernels = "keep_in_place fuse remat_in_kernels write_in_buckets";

TEST_CASE("the pipeline is a list of passes by name, which options shorten") {
  CHECK(names_of({}) ==
        kCleanUp + "remat wrap reshard bucket split_collectives prefetch_gathers sink_waits early_all_reduces " +
            kKernels);
  CHECK(names_of({}, plan::BucketLayouts()) ==
        kCleanUp + "remat reshard bucket split_collectives prefetch_gathers sink_waits early_all_reduces " + kKernels);
  CHECK(names_of({.flat = false}) ==
        kCleanUp + "remat wrap reshard copy_buckets split_collectives prefetch_gathers sink_waits early_all_reduces " +
            kKernels);
  CHECK(names_of({.remat = {.mode = RematMode::Full}, .flat = false, .disable = overlap_passes()}) ==
        kCleanUp + "remat dead_code merge_duplicates wrap reshard copy_buckets " + kKernels);
  CHECK(names_of({.disable = overlap_passes()}) == kCleanUp + "remat wrap reshard bucket " + kKernels);
  CHECK(names_of({.pack_all_reduces = true, .disable = overlap_passes()}) ==
        kCleanUp + "remat wrap reshard bucket pack_all_reduces " + kKernels);
  const auto calls =
      pipeline_passes({.wrap = {.units = "layers.*, [norm, output]"}, .prefetch = {.depth = 3}}, std::nullopt);
  const auto spelling = [&](const std::string& name) {
    for (const PassCall& call : calls)
      if (call.info->name == name) return to_string(call);
    return std::string();
  };
  CHECK(spelling("wrap") == "wrap units=\"layers.*, [norm, output]\"");
  CHECK(spelling("prefetch_gathers") == "prefetch_gathers backward=after depth=3 forward=before max_bytes=0");
}

std::string sides(const PipelineOptions& options) {
  return join({word_of(side_words(), options.prefetch.forward), word_of(side_words(), options.prefetch.backward),
               word_of(side_words(), options.sink.next)},
              " ");
}

TEST_CASE("the published orders by name") {
  const auto order = [](const std::string& name) {
    PipelineOptions options;
    set_order(options, name);
    return sides(options);
  };
  CHECK(order("simplefsdp") == "before after before");
  const PipelineOptions initial;
  CHECK(sides(initial) == order("simplefsdp"));
  CHECK(order("autoparallel") == "after after before");
  CHECK(order("graphtrainer") == "before before after");
  CHECK_THROWS_WITH_AS(order("fsdp2"), doctest::Contains("expected simplefsdp, autoparallel or graphtrainer"),
                       UserError);
}

TEST_CASE("passes can be left out, but not one that others need") {
  CHECK(names_of({.disable = {"remat", " sink_waits"}}) ==
        kCleanUp + "wrap reshard bucket split_collectives prefetch_gathers early_all_reduces " + kKernels);
  CHECK(names_of({.disable = {"sink_waits", "split_collectives", "prefetch_gathers", "early_all_reduces"}}) ==
        names_of({.disable = overlap_passes()}));
  CHECK(names_of({.disable = {"wrap", "reshard", "bucket"}}) ==
        names_of({.flat = false, .disable = {"wrap", "reshard", "copy_buckets"}}));
  const auto says = [](std::vector<std::string> disable, const char* part) {
    CHECK_THROWS_WITH_AS(names_of({.disable = std::move(disable)}), doctest::Contains(part), UserError);
  };
  says({"buckt"}, "unknown pass buckt\n  did you mean bucket?");
  says({"wrap"},
       "pass wrap cannot be disabled alone: bucket can do nothing without it\n  expected bucket disabled too");
  says({"split_collectives"}, "prefetch_gathers and sink_waits can do nothing without it");
  says({"split_collectives", "sink_waits"}, "alone: prefetch_gathers can");
}

TEST_CASE("an extra pass stands where it is told, in the order of the list") {
  const ExtraPass again{"dead_code", {}, Place::After, "bucket"};
  CHECK(names_of({.extra = {again}, .disable = overlap_passes()}) ==
        kCleanUp + "remat wrap reshard bucket dead_code " + kKernels);
  // A pass that is not run for this step marks its place all the same.
  CHECK(names_of({.flat = false, .extra = {again}, .disable = overlap_passes()}) ==
        kCleanUp + "remat wrap reshard dead_code copy_buckets " + kKernels);
  CHECK(names_of({.extra = {{"split_collectives", {}, Place::After, "remat"},
                            {"sink_waits", {}, Place::After, "remat"},
                            {"fold_views", {}, Place::Before, "wrap"},
                            {"merge_duplicates", {}, Place::Before, "wrap"},
                            {"prefetch_gathers", {}, Place::Before, "fold_views"}}}) ==
        "canonicalise prefetch_gathers fold_views merge_duplicates dead_code hoist_casts "
        "remat split_collectives sink_waits fold_views merge_duplicates wrap reshard bucket "
        "split_collectives prefetch_gathers sink_waits early_all_reduces " +
            kKernels);
  CHECK(names_of({.extra = {again}, .disable = {"dead_code"}}) == names_of({.disable = {"dead_code"}}));
  const auto says = [](ExtraPass extra, const char* part) {
    CHECK_THROWS_WITH_AS(names_of({.extra = {std::move(extra)}}), doctest::Contains(part), UserError);
  };
  says({"dead_code", {}, Place::After, "buckt"}, "'buckt', which is no pass of the pipeline\n  did you mean bucket?");
  says({"dead", {}, Place::After, "bucket"}, "unknown pass");
  says({"reshard", {{"last", true}}, Place::After, "bucket"}, "expected one of: keep_last");
  CHECK_THROWS_WITH_AS(names_of({.prefetch = {.depth = -1}}), doctest::Contains("depth=-1"), UserError);
}

ir::Graph step() {
  return ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
    fwd:
      %full = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %dead = aten.neg %full : f32[4, 4]
      %y = aten.relu %full : f32[4, 4]
      return %y
  )"));
}

TEST_CASE("the pipeline reports every pass in order, and an observer sees the graph after each") {
  ir::Graph graph = step();
  std::optional<plan::BucketLayouts> layout;
  std::vector<std::string> seen;
  const auto observer = [&](const std::string& name, const ir::Graph& at) {
    seen.push_back(name + " " + std::to_string(at.ops().size()));
  };
  const auto reports = run_pipeline(graph, {.flat = false, .observer = observer}, layout);
  CHECK(seen == std::vector<std::string>{"start 4", "canonicalise 4", "fold_views 4", "merge_duplicates 4",
                                         "dead_code 3", "hoist_casts 3", "remat 3", "wrap 3", "reshard 3",
                                         "copy_buckets 3", "split_collectives 4", "prefetch_gathers 4", "sink_waits 4",
                                         "early_all_reduces 4", "keep_in_place 4", "fuse 4", "remat_in_kernels 4",
                                         "write_in_buckets 4"});
  REQUIRE(reports.size() == 17);
  CHECK(reports[3].name == "dead_code");
  CHECK(reports[3].changed);
  CHECK(reports[3].metrics.get("ops_removed") == 1);
  CHECK(reports[3].metrics.get("collective_bytes_before") == 64);
  CHECK_FALSE(layout);
}

// ZeRO 1 and 2: backward reads what forward has gathered. The chunks of the loss are in backward, and so is the one
// reader of the head's weight.
TEST_CASE("loss in chunks, then remat: what only backward reads is not left in forward for nobody") {
  for (const RematMode mode : {RematMode::Full, RematMode::Op}) {
    ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
      graph mesh [dp_shard=2] view local
        %w0 = param name=layers.0.w rows=2 : f32[1/dp_shard, 2] at layers.0
        %w = param name=head.w rows=4 : f32[2/dp_shard, 2] at head
        %x = input name=x : f32[5, 2] own(dp_shard)
        %y = input name=y : i64[5] own(dp_shard)
      fwd:
        %w0.full = all_gather %w0 axis=dp_shard dim=0 : f32[2, 2] at layers.0
        %h0 = aten.mm %x, %w0.full : f32[5, 2] at layers.0
        %h = aten.tanh %h0 : f32[5, 2] at layers.0
        %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at head
        %wt = aten.t %w.full : f32[2, 4]{1, 2} at head
        %logits = aten.mm %h, %wt : f32[5, 4] at head
        %p = aten._log_softmax %logits dim=1 half_to_float=false : f32[5, 4] at head
        %loss, %n = aten.nll_loss_forward %p, %y, none ignore_index=-100 reduction=1 : f32[], f32[] at head
      bwd:
        %seed = full value=0.5 : f32[]
        %gp = aten.nll_loss_backward %seed, %p, %y, none, %n ignore_index=-100 reduction=1 : f32[5, 4] at head
        %gx = aten._log_softmax_backward_data %gp, %p dim=1 input_dtype=f32 : f32[5, 4] at head
        %gt = aten.t %gx : f32[4, 5]{1, 4} at head
        %gw = aten.mm %gt, %h : f32[4, 2] at head
        %gh = aten.mm %gx, %w.full : f32[5, 2] at head
        %gh0 = aten.tanh_backward %gh, %h : f32[5, 2] at layers.0
        %xt = aten.t %x : f32[2, 5]{1, 2} at layers.0
        %gw0 = aten.mm %xt, %gh0 : f32[2, 2] at layers.0
        return %loss, %gw, %gw0
    )"));
    std::optional<plan::BucketLayouts> layout;
    run_pipeline(graph, {.loss_chunks = 2, .remat = {.mode = mode}, .gather_once = true}, layout);
    REQUIRE(layout);
    int64_t gathers = 0;
    CHECK(std::ranges::count(graph.ops(), "aten.tanh", [](const auto& op) { return op->opcode.str(); }) == 1);
    for (const auto& op : graph.ops()) {
      if (!op->is("all_gather.start")) continue;
      CHECK(op->section == ir::Section::Init);
      ++gathers;
    }
    CHECK(gathers == 2);
  }
}

}  // namespace
}  // namespace sfsdp::passes::pipeline_test
