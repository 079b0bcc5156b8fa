// SPDX-License-Identifier: BSD-3-Clause
// A valid graph, broken in one way at a time: each must be caught, and by the diagnostic meant for it.
#include "sfsdp/ir/verifier.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::ir::verifier_test {
namespace {

using testing::dedent;
using testing::expect_diagnostic;

const std::string kStep = dedent(R"(
  graph mesh [dp_replicate=2, dp_shard=4] view local
    %w = param name=w : f32[64/dp_shard, 256]
    %m = state name=w.m : f32[64/dp_shard, 256]
    %v = state name=w.v : f32[64/dp_shard, 256]
    %step = state name=step : f32[]
    %x = input name=x : bf16[8, 256] own(dp_replicate, dp_shard)
  fwd:
    %low = cast %w : bf16[64/dp_shard, 256]
    %ag = all_gather.start %low axis=dp_shard dim=0 : async bf16[256, 256]
    %w.full = wait %ag : bf16[256, 256]
    %y = aten.mm %x, %w.full : bf16[8, 256]
  loss:
    %loss = aten.sum %y : bf16[]
  bwd:
    %xt = aten.t %x : bf16[256, 8]{1, 256}
    %dw = aten.mm %xt, %y bwd_of=%y : bf16[256, 256]
    %rs = reduce_scatter %dw axis=dp_shard dim=0 : bf16[64, 256]
    %acc = accumulate %rs : bf16[64, 256]
  clip:
    %ar = all_reduce %acc axis=dp_replicate op=sum : bf16[64, 256]
    %g = cast %ar : f32[64, 256]
    %sq = sum_squares [%g] replicated=[false] : f64[1]
    %sum = all_reduce %sq axis=[dp_replicate, dp_shard] : f64[1]
    %norm = grad_norm %sum : f64[]
    %coef = clip_coefficient %norm max_norm=1.0 : f32[]
    %bad = non_finite %norm : f32[]
    %clipped = scale %g, %coef : f32[64, 256]
  opt:
    %step.new = step_count %step, %bad : f32[]
    %w.new, %m.new, %v.new = adamw %w, %m, %v, %clipped, %step.new, %bad beta1=0.9 beta2=0.95 donates=[0, 1, 2] eps=1e-08 weight_decay=0.1 : f32[64/dp_shard, 256], f32[64/dp_shard, 256], f32[64/dp_shard, 256]
    return %loss, %norm
    carry %w = %w.new
    carry %m = %m.new
    carry %v = %v.new
    carry %step = %step.new
)");

struct Mutation {
  const char* from;
  const char* to;
  const char* diagnostic;  // part of what must be said
};

std::string mutate(std::string text, const Mutation& mutation) {
  const size_t at = text.find(mutation.from);
  REQUIRE_MESSAGE(at != std::string::npos, std::string(mutation.from));
  return text.replace(at, std::string_view(mutation.from).size(), mutation.to);
}

TEST_CASE("a whole step verifies") {
  const ParseResult parsed = parse(kStep, "step.ir");
  REQUIRE_MESSAGE(parsed.ok(), to_string(parsed.diagnostics));
  CHECK(to_string(verify(parsed.graph, &parsed.locations)) == "");
}

TEST_CASE("each way to break the step is caught") {
  const Mutation mutations[] = {
      // opcodes and arity
      {"= cast %w", "= casst %w", "did you mean cast?"},
      {"= cast %w", "= frobnicate %w", "unknown opcode frobnicate"},
      {"accumulate %rs", "accumulate %rs, %rs", "has 2 operands"},
      {"accumulate %rs", "accumulate", "has 0 operands"},
      {"accumulate %rs", "accumulate none", "lacks operand 0"},
      {"%low = cast %w : bf16[64/dp_shard, 256]", "%low, %low2 = cast %w : bf16[64, 256], bf16[64, 256]",
       "has 2 results"},
      // rules
      {"%low = cast %w : bf16[64/dp_shard, 256]", "%low = cast %w : bf16[64/dp_shard, 128]",
       "cast %low has the wrong shape"},
      {"async bf16[256, 256]", "async bf16[128, 256]", "expected [256, 256]"},
      {"async bf16[256, 256]", "async f32[256, 256]", "insert a cast"},
      {"%rs = reduce_scatter %dw axis=dp_shard dim=0 : bf16[64, 256]",
       "%rs = reduce_scatter %dw axis=dp_shard dim=0 : bf16[256, 256]", "expected [64, 256]"},
      {"%low axis=dp_shard dim=0", "%low axis=dp_shard dim=2", "has dim=2"},
      {"%low axis=dp_shard dim=0", "%low axis=dp_shard", "needs dim="},
      {"%low axis=dp_shard dim=0", "%low dim=0", "needs axis="},
      {"%low axis=dp_shard dim=0", "%low axis=dp_shart dim=0", "did you mean dp_shard?"},
      {"axis=[dp_replicate, dp_shard] : f64", "axis=[dp_shard, dp_shard] : f64", "names mesh axis dp_shard twice"},
      {"op=sum", "op=mean", "reduces with op=mean"},
      {"low = cast %w : bf16[64/dp_shard", "low = cast %w : bf16[64/dp_replicate",
       "a split that does not fit its axes"},
      {"[%g] replicated=[false] : f64[1]", "[%g, %g] : f64[1]", "expected [2]"},
      {"replicated=[false]", "replicated=[false, true]", "expected 1 times true or false"},
      {"max_norm=1.0", "max_norm=one", "needs max_norm="},
      {"beta1=0.9 ", "", "needs beta1="},
      {"%clipped, %step.new", "%dw, %step.new", "the gradient"},
      {"param name=w ", "param ", "needs name="},
      {"param name=w ", "param name=w trainable=maybe ", "needs trainable="},
      {"accumulate %rs", "add_into %rs, %dw", "expected [64, 256]"},
      {"accumulate %rs", "add_into %rs", "has 1 operand"},
      // types
      {"f32[64/dp_shard, 256]\n  %m", "f32[64/tp, 256]\n  %m", "names axis tp, which the mesh lacks"},
      {"own(dp_replicate, dp_shard)", "own(dp_shard) sum(dp_shard)", "names axis dp_shard twice"},
      {"f32[64/dp_shard, 256]\n", "f32[-64/dp_shard, 256]\n", "has a negative dimension"},
      {"f32[64/dp_shard, 256]\n", "f32[64/dp_shard, 256]{1}\n", "has 1 stride"},
      {"dp_shard=4", "dp_shard=0", "mesh axis dp_shard has size 0"},
      // start and wait
      {"aten.mm %x, %w.full", "aten.mm %x, %ag", "aten.mm reads %ag before its wait"},
      {"wait %ag", "wait %low", "which is not in flight"},
      {"async bf16[256, 256]", "bf16[256, 256]", "starts what is not async"},
      {"%y = aten.mm", "%again = wait %ag : bf16[256, 256]\n  %y = aten.mm", "a second time"},
      {"%w.full = wait %ag : bf16[256, 256]\n  %y = aten.mm %x, %w.full", "%y = aten.mm %x, %x",
       "nothing waits for it"},
      {"wait %ag : bf16[256, 256]", "wait %ag : bf16[256, 256] sum(dp_shard)", "changes the type of what it waits for"},
      {"%loss = aten.sum %y : bf16[]", "%loss = aten.sum %y : async bf16[]", "has an async result"},
      // sections
      {"name=x : bf16[8, 256] own(dp_replicate, dp_shard)\nfwd:", "name=w : bf16[8, 256]\nfwd:",
       "the second with name=w"},
      {"  %x = input name=x", "opt:\n  %x = input name=x", "input %x stands in section opt"},
      {"bwd:\n", "opt:\n  %early = scalar value=1 : bf16[]\nbwd:\n  %leak = aten.neg %early : bf16[]\n",
       "in section bwd reads %early of section opt"},
      {"bwd_of=%y", "bwd_of=%x", "bwd_of input %x in section init"},
      {"%w.full = wait %ag", "%w.full = wait %ag once=true", "which only the last micro-batch has"},
      {"param name=w ", "param name=w once=true ", "has once= in section init"},
      {"%w.full = wait %ag", "%w.full = wait %ag once=no", "has once= in section fwd"},
      // donated buffers
      {"donates=[0, 1, 2]", "donates=[0, 1, 6]", "donates operand 6"},
      {"donates=[0, 1, 2]", "donates=[0, 1, 2, 3]", "at most one per result (3)"},
      {"donates=[0, 1, 2]", "donates=yes", "has donates=yes"},
      {"donates=[0, 1, 2]", "donates=[0, 1, 1]", "donates the buffer of %m again"},
      {"donates=[0, 1, 2]", "donates=[4, 1, 2]", "donates %step.new of 4 bytes"},
      {"  return", "    %stale = aten.neg %w : f32[64, 256]\n  return", "whose buffer was given to adamw %w.new"},
      {"  return", "    %view = aten.t %m : f32[256, 64]\n  return", "reads %m, whose buffer was given"},
      {"return %loss", "return %w, %loss", "return reads %w"},
      {"  carry %v = %v.new\n", "", "add: carry %v = "},
      // the ends
      {"carry %m = %m.new", "carry %clipped = %m.new", "carry of %clipped, a result of scale"},
      {"carry %m = %m.new", "carry %w = %m.new", "%w is carried twice"},
      {"carry %m = %m.new", "carry %m = %step.new", "changes the type"},
      {"return %loss", "return %ag, %loss", "which is in flight"},
  };
  for (const Mutation& mutation : mutations) {
    const std::string text = mutate(kStep, mutation);
    expect_diagnostic(text, mutation.diagnostic);
  }
}

TEST_CASE("a gradient names the parameter that is updated by it, through what clips it") {
  const std::string text = dedent(R"(
    graph mesh [] view local
      %a = param name=a : f32[4]
      %b = param name="b c" : f32[4]
      %x = input name=x : f32[4]
      %coef = input name=coef : f32[]
      %bad = input name=bad : f32[]
    clip:
      %a.grad = gradient %x param=a : f32[4]
      %b.grad = gradient %x param="b c" : f32[4]
      %b.double = cast %b.grad : f64[4]
      %b.clipped = scale %b.double, %coef : f64[4]
    opt:
      %a.new = sgd %a, none, %a.grad, %bad weight_decay=0.0 : f32[4]
      %b.new = sgd %b, none, %b.clipped, %bad weight_decay=0.0 : f32[4]
      return %a.new, %b.new
  )");
  const ParseResult parsed = parse(text, "step.ir");
  REQUIRE_MESSAGE(parsed.ok(), to_string(parsed.diagnostics));
  CHECK(to_string(verify(parsed.graph, &parsed.locations)) == "");
  const std::string swapped = mutate(mutate(mutate(text, {"param=a", "param=z", ""}), {"param=\"b c\"", "param=a", ""}),
                                     {"param=z", "param=\"b c\"", ""});
  expect_diagnostic(swapped, "sgd %a.new updates a by gradient %a.grad param=\"b c\"");
  expect_diagnostic(swapped, "sgd %b.new updates \"b c\" by gradient %b.grad param=a");
  expect_diagnostic(mutate(text, {"param=a", "param=\"b c\"", ""}), "is the second with param=\"b c\"");
  expect_diagnostic(mutate(text, {"param=a", "param=w", ""}), "expected the name of a param of the graph");
}

TEST_CASE("an in-place update may not overtake a gather that still reads its operand") {
  expect_diagnostic(R"(
    graph mesh [a=2] view local
      %w = param name=w : f32[4]
      %one = state name=one : f32[]
    opt:
      %ag = all_gather.start %w axis=a dim=0 : async f32[8]
      %w.new = scale %w, %one donates=[0] : f32[4]
      %full = wait %ag : f32[8]
      return %full
      carry %w = %w.new
  )",
                    "donates %w while all_gather.start %ag reads it");
}

