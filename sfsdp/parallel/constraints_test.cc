// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/constraints.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/same_meaning.h"

namespace sfsdp::parallel::constraints_test {
namespace {

// Two products with a square between them, the sum of squares of what they give, and what autograd makes of it. A table of numbers
// that no parameter has a part in is read by all.
const std::string kMlp = R"(
  graph mesh [] view global
    %w1 = param name=mlp.w1.weight : f32[8, 4] at mlp.w1.weight
    %w2 = param name=mlp.w2.weight : f32[4, 8] at mlp.w2.weight
    %x = input name=x : f32[2, 6, 4]
  fwd:
    %two = full value=2.0 : f32[] at mlp.w1
    %h = linear %x, %w1 : f32[2, 6, 8] at mlp.w1
    %a = aten.mul.Tensor %h, %two : f32[2, 6, 8] at mlp.act
    %y = linear %a, %w2 : f32[2, 6, 4] at mlp.w2
    %z = aten.mul.Tensor %y, %two : f32[2, 6, 4] at last
  loss:
    %squares = aten.mul.Tensor %z, %z : f32[2, 6, 4] at last
    %loss = aten.sum %squares : f32[] at last
  bwd:
    %dz = aten.mul.Scalar %z other=2.0 : f32[2, 6, 4] at last
    %dy = aten.mul.Tensor %dz, %two : f32[2, 6, 4] at last
    %da = linear_dx %dy, %w2 bwd_of=%y : f32[2, 6, 8] at mlp.w2
    %dw2 = linear_dw %dy, %a bwd_of=%y : f32[4, 8] at mlp.w2
    %dh = aten.mul.Tensor %da, %two : f32[2, 6, 8] at mlp.act
    %dw1 = linear_dw %dh, %x bwd_of=%h : f32[8, 4] at mlp.w1
    %w1.grad = gradient %dw1 param=mlp.w1.weight : f32[8, 4]
    %w2.grad = gradient %dw2 param=mlp.w2.weight : f32[4, 8]
    return %loss
    carry %w1 = %w1.grad
    carry %w2 = %w2.grad
)";

// Rows, their norm without a weight, a head and a loss that capture could not tell from the model: it counts to the head.
const std::string kHead = R"(
  graph mesh [] view global
    %w = param name=body.weight : f32[6, 6] at body.weight
    %o = param name=output.weight : f32[8, 6] at output.weight
    %x = input name=x : f32[2, 4, 6]
    %t = input name=t : i64[8]
  fwd:
    %h = linear %x, %w : f32[2, 4, 6] at body
    %logits = linear %h, %o : f32[2, 4, 8] at output
    %rows = aten.view %logits size=[8, 8] : f32[8, 8] at output
    %loss, %n, %lse = cross_entropy %rows, %t : f32[], f32[], f32[8] at output
  bwd:
    %one = full value=1.0 : f32[]
    %drows = cross_entropy_backward %one, %rows, %t, %n, %lse bwd_of=%loss : f32[8, 8] at output
    %dlogits = aten.view %drows size=[2, 4, 8] : f32[2, 4, 8] at output
    %do = linear_dw %dlogits, %h bwd_of=%logits : f32[8, 6] at output
    %dh = linear_dx %dlogits, %o bwd_of=%logits : f32[2, 4, 6] at output
    %dw = linear_dw %dh, %x bwd_of=%h : f32[6, 6] at body
    %w.grad = gradient %dw param=body.weight : f32[6, 6]
    %o.grad = gradient %do param=output.weight : f32[8, 6]
    return %loss
    carry %w = %w.grad
    carry %o = %o.grad
)";

struct Cut {
  ir::Graph graph;
  PartitionReport report;
};

Cut cut(const std::string& text, const std::vector<Constraint>& constraints,
        const std::vector<TensorParallelRule>& weights = {{"*.w1", Shard(0)}, {"*.w2", Shard(1)}}) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"tp", 2}};
  graph.view = ir::Graph::View::Local;
  const TensorParallel rules = tensor_parallel(weights, {.constraints = constraints});
  PartitionReport report =
      partition(graph, {"tp", 2}, separate_blocks(graph, find_cuts(graph, rules, 2)), rules.options);
  for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
  CHECK(plan::verify_layouts(graph) == "");
  return {std::move(graph), std::move(report)};
}

