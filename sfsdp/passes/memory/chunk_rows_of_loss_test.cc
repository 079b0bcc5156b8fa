// SPDX-License-Identifier: BSD-3-Clause
// Chunks of a loss of which a rank has some classes or some rows.
#include "sfsdp/passes/memory/chunk_rows_of_loss.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/parallel/tensor_parallel.h"
#include "sfsdp/passes/memory/chunk_loss.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/same_meaning.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::passes::chunk_rows_of_loss_test {
namespace {

using testing::expect_pass, testing::kSentences;

// 5 tokens of one sample, 4 classes of which a rank has 2.
constexpr const char* kHead = R"(
    graph mesh [tp=2] view local
      %w = param name=head.weight : f32[2/tp, 2] at head
      %h = input name=h : f32[1, 5, 2]
      %t = input name=t : i64[5]
    fwd:
      %y = linear %h, %w : f32[1, 5, 2/tp] at head
      %x = aten.view %y size=[5, 2] : f32[5, 2/tp]
      %parts = cross_entropy_parts %x, %t axis=tp ignore_index=3 : f32[3/tp, 5]
      %all = all_gather %parts axis=tp dim=0 : f32[6, 5]
      %loss, %n, %lse = cross_entropy_of_parts %all, %t ignore_index=3 : f32[], f32[], f32[5]
      %seen = aten.neg %loss : f32[]
    bwd:
      %seed = full value=0.5 : f32[]
      %dx = cross_entropy_backward %seed, %x, %t, %n, %lse axis=tp ignore_index=3 : f32[5, 2/tp]
      %dy = aten.view %dx size=[1, 5, 2] : f32[1, 5, 2/tp]
      %dw = linear_dw %dy, %h bwd_of=%y : f32[2/tp, 2] at head
      %dh = linear_dx %dy, %w bwd_of=%y : f32[1, 5, 2] sum(tp) at head
      %dh.sum = all_reduce %dh axis=tp : f32[1, 5, 2] at head
      %w.grad = gradient %dw param=head.weight : f32[2/tp, 2]
      return %seen, %dh.sum
      carry %w = %w.grad
  )";

TEST_CASE("chunk_loss: of classes in parts 3, then 2 tokens, a gather each; the loss is read after the last of them") {
  expect_pass("chunk_loss chunks=2, dead_code", kHead, R"(
    graph mesh [tp=2] view local
      %w = param name=head.weight : f32[2/tp, 2] at head
      %h = input name=h : f32[1, 5, 2]
      %t = input name=t : i64[5]
    fwd:
      %1 = aten.ne.Scalar %t other=3 : b1[5]
      %2 = cast %1 : f32[5]
      %3 = aten.sum %2 : f32[]
    bwd:
      %seed = full value=0.5 : f32[]
      %0 = aten.view %h size=[5, 2] : f32[5, 2] at head
      %4 = narrow %0 dim=0 length=3 start=0 : f32[3, 2] at head
      %5 = narrow %t dim=0 length=3 start=0 : i64[3] at head
      %6 = linear %4, %w : f32[3, 2/tp] at head
      %7 = cross_entropy_parts %6, %5 axis=tp ignore_index=3 : f32[3/tp, 3] at head
      %8 = all_gather %7 axis=tp dim=0 : f32[6, 3] at head
      %9, %10, %11 = cross_entropy_of_parts %8, %5 ignore_index=3 reduction=2 : f32[], f32[], f32[3] at head
      %12 = cross_entropy_backward %seed, %6, %5, %3, %11 axis=tp ignore_index=3 : f32[3, 2/tp] at head
      %13 = linear_dw %12, %4 : f32[2/tp, 2] at head
      %14 = linear_dx %12, %w : f32[3, 2] sum(tp) at head
      %15 = narrow %0 dim=0 length=2 start=3 : f32[2, 2] at head
      %16 = narrow %t dim=0 length=2 start=3 : i64[2] at head
      %17 = linear %15, %w : f32[2, 2/tp] at head
      %18 = cross_entropy_parts %17, %16 axis=tp ignore_index=3 : f32[3/tp, 2] at head
      %19 = all_gather %18 axis=tp dim=0 : f32[6, 2] at head
      %20, %21, %22 = cross_entropy_of_parts %19, %16 ignore_index=3 reduction=2 : f32[], f32[], f32[2] at head
      %23 = aten.add.Tensor %9, %20 : f32[] at head
      %24 = cross_entropy_backward %seed, %17, %16, %3, %22 axis=tp ignore_index=3 : f32[2, 2/tp] at head
      %25 = linear_dw %24, %15 : f32[2/tp, 2] at head
      %26 = linear_dx %24, %w : f32[2, 2] sum(tp) at head
      %27 = add_into %13, %25 donates=[0] : f32[2/tp, 2] at head
      %28 = div %23, %3 : f32[] at head
      %29 = aten.cat [%14, %26] : f32[5, 2] sum(tp) at head
      %30 = aten.view %29 size=[1, 5, 2] : f32[1, 5, 2] sum(tp) at head
    fwd:
      %seen = aten.neg %28 : f32[]
    bwd:
      %dh.sum = all_reduce %30 axis=tp : f32[1, 5, 2] at head
      %w.grad = gradient %27 param=head.weight : f32[2/tp, 2]
      return %seen, %dh.sum
      carry %w = %w.grad
  )");
}