TEST_CASE("a donation reaches the buffer through views") {
  expect_diagnostic(R"(
    graph mesh [] view local
      %x = input name=x : f32[4]
      %one = input name=one : f32[]
    fwd:
      %a = aten.neg %x : f32[4]
      %view = view %a : f32[2, 2]
      %b = scale %a, %one donates=[0] : f32[4]
      %c = aten.neg %view : f32[2, 2]
      return %c
  )",
                    "reads %view, whose buffer was given to scale %b");
}

TEST_CASE("two ops of a module that draw are numbered; backward may draw again what forward has drawn") {
  const auto verified = [](const char* first, const char* second) {
    Graph graph =
        parse_or_throw(concat("graph mesh [dp_shard=1] view local\n  %x = input name=x : f32[4]\n"
                              "  %y = input name=y : f32[5]\nfwd:\n  %a = ",
                              first, " at m\n", second, " at m\n  return %b\n"));
    return to_string(verify(graph));
  };
  const char* const zero = "aten.rand_like %x stream=0 : f32[4]";
  CHECK(verified(zero, "  %b = aten.rand_like %a stream=1 : f32[4]") == "");
  CHECK(verified(zero, "bwd:\n  %b = aten.rand_like %x stream=0 : f32[4]") == "");
  for (const char* wrong :
       {"  %b = aten.randn_like %a stream=0 : f32[4]", "  %b = aten.rand_like %a stream=0 : f32[4]",
        "bwd:\n  %b = aten.randn_like %x stream=0 : f32[4]", "bwd:\n  %b = aten.rand_like %y stream=0 : f32[5]"})
    CHECK(verified(zero, wrong).find("draws the numbers of") != std::string::npos);
  for (const char* wrong :
       {"  %b = aten.rand_like %a stream=-1 : f32[4]", "  %b = aten.rand_like %a stream=4294967296 : f32[4]"})
    CHECK(verified(zero, wrong).find("expected 0 to 2^32 - 1") != std::string::npos);
  const char* const unnumbered = "  %b = aten.rand_like %a : f32[4]";
  CHECK(verified(zero, unnumbered).find("aten.rand_like %b has no stream=") != std::string::npos);
  CHECK(verified("aten.rand_like %x : f32[4]", unnumbered) == "");  // LibTorch's generator draws both
}

