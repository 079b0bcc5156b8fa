// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_manager.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::pass_manager_test {
namespace {

ir::Graph small() {
  return ir::parse_or_throw(
      "graph mesh [] view local\n  %x = input name=x : f32[2]\nfwd:\n  %y = aten.relu %x : f32[2]\n  return %y");
}

std::vector<PassReport> run_one(ir::Graph& graph, bool (*run)(ir::Graph&, const OptionValues&, PassContext&),
                                Checks checks = Checks::EveryPass) {
  const PassInfo info{.name = "made_up", .help = "", .options = {}, .run = run};
  const PassCall call{.info = &info, .options = {}};
  return run_passes(graph, {&call, 1}, {.checks = checks});
}

TEST_CASE("a pass that lies about having changed the graph is found out") {
  ir::Graph graph = small();
  CHECK_THROWS_WITH_AS(run_one(graph, [](ir::Graph&, const OptionValues&, PassContext&) { return true; }),
                       doctest::Contains("made_up says it changed the graph, but did not"), InternalError);
  CHECK_THROWS_WITH_AS(run_one(graph,
                               [](ir::Graph& g, const OptionValues&, PassContext&) {
                                 g.rename(g.find_value("y"), "z");
                                 return false;
                               }),
                       doctest::Contains("made_up changed the graph, but says it did not"), InternalError);
}

TEST_CASE("a pass that is not ours is checked in a pipeline too, and told from a graph that was broken before it") {
  const auto lies = [](ir::Graph&, const OptionValues&, PassContext&) { return true; };
  ir::Graph graph = small();
  CHECK_THROWS_WITH_AS(run_one(graph, lies, Checks::RegisteredPasses), doctest::Contains("made_up says"),
                       InternalError);
  graph.find_value("y")->producer()->opcode = "wait";
  CHECK_THROWS_AS(run_one(graph, lies, Checks::RegisteredPasses), UserError);
  run_passes(graph, parse_passes("dead_code"), {.checks = Checks::RegisteredPasses});  // ours is not checked
}

TEST_CASE("a pass that breaks the graph is named") {
  ir::Graph graph = small();
  CHECK_THROWS_WITH_AS(run_one(graph,
                               [](ir::Graph& g, const OptionValues&, PassContext&) {
                                 g.find_value("y")->producer()->opcode = "wait";
                                 return true;
                               }),
                       doctest::Contains("the graph is broken after pass made_up"), InternalError);
}

TEST_CASE("a graph that is broken to begin with is the user's mistake") {
  ir::Graph graph = small();
  graph.find_value("y")->producer()->opcode = "wait";
  CHECK_THROWS_AS(run_passes(graph, parse_passes("dead_code")), UserError);
}

TEST_CASE("passes and options are spelled alike everywhere, and typing mistakes are answered") {
  const auto calls = parse_passes("dead_code, reshard keep_last=true,dead_code");
  REQUIRE(calls.size() == 3);
  CHECK(calls[1].info->name == "reshard");
  CHECK(std::get<bool>(calls[1].options.at("keep_last")));
  CHECK_FALSE(std::get<bool>(parse_passes("reshard")[0].options.at("keep_last")));
  CHECK(parse_passes("").empty());
  const auto says = [](const char* text, const char* part) {
    CHECK_THROWS_WITH_AS(parse_passes(text), doctest::Contains(part), UserError);
  };
  says("dead_cod", "did you mean dead_code?");
  says("frobnicate", "expected one of: bucket canonicalise chunk_loss copy_buckets cover_exchanges cover_permutes");
  says("dead_code x=1", "it has no options");
  says("reshard keep_lst=true", "did you mean keep_last?");
  says("reshard keep_last=3", "expected a value like false");
  says("reshard keep_last", "expected keep_last=false");
  says("dead_code,", "expected the name of a pass");
  says("dead_code)", "cannot read ')'");
}

TEST_CASE("a call prints with all its options, and reads back") {
  for (const char* text :
       {"reshard keep_last=true", "dead_code", "prefetch_gathers backward=after depth=3 forward=before max_bytes=0",
        "wrap units=\"layers.*, [norm, output]\"", "wrap units=\"\""}) {
    const auto calls = parse_passes(text);
    REQUIRE(calls.size() == 1);
    CHECK(to_string(calls[0]) == text);
  }
}

TEST_CASE("every pass can be looked up, and says what it is") {
  for (const PassInfo* pass : all_passes()) {
    CHECK(find_pass(pass->name) == pass);
    CHECK(static_cast<bool>(pass->run));
    CHECK_FALSE(pass->help.empty());
    for (const std::string& needed : pass->needs) CHECK(find_pass(needed));
  }
}

// ---- the tests' own tool --------------------------------------------------------------------------------------------

constexpr const char* kBefore = R"(
  graph mesh [] view local
    %x = input name=x : f32[2]
  fwd:
    %dead = aten.neg %x : f32[2]
    %y = aten.relu %x : f32[2]
    return %y
)";

TEST_CASE("check_pass shows where texts differ") {
  const std::string problems = testing::check_pass("dead_code", kBefore, kBefore);
  CHECK(problems.find("\n-  %dead = aten.neg %x : f32[2]") != std::string::npos);
}

TEST_CASE("check_pass passes on what is wrong with its texts and passes") {
  CHECK(testing::check_pass("dead_cod", kBefore, kBefore).find("unknown pass") != std::string::npos);
  CHECK(testing::check_pass("dead_code", "graph", kBefore).find("before:1") != std::string::npos);
  CHECK(testing::check_pass("dead_code", kBefore, "graph mesh [] view local\n  %x = wait : f32[]").find("after:2") !=
        std::string::npos);
}

TEST_CASE("check_same_meaning sees one wrong rank, output or carried value") {
  const auto graph = [](const std::string& body) {
    return ir::parse_or_throw("graph mesh [a=2] view local\n  %w = param name=w : f32[4/a]\n" + body);
  };
  const auto differ = [&](const std::string& a, const std::string& b, testing::Agreement agreement) {
    return !testing::check_same_meaning(graph(a), graph(b), agreement).empty();
  };
  for (const auto agreement : {testing::Agreement::Bitwise, testing::Agreement::UpToOrderOfSums}) {
    CHECK_FALSE(differ("  return %w", "  return %w", agreement));
    CHECK(differ("  return %w", "  %r = broadcast %w axis=a root=0 : f32[4]\n  return %r", agreement));
    CHECK(differ("  return %w", "  return %w, %w", agreement));
    CHECK(differ("  carry %w = %w", "  %n = aten.neg %w : f32[4]\n  carry %w = %n", agreement));
    CHECK(differ("  carry %w = %w", "  return %w", agreement));
  }
  // (w + w) + 1/3 and w + (w + 1/3): the order of a sum.
  const std::string third = "  %t = scalar value=0.3333333333333333 : f32[]\n";
  const std::string left =
      third + "  %a = aten.add.Tensor %w, %w : f32[4]\n  %b = aten.add.Tensor %a, %t : f32[4]\n  return %b";
  const std::string right =
      third + "  %a = aten.add.Tensor %w, %t : f32[4]\n  %b = aten.add.Tensor %w, %a : f32[4]\n  return %b";
  CHECK(differ(left, right, testing::Agreement::Bitwise));
  CHECK_FALSE(differ(left, right, testing::Agreement::UpToOrderOfSums));
}

}  // namespace
}  // namespace sfsdp::passes::pass_manager_test