// ---- on ranks

struct Cut {
  std::vector<MeshAxis> axes;
  bool sequence_parallel = false, loss_parallel = true;
  int64_t head = 0;  // the dimension of the head that tp cuts; -1: none
  int64_t reduction = 1, classes = 5;
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string text_of(const Cut& c) {
  std::string text = kSentences;
  if (c.reduction != 1) text = replaced(text, "ignore_index=1", concat("ignore_index=1 reduction=", c.reduction));
  for (const char* before : {"f32[", "8, ", "16, ", "num_weights="}) {
    const char* after = std::string_view(before) == "f32[" ? ", 4]" : "";
    text = replaced(text, concat(before, 5, after), concat(before, c.classes, after));
  }
  return text;
}

ir::Graph partitioned(const Cut& c) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text_of(c)));
  graph.mesh = c.axes;
  std::vector<TensorParallelRule> rules = {{"tok", Shard(0)}};
  if (c.head >= 0) rules.push_back({"head", Shard(c.head)});
  const TensorParallel tensor =
      tensor_parallel(rules, {.sequence_parallel = c.sequence_parallel, .loss_parallel = c.loss_parallel});
  const ContextParallelOptions tokens, samples = {.load_balance = false};
  for (const MeshAxis& axis : c.axes)
    if (axis.name == "tp")
      parallel::partition(graph, axis, parallel::separate_blocks(graph, parallel::find_cuts(graph, tensor, axis.size)),
                          tensor.options);
    else
      parallel::partition(graph, axis, {}, {}, axis.name == "cp" ? &tokens : &samples);
  graph.view = ir::Graph::View::Local;
  return graph;
}

ir::Graph chunked(ir::Graph graph, int64_t chunks) {
  const auto reports = run_passes(graph, parse_passes(concat("dead_code, chunk_loss chunks=", chunks, ", dead_code")));
  CHECK(reports[1].metrics.get("losses") == 1);
  return graph;
}

int64_t count(const ir::Graph& graph, std::string_view kind) {
  return std::ranges::count_if(graph.ops(), [&](const auto& op) { return ir::collective_kind(*op) == kind; });
}

// Rows of logits that are there at once.
int64_t most_rows(const ir::Graph& graph) {
  int64_t most = 0;
  for (const auto& op : graph.ops())
    if (op->is("cross_entropy", "cross_entropy_parts", "cross_entropy_backward"))
      most = std::max(most, op->operands[op->is("cross_entropy_backward") ? 1 : 0]->type().dims[0].size);
  return most;
}

TEST_CASE("chunk_loss: on ranks of tp, cp and ep chunks mean what one process computes of all tokens at once") {
  const MeshAxis tp{"tp", 2}, four{"tp", 4}, cp{"cp", 2}, ep{"ep", 2};
  const std::vector<Cut> cuts = {
      {.axes = {tp}},
      {.axes = {four}},
      {.axes = {tp}, .reduction = 2},
      {.axes = {tp}, .sequence_parallel = true},
      {.axes = {tp}, .loss_parallel = false, .classes = 6},
      {.axes = {tp}, .sequence_parallel = true, .loss_parallel = false, .classes = 6},
      {.axes = {tp}, .head = -1},
      {.axes = {tp}, .head = 1},
      {.axes = {cp}},
      {.axes = {cp}, .reduction = 2},
      {.axes = {cp, tp}, .classes = 6},
      {.axes = {cp, tp}, .sequence_parallel = true, .classes = 6},
      {.axes = {ep}},
      {.axes = {cp, ep}},
  };
  for (const Cut& c : cuts)
    for (const int64_t chunks : {2, 3}) {
      CAPTURE(to_string(DeviceMesh(c.axes)));
      CAPTURE(chunks);
      CAPTURE(&c - cuts.data());
      const ir::Graph whole = partitioned(c);
      const ir::Graph graph = chunked(whole.clone(), chunks);
      CHECK(plan::verify_layouts(graph) == "");
      for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
      testing::expect_same_meaning(text_of(c), graph, DeviceMesh(c.axes).world_size(), c.axes.back().size);
      const int64_t rows = most_rows(whole);
      CHECK(most_rows(graph) == (rows + chunks - 1) / chunks);
      // A loss in parts, and logits that are gathered or added up, are sent for each chunk; all else as without chunks.
      const bool in_parts = c.axes.back().name == "tp" && c.head == 0, added_up = c.head == 1;
      CHECK(count(graph, "all_gather") - count(whole, "all_gather") == (in_parts ? chunks - 1 : 0));
      CHECK(count(graph, "all_reduce") - count(whole, "all_reduce") == (added_up ? chunks - 1 : 0));
      CHECK(count(graph, "reduce_scatter") == count(whole, "reduce_scatter"));
    }
}