TEST_CASE("nothing stays in flight over the step boundary") {
  expect_diagnostic(R"(
    graph mesh [a=2] view local
      %flying = state name=flying : async f32[8]
    fwd:
      %full = wait %flying : f32[8]
      return %full
  )",
                    "has an async result");
}

TEST_CASE("parts of the ranks of an axis keep to their rules: each rank has one, all are alike") {
  const auto expect = [](const std::string& line, std::string_view diagnostic) {
    const std::string text = "graph mesh [a=2] view local\n  %x = input name=x : f32[6, 4]\nfwd:\n  " + line;
    if (!diagnostic.empty()) return expect_diagnostic(text, diagnostic);
    const ParseResult parsed = parse(text);
    CHECK_MESSAGE((parsed.ok() && verify(parsed.graph).empty()), line);
  };
  expect("%y = own_part %x axis=a dim=0 shift=1 : f32[3, 4]", "");
  expect("%y = own_part %x axis=a dim=0 shift=2 : f32[3, 4]", "expected 0 to 1");
  expect("%y = join_parts [%x, %x] axis=a dim=1 : f32[6, 8]", "");
  expect("%y = join_parts [%x, %x] axis=a dim=1 : f32[12, 4]", "expected");
  expect("%y = join_parts [%x] axis=a dim=1 : f32[6, 4]", "expected one for each rank");
  expect("%y = add_parts [%x, %x] axis=a : f32[6, 4]", "");
  expect("%y = add_parts [%x, %x, %x] axis=a : f32[6, 4]", "expected one for each rank");
  expect("%y = add_parts [%x, %x] axis=a : f32[3, 4]", "expected");
}

