// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pipeline.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes {
namespace {

using Place = ExtraPass::Place;

std::string names_of(const PipelineOptions& options, const std::optional<StorageLayout>& layout = std::nullopt) {
  std::vector<std::string> names;
  for (const PassCall& call : pipeline_passes(options, layout)) names.push_back(call.info->name);
  return join(names, " ");
}

TEST_CASE("the pipeline is a list of passes by name, which options shorten") {
  CHECK(names_of({}) == "dead_code remat wrap bucket split_collectives prefetch_gathers sink_waits");
  CHECK(names_of({}, StorageLayout()) == "dead_code remat bucket split_collectives prefetch_gathers sink_waits");
  CHECK(names_of({.flat = false}) == "dead_code remat split_collectives prefetch_gathers sink_waits");
  CHECK(names_of({.reorder = false}) == "dead_code remat wrap bucket");
  const auto calls = pipeline_passes({.units = "layers.*, [norm, output]", .prefetch_depth = 3}, std::nullopt);
  CHECK(to_string(calls[2]) == "wrap units=\"layers.*, [norm, output]\"");
  CHECK(to_string(calls[5]) == "prefetch_gathers backward=after depth=3 forward=before max_bytes=0");
}

TEST_CASE("passes can be left out, but not one that others need") {
  CHECK(names_of({.disable = {"remat", " sink_waits"}}) == "dead_code wrap bucket split_collectives prefetch_gathers");
  CHECK(names_of({.disable = {"merge_duplicates"}}) == names_of({}));
  CHECK(names_of({.disable = {"wrap", "bucket"}}) == names_of({.flat = false}));
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
  const ExtraPass merge{"merge_duplicates", {}, Place::After, "bucket"};
  CHECK(names_of({.reorder = false, .extra = {merge}}) == "dead_code remat wrap bucket merge_duplicates");
  CHECK(names_of({.flat = false, .reorder = false, .extra = {merge}}) == "dead_code remat merge_duplicates");
  CHECK(names_of({.reorder = false,
                  .extra = {{"split_collectives", {}, Place::After, "remat"},
                            {"sink_waits", {}, Place::After, "remat"},
                            {"merge_duplicates", {}, Place::Before, "wrap"},
                            {"prefetch_gathers", {}, Place::Before, "dead_code"},
                            {"dead_code", {}, Place::After, "merge_duplicates"}}}) ==
        "prefetch_gathers dead_code remat split_collectives sink_waits merge_duplicates dead_code wrap bucket");
  CHECK(names_of({.reorder = false, .extra = {merge}, .disable = {"merge_duplicates"}}) ==
        "dead_code remat wrap bucket");
  CHECK_THROWS_WITH_AS(names_of({.extra = {{"merge_duplicates", {}, Place::After, "buckt"}}}),
                       doctest::Contains("'buckt', which is no pass of the pipeline\n  did you mean bucket?"),
                       UserError);
  CHECK_THROWS_WITH_AS(names_of({.extra = {{"merge", {}, Place::After, "bucket"}}}), doctest::Contains("unknown pass"),
                       UserError);
  CHECK_THROWS_WITH_AS(names_of({.extra = {{"merge_duplicates", {{"across", true}}, Place::After, "bucket"}}}),
                       doctest::Contains("expected one of: across_sections"), UserError);
  CHECK_THROWS_WITH_AS(names_of({.prefetch_depth = -1}), doctest::Contains("depth=-1"), UserError);
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

TEST_CASE("the pipeline reports every pass in order, and an observer sees the graph behind each") {
  ir::Graph graph = step();
  std::optional<StorageLayout> layout;
  std::vector<std::string> seen;
  const auto observer = [&](const std::string& name, const ir::Graph& at) {
    seen.push_back(name + " " + std::to_string(at.ops().size()));
  };
  const auto reports = run_pipeline(graph, {.flat = false, .observer = observer}, layout);
  CHECK(seen == std::vector<std::string>{"start 4", "dead_code 3", "remat 3", "split_collectives 4",
                                         "prefetch_gathers 4", "sink_waits 4"});
  REQUIRE(reports.size() == 5);
  CHECK(reports[0].name == "dead_code");
  CHECK(reports[0].changed);
  CHECK(reports[0].metrics.get("ops_removed") == 1);
  CHECK(reports[0].metrics.get("collective_bytes_before") == 64);
  CHECK_FALSE(layout);
}

}  // namespace
}  // namespace sfsdp::passes