TEST_CASE("chunk_loss: a count over ranks is there before the first chunk, the mean after the last") {
  const ir::Graph graph = chunked(partitioned({.axes = {{"cp", 2}}}), 3);
  const std::string text = ir::print(graph);
  const auto at = [&](const std::string& part) {
    const size_t found = text.find(part);
    CAPTURE(part);
    REQUIRE(found != text.npos);
    return found;
  };
  CHECK(at("%n.sum = all_reduce") < at("narrow"));
  CHECK(text.rfind("cross_entropy_backward") < at("%loss.sum = all_reduce"));
  CHECK(at("%loss.sum = all_reduce") < at("%loss.mean = div %loss.sum, %n.sum"));
}

// As partition leaves large logits that are gathered: the head's gradient by each rank's own rows, 3 of 6.
constexpr const char* kOwnRows = R"(
    graph mesh [tp=2] view local
      %w = param name=head.weight : f32[2/tp, 2] at head
      %x = input name=x : f32[2, 3, 2]
      %t = input name=t : i64[6]
    fwd:
      %h = own_part %x axis=tp dim=0 : f32[1/tp, 3, 2]
      %h.all = all_gather %h axis=tp dim=0 : f32[2, 3, 2]
      %y = linear %h.all, %w : f32[2, 3, 2/tp] at head
      %y.parts = aten.view %y size=[6, 1, 2] : f32[6, 1/tp, 2]
      %y.front = aten.permute %y.parts dims=[1, 0, 2] : f32[1/tp, 6, 2]
      %y.all = all_gather %y.front axis=tp dim=0 : f32[2, 6, 2]
      %y.back = aten.permute %y.all dims=[1, 0, 2] : f32[6, 2, 2]{2, 12, 1}
      %y.dense = aten.clone %y.back memory_format=0 : f32[6, 2, 2]
      %logits = aten.view %y.dense size=[6, 4] : f32[6, 4]
      %loss, %n, %lse = cross_entropy %logits, %t : f32[], f32[], f32[6]
    bwd:
      %seed = full value=0.5 : f32[]
      %dx = cross_entropy_backward %seed, %logits, %t, %n, %lse : f32[6, 4]
      %dx.rows = own_part %dx axis=tp dim=0 : f32[3/tp, 4]
      %dw = linear_dw %dx.rows, %h : f32[4, 2] sum(tp) at head
      %dw.part = reduce_scatter %dw axis=tp dim=0 : f32[2/tp, 2] at head
      %dx.part = own_part %dx axis=tp dim=1 : f32[6, 2/tp]
      %dh = linear_dx %dx.part, %w : f32[6, 2] sum(tp) at head
      %dh.sum = all_reduce %dh axis=tp : f32[6, 2] at head
      %w.grad = gradient %dw.part param=head.weight : f32[2/tp, 2]
      return %loss, %dh.sum
      carry %w = %w.grad
  )";