TEST_CASE("pad, narrow, view, pack, broadcast, scalar and constant keep to their rules") {
  const auto expect = [](const std::string& line, std::string_view diagnostic) {
    const std::string text = "graph mesh [a=2] view local\n  %x = input name=x : f32[6, 4]\nfwd:\n  " + line;
    if (!diagnostic.empty()) return expect_diagnostic(text, diagnostic);
    const ParseResult parsed = parse(text);
    CHECK_MESSAGE((parsed.ok() && verify(parsed.graph).empty()), line);
  };
  expect("%y = pad %x dim=0 size=8 : f32[8, 4]", "");
  expect("%y = pad %x dim=0 size=5 : f32[5, 4]", "expected at least the operand's 6");
  expect("%y = pad %x dim=0 size=8 : f32[8, 5]", "expected [8, 4]");
  expect("%y = pad %x dim=0 size=8 : bf16[8, 4]", "insert a cast");
  expect("%y = narrow %x dim=1 length=2 start=2 : f32[6, 2]", "");
  expect("%y = narrow %x dim=1 length=3 start=2 : f32[6, 3]", "expected a range inside dimension 1");
  expect("%y = narrow %x dim=1 length=2 start=-1 : f32[6, 2]", "expected a range inside dimension 1");
  expect("%y = view %x : f32[24]", "");
  expect("%y = view %x : f32[23]", "has 23 elements of 24");
  expect("%y = view %x offset=20 : f32[4]", "");
  expect("%y = view %x offset=21 : f32[4]", "expected a range inside the 24 elements");
  expect("%y = view %x : bf16[24]", "insert a cast");
  expect("%y = pack [%x, %x] offsets=[0, 24] : f32[50]", "");
  expect("%y = pack [%x, %x] offsets=[0, 23] : f32[50]", "expected at least 24");
  expect("%y = pack [%x, %x] offsets=[0, 24] : f32[47]", "expected one dimension of at least 48");
  expect("%y = pack [%x, %x] offsets=[0, 12] ranks=2 : f32[48]", "");
  expect("%y = pack [%x, %x] offsets=[0, 11] ranks=2 : f32[48]", "expected at least 12");
  expect("%y = pack [%x, %x] offsets=[0, 12] ranks=2 : f32[46]", "expected one dimension of at least 48");
  expect("%y = pack [%x] offsets=[0] ranks=5 : f32[25]", "expected a divisor of the 24 elements of operand 0");
  expect("%y = pack [%x] offsets=[0] ranks=0 : f32[24]", "has ranks=0");
  expect("%y = unpack %x offset=2 ranks=2 : f32[4, 5]", "");
  expect("%y = unpack %x offset=3 ranks=2 : f32[4, 5]", "expected a range inside the 12 elements of a share");
  expect("%y = unpack %x offset=0 ranks=5 : f32[5]", "expected a divisor of the 24 elements of the operand");
  expect("%y = unpack %x offset=0 ranks=2 : f32[5]", "expected a divisor of the 5 elements of the result");
  expect("%y = unpack %x offset=0 : f32[24]", "needs ranks=");
  expect("%y = unpack %x offset=0 ranks=1 : bf16[24]", "insert a cast");
  expect("%y = broadcast %x axis=a root=1 : f32[6, 4]", "");
  expect("%y = broadcast %x axis=a root=2 : f32[6, 4]", "expected an axis rank below 2");
  expect("%y = reduce_scatter %x axis=a dim=0 : f32[3, 4]", "");
  expect("%y = all_to_all %x axis=a split=0 join=1 : f32[3, 8]", "");
  expect("%y = all_to_all %x axis=a split=1 join=0 : f32[12, 2]", "");
  expect("%y = all_to_all %x axis=a split=1 join=0 : f32[6, 4]", "expected [12, 2]");
  expect("%y = all_to_all %x axis=a split=0 join=0 : f32[6, 4]", "expected two dimensions");
  expect("%y = all_to_all %x axis=a split=0 join=2 : f32[3, 8]", "expected two dimensions");
  expect("%y = all_to_all %x axis=a split=0 : f32[3, 8]", "needs join=");
  expect("%y = all_to_all %x axis=b split=0 join=1 : f32[3, 8]", "axis");
  expect("%y = permute %x axis=a shift=1 : f32[6, 4]", "");
  expect("%y = permute %x axis=a shift=2 : f32[6, 4]", "expected 1 to 1");
  expect("%y = permute %x axis=a shift=0 : f32[6, 4]", "expected 1 to 1");
  expect("%y = permute %x axis=a shift=1 : f32[3, 4]", "expected");
  expect("%y = permute %x axis=a : f32[6, 4]", "needs shift=");
  expect("%y = scalar value=3 : f32[]", "");
  expect("%y = scalar : f32[]", "needs value=");
  expect("%y = constant index=0 : f32[7]", "");
  expect("%y = constant index=a : f32[7]", "expected an integer, got a");
  expect("%y = mul_scalar %x value=2.0 : f32[6, 4]", "");
  expect("%y = gradient %x : f32[6, 4]", "needs param=");
  expect("%y = sgd %x, none, %x, %x momentum=0.9 weight_decay=0.0 : f32[6, 4]", "");
  expect("%y = sgd %x, %x, %x, %x momentum=0.9 weight_decay=0.0 : f32[6, 4]", "expected 2: the new parameter");
  expect("%y = sgd none, %x, %x, %x momentum=0.9 weight_decay=0.0 : f32[6, 4]", "lacks operand 0");
  const auto expect_update = [&](const std::string& attrs, const char* diagnostic) {
    expect(concat("%y = sgd %x, none, %x, %x ", attrs, " : f32[6, 4]"), diagnostic);
  };
  expect_update("lr_factor=0.5 weight_decay=0.0", "");
  expect_update("begins=[0, 23] lr_factor=0.5 weight_decay=[0.0, 0.5]", "");
  expect_update("axis=a begins=[0, 47] lr_factor=[0.5, 1.0] weight_decay=0.0", "");
  expect_update("begins=[0, 24] weight_decay=[0.0, 0.5]", "growing numbers below 24");
  expect_update("axis=a begins=[0, 48] weight_decay=0.0", "growing numbers below 48");
  expect_update("begins=[1, 2] weight_decay=0.0", "expected 0, then growing");
  expect_update("begins=[0, 2, 2] weight_decay=0.0", "expected 0, then growing");
  expect_update("begins=[]i weight_decay=0.0", "expected 0, then growing");
  expect_update("begins=[0, 2] weight_decay=[0.5]", "expected 2 numbers");
  expect_update("weight_decay=[0.5, 0.5]", "a list needs begins=");
  expect_update("lr_factor=fast weight_decay=0.5", "needs lr_factor=");
  expect_update("begins=[0, 2] lr_factor=[0.5, 1.0]", "needs weight_decay=");
  expect_update("axis=nope begins=[0, 2] weight_decay=0.5", "names mesh axis nope");
}