// What tp sends in forward and in backward, an opcode and the value each.
std::string sent(const std::vector<Constraint>& constraints) {
  const Cut made = cut(kMlp, constraints);
  testing::expect_same_meaning(kMlp, made.graph, 2);
  std::string all;
  for (const auto& op : made.graph.ops())
    if (op->is("all_reduce", "all_gather", "reduce_scatter"))
      all += (all.empty() ? "" : ", ") + op->opcode.str() + " " + op->result()->name();
  return all;
}

TEST_CASE("constrain: a module's result lies as the user wants it, and means the same") {
  CHECK(sent({}) == "all_reduce z.sum");
  // As it lies anyway.
  CHECK(sent({constrain("mlp", Replicate()), constrain("mlp.w1", Shard(2))}) == "all_reduce y.sum");
  // The sum is made in parts. What follows reads the whole: one gather for the loss and the gradient, in place of a sum and a gather.
  CHECK(sent({constrain("mlp", Shard(0))}) == "reduce_scatter y.part, all_gather y.part.whole");
  CHECK(sent({constrain("*.w2", Shard(1))}) == "reduce_scatter y.own, all_gather y.part.all");
  // Columns of the first product are gathered; the second one takes its part of them again.
  CHECK(sent({constrain("mlp.w1", Replicate())}) == "all_gather h.all, all_reduce z.sum");
  // The first constraint that names a module counts.
  CHECK(sent({constrain("mlp.w2", Replicate()), constrain("mlp|*.w2", Shard(0))}) == "all_reduce y.sum");
}

TEST_CASE("constrain: the report says what lay how, and who wants it otherwise") {
  const Cut made = cut(kMlp, {constrain("mlp.*", Shard(0))});
  REQUIRE(made.report.constrained.size() == 3);
  const auto& [path, opcode, constraint, from, to] = made.report.constrained[2];
  CHECK(path == "mlp.w2");
  CHECK(opcode == "linear");
  CHECK(constraint == "constrain(\"mlp.*\", Shard(0))");
  CHECK(from == "a summand");
  CHECK(to == "cut in dimension 0");
}

TEST_CASE("constrain: logits are the head's result, of which no weight is read after them, and mean the same") {
  const auto sent_of_head = [](const std::vector<Constraint>& constraints) {
    const Cut made = cut(kHead, constraints, {{"output", Shard(0)}});
    testing::expect_same_meaning(kHead, made.graph, 2);
    std::string all;
    for (const auto& op : made.graph.ops())
      if (op->section == ir::Section::Fwd && ir::is_collective(*op))
        all += (all.empty() ? "" : ", ") + op->opcode.str() + " " + op->operands[0]->name();
    return all;
  };
  CHECK(sent_of_head({}) == "all_gather loss.parts");
  CHECK(sent_of_head({constrain("output", Shard(2))}) == "all_gather loss.parts");  // as it lies anyway
  CHECK(sent_of_head({constrain("output", Replicate())}) == "all_gather logits.front");
  const Cut made = cut(kHead, {constrain("output", Replicate())}, {{"output", Shard(0)}});
  REQUIRE(made.report.constrained.size() == 1);
  CHECK(made.report.constrained[0].from == "cut in dimension 2");
  const std::string rows = sent_of_head({constrain("output", Shard(1))});
  CHECK(rows == "all_gather logits.front");  // the loss reads what was gathered
  // The loss itself is no result of the head, nor are its views.
  CHECK(cut(kHead, {constrain("output", Shard(0))}, {{"output", Shard(0)}}).report.constrained.size() == 1);
}