TEST_CASE("chunk_loss: a weight's gradient by each rank's own rows is one by its classes, of all rows of a chunk") {
  const ir::Graph before = ir::parse_or_throw(testing::dedent(kOwnRows));
  CHECK(plan::verify_layouts(before) == "");
  for (const int64_t chunks : {2, 4}) {
    const ir::Graph graph = chunked(before.clone(), chunks);
    CHECK(plan::verify_layouts(graph) == "");
    CHECK(count(graph, "reduce_scatter") == 0);
    CHECK(count(graph, "all_gather") == 1 + chunks - (chunks == 4 ? 1 : 0));  // 6 rows are 3 chunks of 2
    CHECK(most_rows(graph) == (chunks == 2 ? 3 : 2));
    CHECK(graph.carries[0].next->producer()->operands[0]->type() == before.carries[0].next->type());
    // One input on all ranks, which its type says.
    const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
    auto given = ir::interp::seeded_inputs(before, 7);
    for (auto& rank : given)
      for (const char* name : {"x", "t"}) rank.insert_or_assign(name, given[0].at(name));
    const auto expected = ir::interp::run(before, given, exact), got = ir::interp::run(graph, given, exact);
    for (size_t rank = 0; rank < 2; ++rank) {
      for (size_t i = 0; i < 2; ++i) testing::expect_close(got.ranks[rank].outputs[i], expected.ranks[rank].outputs[i]);
      testing::expect_close(got.ranks[rank].carried.at("head.weight"), expected.ranks[rank].carried.at("head.weight"));
    }
  }
  // Rows that were not gathered.
  const ir::Graph other = ir::parse_or_throw(testing::dedent(
      replaced(replaced(kOwnRows, "linear_dw %dx.rows, %h :", "linear_dw %dx.rows, %too :"), "      %dw = linear_dw",
               "      %too = aten.neg %h : f32[1/tp, 3, 2]\n      %dw = linear_dw")));
  CHECK(why_not_chunked(other, 2) == "linear_dw at head reads other rows than linear at head");
}

// ---- what stays

std::string why(const std::string& from, const std::string& to) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(replaced(kHead, from, to)));
  const std::string before = ir::print(graph);
  run_passes(graph, parse_passes("chunk_loss chunks=2"));
  CHECK(ir::print(graph) == before);
  return why_not_chunked(graph, 2);
}

TEST_CASE("chunk_loss: what stands in the way of chunks is named") {
  CHECK(why("return %seen", "return %x, %seen") == "the step returns logits, %x");
  CHECK(why("%seen = aten.neg %loss : f32[]",
            "%seen = aten.neg %loss : f32[]\n      %too = aten.neg %x : f32[5, 2/tp]") ==
        "logits, %x, are also read by aten.neg");
  CHECK(why("%dw = linear_dw", "%too = aten.neg %dy : f32[1, 5, 2/tp]\n      %dw = linear_dw") ==
        "the gradient of logits, %dy, is also read by aten.neg");
  CHECK(why("%y = linear %h, %w : f32[1, 5, 2/tp] at head",
            "%p = linear %h, %w : f32[1, 5, 2/tp] at head\n      %y = aten.neg %p : f32[1, 5, 2/tp]") ==
        "logits are what aten.neg makes, no linear layer");
  CHECK(why("%seed = full value=0.5 : f32[]", "%seed = aten.neg %loss : f32[]") ==
        "cross_entropy_backward begins with what is made of the loss");
  CHECK(why("f32[], f32[], f32[5]\n      %seen = aten.neg %loss : f32[]",
            "bf16[], bf16[], f32[5]\n      %seen = aten.neg %loss : bf16[]") ==
        "cross_entropy_of_parts is added up in bf16");
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kHead));
  CHECK(why_not_chunked(graph, 6) == "cross_entropy_of_parts is of 5 rows on a rank");
  testing::expect_unchanged("chunk_loss chunks=6", kHead);
}

// Over cp a rank has a summand of the head's gradient. The sum of chunks is f32: to round it would not be to round the sum over ranks.
TEST_CASE("chunk_loss: a gradient that ranks add up in bfloat16 is named") {
  std::string text = replaced(kSentences, "f32", "bf16");
  text = replaced(text, "bf16[], bf16[], bf16[16]", "f32[], f32[], f32[16]");
  text = replaced(text, "bf16[2, 2, 8]{16, 1, 2}", "f32[2, 2, 8]{16, 1, 2}");
  text = replaced(text, "value=1.0 : bf16[]", "value=1.0 : f32[]");
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"cp", 2}};
  const ContextParallelOptions tokens;
  parallel::partition(graph, {"cp", 2}, {}, {}, &tokens);
  CHECK(why_not_chunked(graph, 2) ==
        "gradient reads %do, a rank's summand, and rounds it to bf16, where MixedPrecisionPolicy::reduce_dtype is not "
        "float32");
}

TEST_CASE("chunk_loss: logits that ranks gather in their rows are named") {
  const ir::Graph graph = partitioned({.axes = {{"tp", 2}}, .sequence_parallel = true, .head = -1});
  CHECK(why_not_chunked(graph, 2) == "rows of logits do not stay by themselves in all_gather");
}

}  // namespace
}  // namespace sfsdp::passes::chunk_rows_of_loss_test