TEST_CASE("what only a pass can break is caught too") {
  const auto graph = [] { return parse_or_throw(kStep); };
  const auto says = [](const Graph& broken, std::string_view part) {
    return to_string(verify(broken)).find(part) != std::string::npos;
  };
  {
    Graph g = graph();
    std::vector<Op*> order;
    for (const auto& op : g.ops()) order.push_back(op.get());
    std::swap(order[5], order[6]);  // %ag above %low
    g.set_order(order);
    CHECK(says(g, "reads %low before it is defined"));
  }
  {
    Graph g = graph();
    const Graph other = graph();
    g.find_value("y")->producer()->operands[0] = other.find_value("x");
    CHECK(says(g, "reads a value of another graph"));
  }
  {
    Graph g = graph();
    const Graph other = graph();
    g.outputs[0] = other.outputs[0];
    g.carries[0].next = other.carries[0].next;
    g.find_value("dw")->producer()->bwd_of = other.find_value("y")->producer();
    CHECK(says(g, "an output is no value of the graph"));
    CHECK(says(g, "a carry of what is no value"));
    CHECK(says(g, "bwd_of an op that is not in the graph"));
  }
  {
    Graph g = graph();
    g.find_value("y")->producer()->operand_lists = {{1, 1}, {0, 1}};
    CHECK(says(g, "has a broken operand list"));
  }
  {
    Graph g = graph();
    g.find_value("y")->producer()->attrs["bwd_of"] = true;
    CHECK(says(g, "has an attribute \"bwd_of\""));
  }
  {
    Graph g = graph();  // two views that read each other
    Op* a = g.add("aten.t", {g.find_value("x")}, {{"p", g.find_value("x")->type()}});
    Op* b = g.add("aten.t", {a->result()}, {{"q", g.find_value("x")->type()}});
    a->operands[0] = b->result();
    CHECK(says(g, "reads %q before it is defined"));
  }
}