// Of %h0 a metric is made, which is carried, and a view that nobody reads.
TEST_CASE("constrain: what is read for no loss is no result of its module") {
  std::string text = kHead;
  const auto replace = [&](const std::string& from, const std::string& to) {
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
  };
  replace("  fwd:\n", "    %counted = state name=counted : f32[2, 4, 6]\n  fwd:\n");
  replace("    %h = linear %x, %w : f32[2, 4, 6] at body\n", R"(    %h0 = linear %x, %w : f32[2, 4, 6] at body
    %more = aten.add.Tensor %counted, %h0 : f32[2, 4, 6] at body
    %view = aten.view %h0 size=[8, 6] : f32[8, 6] at body
    %h = aten.relu %h0 : f32[2, 4, 6] at body
)");
  const Cut made = cut(text + "    carry %counted = %more\n", {constrain("body", Shard(1))}, {{"output", Shard(0)}});
  REQUIRE(made.report.constrained.size() == 1);
  CHECK(made.report.constrained[0].opcode == "aten.relu");
}

TEST_CASE("constrain: the report says of a move that a constraint wants which one it is, and of others who reads") {
  const auto readers = [](const Cut& made) {
    std::vector<std::string> all;
    for (const PartitionReport::Move& move : made.report.moves) all.push_back(move.opcode + " for " + move.reader);
    return all;
  };
  CHECK(readers(cut(kMlp, {constrain("mlp", Shard(0))})) ==
        std::vector<std::string>{"reduce_scatter for constrain(\"mlp\", Shard(0))", "all_gather for aten.mul.Tensor"});
  CHECK(readers(cut(kHead, {constrain("output", Replicate())}, {{"output", Shard(0)}})).at(0) ==
        "all_gather for constrain(\"output\", Replicate())");
}

void expect_refused(const std::string& text, const Constraint& constraint, const char* what) {
  CHECK_THROWS_WITH_AS(cut(text, {constraint}), doctest::Contains(what), UserError);
}

TEST_CASE("constrain: what names nothing, or cannot hold, is refused with the cure") {
  expect_refused(kMlp, constrain("mlp.w3", Replicate()),
                 "tensor_parallel: constrain(\"mlp.w3\", Replicate()) names no module\n  expected a path such as last");
  expect_refused(kMlp, constrain("mlp.w3", Replicate()), "did you mean mlp.w1?");
  std::string unread = kMlp;
  const std::string line = "    %z = aten.mul.Tensor %y, %two : f32[2, 6, 4] at last\n";
  unread.insert(unread.find(line), "    %u = aten.relu %h : f32[2, 6, 8] at unread\n");
  expect_refused(unread, constrain("unread", Shard(0)), "no value that unread makes is read by ops of other modules");
  expect_refused(kMlp, constrain("mlp", Shard(3)),
                 "constrain(\"mlp\", Shard(3)): %y of linear at mlp.w2, which mlp gives, is f32[2, 6, 4], and has no "
                 "dimension 3\n  expected one of its dimensions");
  std::string odd = kMlp;
  for (size_t at = 0; (at = odd.find("[2, 6, ", at)) != odd.npos;) odd.replace(at, 7, "[2, 5, ");
  expect_refused(odd, constrain("mlp", Shard(1)),
                 "is f32[2, 5, 4], of which tp = 2 does not divide dimension 1\n  expected a dimension that it "
                 "divides, or Replicate()");
  CHECK_THROWS_WITH_AS(tensor_parallel({}, {.constraints = {constrain("", Replicate())}}),
                       doctest::Contains("expected the path of a module"), UserError);
}

TEST_CASE("constrain: an op that cannot be cut is named with the constraint that cuts what it reads") {
  std::string text = kMlp;
  const std::string line = "%z = aten.mul.Tensor %y, %two : f32[2, 6, 4] at last";
  text.replace(text.find(line), line.size(), "%z = aten.own_act %y : f32[2, 6, 4] at last");
  expect_refused(text, constrain("mlp", Shard(0)),
                 "tensor_parallel: aten.own_act at last reads %y.part, which is cut in dimension 0 over tp by "
                 "constrain(\"mlp\", Shard(0)), and nothing says how this op may be cut");
}

}  // namespace
}  // namespace sfsdp::parallel::constraints_test