TEST_CASE("a diagnostic points into the file; verify_or_throw throws all of them") {
  const ParseResult parsed = parse(mutate(kStep, {"= cast %w", "= casst %w", ""}), "step.ir");
  const auto diagnostics = verify(parsed.graph, &parsed.locations);
  REQUIRE(diagnostics.size() == 1);
  CHECK(concat(diagnostics[0]) == "step.ir:8:3: unknown opcode casst\n  did you mean cast?");
  CHECK_THROWS_WITH_AS(verify_or_throw(parsed.graph), "unknown opcode casst\n  did you mean cast?", UserError);
}

TEST_CASE("random programs verify") {
  for (uint64_t seed = 0; seed < 300; ++seed) CHECK(to_string(verify(testing::random_program(seed))) == "");
}

TEST_CASE("the rows agree with themselves") {
  for (const OpRow& row : opset()) {
    CHECK(find_row(row.name) == &row);  // else two rows have one name
    CHECK((row.max_operands == kAny || row.max_operands >= row.min_operands));
    CHECK(((row.flags & kStart) != 0) == row.name.ends_with(".start"));
    CHECK((row.rule != nullptr));
  }
}

TEST_CASE("what an aten op may do is read off its name") {
  const auto op = [](const char* opcode) {
    Op made;
    made.opcode = opcode;
    return made;
  };
  CHECK(is_pure(op("aten.add.Tensor")));
  CHECK(is_pure(op("aten.__and__.Tensor")));
  CHECK_FALSE(is_pure(op("aten.add_.Tensor")));
  CHECK_FALSE(is_pure(op("aten.mm.out")));
  CHECK_FALSE(is_pure(op("aten.sort.values")));
  CHECK_FALSE(is_pure(op("aten._assert_async.msg")));
  CHECK_FALSE(is_pure(op("aten._native_batch_norm_legit")));
  CHECK(is_pure(op("aten._native_batch_norm_legit.no_stats")));
  CHECK_FALSE(is_pure(op("aten.native_dropout")));
  CHECK_FALSE(is_pure(op("aten.normal_functional")));
  CHECK_FALSE(is_pure(op("mystery")));
  Op attention = op("aten._scaled_dot_product_flash_attention_for_cpu");
  CHECK(is_pure(attention));
  attention.attrs["dropout_p"] = 0.1;
  CHECK_FALSE(is_pure(attention));
}

TEST_CASE("compare_collectives: each communicator must see the same calls in the same order") {
  const auto graph = [](const std::string& body) {
    return parse_or_throw("graph mesh [dp_replicate=2, dp_shard=2] view local\n  %x = input name=x : f32[4]\nfwd:\n" +
                          body);
  };
  const std::string shard = "  %a = all_reduce %x axis=dp_shard : f32[4]\n",
                    replicate = "  %b = all_reduce %x axis=dp_replicate : f32[4]\n",
                    gather = "  %c = all_gather %x axis=dp_shard dim=0 : f32[8]\n",
                    start = "  %s = all_reduce.start %x axis=dp_shard : async f32[4]\n  %a = wait %s : f32[4]\n";
  CHECK(compare_collectives(graph(shard + replicate), graph(replicate + shard)).empty());  // two communicators
  CHECK(compare_collectives(graph(shard), graph(start)).empty());
  CHECK(
      compare_collectives(graph(shard + gather), graph(gather + shard)) ==
      "call 1 over dp_shard is all_reduce of f32[4] (%a) in one program, all_gather of f32[4] dim=0 (%c) in the other");
  CHECK(compare_collectives(graph(shard + gather), graph(shard)) ==
        "call 2 over dp_shard is all_gather of f32[4] dim=0 (%c) in one program, nothing in the other");
  CHECK(
      compare_collectives(graph("  %a = all_reduce %x axis=dp_shard op=max : f32[4]\n"), graph(shard)).find("op=max") !=
      std::string::npos);
}

// 2^63 elements would make the count of bytes overflow, and with it whatever is derived from it.
TEST_CASE("a type whose bytes, strides or ranks do not fit is refused at its line") {
  const auto graph = [](const std::string& type, const std::string& mesh = "a=2") {
    return concat("graph mesh [", mesh, "] view local\n  %x = input name=x : ", type, "\n  return %x\n");
  };
  expect_diagnostic(graph("f32[9223372036854775807, 9223372036854775807]"), "test.ir:2:3: %x is too large");
  expect_diagnostic(graph("f32[9223372036854775807, 9223372036854775807, 0]"), "%x is too large");
  expect_diagnostic(graph("f64[144115188075855873]"), "%x is too large");  // 2^57 + 1 elements of 8 bytes
  expect_diagnostic(graph("f32[2, 2]{9223372036854775807, 1}"), "%x is too large");
  expect_diagnostic(graph("f32[2, 2]{-2, 1}"), "%x has a negative stride");
  expect_diagnostic(graph("f32[2]", "a=4294967296, b=4294967296"), "the mesh has too many ranks");
  const auto largest = parse(graph("f64[144115188075855872]"), "test.ir");
  CHECK(verify(largest.graph).empty());
}

TEST_CASE("the values of a graph fit into one count of bytes, all together") {
  std::string text = "graph mesh [a=2] view local\n";
  for (int i = 0; i < 3; ++i) text += concat("  %x", i, " = input name=x", i, " : f32[134217728, 1073741824]\n");
  expect_diagnostic(text, "test.ir:4:3: %x2 is too large");
}

TEST_CASE("an attribute that counts elements is no number that overflows") {
  const std::string head = "graph mesh [a=2] view local\n  %x = param name=x : f32[4]\nfwd:\n";
  expect_diagnostic(head + "  %p = pack [%x] offsets=[9223372036854775807] : f32[4]\n", "needs offsets=");
  expect_diagnostic(head + "  %n = narrow %x dim=0 length=9223372036854775807 start=2 : f32[2]\n", "reads start=2");
  expect_diagnostic(head + "  %v = view %x offset=9223372036854775807 : f32[4]\n", "reads 4 elements");
  expect_diagnostic(head + "  %s = sum_squares [%x] numels=[1] offsets=[0] segments=[1152921504606846976] : f64[1]\n",
                    "has segments=");
}

TEST_CASE("ops over a part of a vocabulary: what they give fits the ranks of axis=, which is one of the mesh") {
  const std::string head =
      "graph mesh [tp=2] view local\n  %w = param name=w : f32[4, 6]\n  %x = input name=x : f32[5, 4]\n"
      "  %i = input name=i : i64[5]\n  %g = input name=g : f32[5, 6]\n  %p = input name=p : f32[6, 5]\nfwd:\n";
  expect_diagnostic(head + "  %e = embedding %w, %i axis=ep : f32[5, 6]\n", "ep");
  expect_diagnostic(head + "  %d = embedding_backward %g, %i axis=tp num_weights=8 : f32[8, 6]\n",
                    "has the wrong shape");
  expect_diagnostic(head + "  %d = embedding_backward %g, %i axis=tp num_weights=9 : f32[4, 6]\n",
                    "has the wrong shape");
  expect_diagnostic(head + "  %e = embedding %w, %i axis=tp num_weights=6 : f32[5, 6]\n",
                    "has num_weights=6 over 2 ranks of 4");
  expect_diagnostic(head + "  %s = cross_entropy_parts %x, %i axis=tp classes=9 : f32[3, 5]\n",
                    "has classes=9 over 2 ranks of 4");
  expect_diagnostic(head + "  %s = cross_entropy_parts %x, %i : f32[3, 5]\n", "needs axis=");
  expect_diagnostic(head + "  %s = cross_entropy_parts %x, %i axis=tp : f32[5, 3]\n", "has the wrong shape");
  expect_diagnostic(head + "  %l, %n, %s = cross_entropy_of_parts %x, %i : f32[], f32[], f32[5]\n", "reads parts of");
  expect_diagnostic(head + "  %l, %n, %s = cross_entropy_of_parts %p, %i reduction=0 : f32[], f32[], f32[5]\n",
                    "has the wrong shape");
}

TEST_CASE("what runs once and what every micro-batch runs do not mix") {
  const std::string head = "graph mesh [a=2] view local\n  %w = param name=w : f32[2]\n  %x = input name=x : f32[2]\n";
  expect_diagnostic(head + "clip:\n  %s = accumulate %w : f32[2]\n", "adds up in section clip");
  expect_diagnostic(head + "bwd:\n  %s = accumulate %x once=true : f32[2]\n", "adds up in section bwd");
  expect_diagnostic(head + "  %y = aten.neg %x : f32[2]\n", "in section init reads %x");
  expect_diagnostic(
      head + "fwd:\n  %g = all_gather.start %w axis=a dim=0 once=true : async f32[4]\n  %f = wait %g : f32[4]\n",
      "waits in every micro-batch for all_gather.start %g, which starts once");
  // what starts before all micro-batches is there for each of them
  CHECK(parse(head + "  %g = all_gather.start %w axis=a dim=0 : async f32[4]\nfwd:\n  %f = wait %g : f32[4]\n").ok());
}

// What reads a verified graph asks for no kind, so each of these was an error of the passes or the planner.
TEST_CASE("attributes of another kind, or on an op that has none of that name, are refused by their line") {
  const auto says = [](const std::string& line, const char* expected) {
    const std::string text = concat(
        "graph mesh [a=2] view local\n"
        "  %w = param name=w rows=8 : f32[4/a, 4] at w\n"
        "  %x = input name=x : f32[8, 4]\n"
        "  %q = input name=q : f32[1, 2, 4, 8]\n"
        "  %d = input name=d : i64[1, 4]\n"
        "fwd:\n"
        "  %y = aten.neg %x : f32[8, 4]\n",
        line, "\n");
    const ParseResult parsed = parse(text, "test.ir");
    REQUIRE_MESSAGE(parsed.ok(), line);
    const std::string found = to_string(verify(parsed.graph, &parsed.locations));
    CHECK_MESSAGE(found.find(concat("test.ir:8:3: ", expected)) != std::string::npos, line, ": ", found);
  };
  says("  %l = linear_dx %x, %w inside=26 : f32[8, 4]",
       "linear_dx %l has inside=26\n  expected no attribute of that name, which belongs to pack");
  says("  %n = aten.neg %x inside=[0] : f32[8, 4]", "aten.neg %n has inside=[0]\n  expected no attribute");
  says("  %o, %e = sdpa %q, %q, %q, none is_causal=none : f32[1, 2, 4, 8], f32[1, 2, 4]",
       "sdpa %o needs is_causal=\n  expected true or false, got none");
  const std::string sdpa = "  %o, %e = sdpa %q, %q, %q, ", types = " : f32[1, 2, 4, 8], f32[1, 2, 4]";
  says(sdpa + "%d documents=true" + types, "sdpa %o has documents=true without is_causal=true\n  expected both");
  says(sdpa + "none documents=true is_causal=true" + types, "sdpa %o has no operand 3\n  expected the documents");
  says(sdpa + "%x documents=true is_causal=true" + types, "sdpa %o");
  says(sdpa + "%d documents=1 is_causal=true" + types, "sdpa %o needs documents=\n  expected true or false, got 1");
  says(sdpa + "none document_tokens=4 is_causal=true" + types,
       "sdpa %o has document_tokens=\n  expected documents=true");
  says(sdpa + "%d document_tokens=0 documents=true is_causal=true" + types,
       "sdpa %o has document_tokens=0\n  expected at least 1");
  says("  %n = aten.neg %x documents=true : f32[8, 4]", "aten.neg %n has documents=true\n  expected no attribute");
  says(
      "  %o, %e = aten._scaled_dot_product_flash_attention_for_cpu %q, %q, %q, none is_causal=none : f32[1, 2, 4, 8],"
      " f32[1, 2, 4]",
      "aten._scaled_dot_product_flash_attention_for_cpu %o needs is_causal=\n  expected true or false, got none");
  says("  %n = aten.neg %x kernel=first : f32[8, 4]", "aten.neg %n needs kernel=\n  expected an integer, got first");
  says("  %n = aten.neg %x once=1 : f32[8, 4]", "aten.neg %n needs once=\n  expected true or false, got 1");
  says("  %f = full value=word : f32[4]", "full %f needs value=\n  expected a number, or true or false, got word");
  says("  %g = all_gather.start %w axis=a dim=0.5 : async f32[8, 4]",
       "all_gather.start %g needs dim=\n  expected an integer, got 0.5");
  says("  %g = all_gather.start %w axis=a bwd_of=%y dim=0 : async f32[8, 4]",
       "all_gather.start %g is bwd_of aten.neg %y\n  expected both to compute");
}

TEST_CASE("what sfsdp's own ops make is contiguous, as their kernels write it") {
  const auto text = [](const char* type) {
    return concat("graph mesh [] view local\n  %x = input name=x : f32[2, 3]\nfwd:\n",
                  "  %t = aten.t %x : f32[3, 2]{1, 3}\n  %c = cast %t : ", type, "\n");
  };
  expect_diagnostic(text("bf16[3, 2]{1, 3}"), "%c has strides\n  expected a contiguous tensor, as cast makes it");
  CHECK(verify(parse_or_throw(text("bf16[3, 2]"))).empty());
}

TEST_CASE("attributes of a param that say how its unit is scheduled have a kind each") {
  const auto says = [](const std::string& attribute, const char* expected) {
    const std::string text = concat("graph mesh [] view local\n  %w = param name=w ", attribute, " : f32[4]\n");
    testing::expect_diagnostic(text, expected);
  };
  says("sink_before=word", "param %w needs sink_before=\n  expected true or false, got word");
  says("sink_depth=true", "expected an integer");
  says("unit=3", "expected a name");
  says("members=[1]", "expected a list of names");
  says("storage=word", "expected a dtype");
}

}  // namespace
}  // namespace sfsdp::ir::verifier_test
