// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/separate_blocks.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/cut_over_tp.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"
#include "sfsdp/testing/same_meaning.h"

namespace sfsdp::parallel::separate_blocks_test {
namespace {

// w2(gate · up) of one matrix that makes both, the sum of its squares, and what autograd makes of them.
constexpr const char* kGated = R"(
  graph mesh [] view global
    %w13 = param name=mlp.w13.weight : f32[16, 4] at mlp.w13.weight
    %b = param name=mlp.w13.bias : f32[16] at mlp.w13.bias
    %w2 = param name=mlp.w2.weight : f32[4, 8] at mlp.w2.weight
    %x = input name=x : f32[2, 3, 4]
  fwd:
    %h = linear %x, %w13, %b : f32[2, 3, 16] at mlp.w13
    %g, %u = aten.split.Tensor %h dim=-1 split_size=8 : f32[2, 3, 8]{48, 16, 1}, f32[2, 3, 8]{48, 16, 1} at mlp
    %m = aten.mul.Tensor %g, %u : f32[2, 3, 8] at mlp
    %y = linear %m, %w2 : f32[2, 3, 4] at mlp.w2
  loss:
    %squares = aten.mul.Tensor %y, %y : f32[2, 3, 4]
    %loss = aten.sum %squares : f32[]
  bwd:
    %dy = aten.mul.Scalar %y other=2.0 : f32[2, 3, 4]
    %dm = linear_dx %dy, %w2 bwd_of=%y : f32[2, 3, 8] at mlp.w2
    %dw2 = linear_dw %dy, %m bwd_of=%y : f32[4, 8] at mlp.w2
    %dg = aten.mul.Tensor %dm, %u : f32[2, 3, 8] at mlp
    %du = aten.mul.Tensor %dm, %g : f32[2, 3, 8] at mlp
    %dh = aten.cat [%dg, %du] dim=-1 : f32[2, 3, 16] at mlp
    %db = aten.sum.dim_IntList %dh dim=[0, 1] : f32[16] at mlp.w13
    %dw13 = linear_dw %dh, %x bwd_of=%h : f32[16, 4] at mlp.w13
    %dx = linear_dx %dh, %w13 bwd_of=%h : f32[2, 3, 4] at mlp.w13
    %w13.grad = gradient %dw13 param=mlp.w13.weight : f32[16, 4]
    %b.grad = gradient %db param=mlp.w13.bias : f32[16]
    %w2.grad = gradient %dw2 param=mlp.w2.weight : f32[4, 8]
    return %loss, %dx
    carry %w13 = %w13.grad
    carry %b = %b.grad
    carry %w2 = %w2.grad
)";

const TensorParallel kGatedRules = tensor_parallel({{"*.w13", Shard(0, {.blocks = 2})}, {"*.w2", Shard(1)}});

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

TEST_CASE("separate_blocks: gate and up of one matrix need one sum forward and one backward, as two matrices do") {
  CHECK(ir::print(testing::cut_over_tp(kGated, kGatedRules, 2)) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w13 = param name=mlp.w13.weight : f32[2, 4/tp, 4] at mlp.w13.weight
      %b = param name=mlp.w13.bias : f32[2, 4/tp] at mlp.w13.bias
      %w2 = param name=mlp.w2.weight : f32[4, 4/tp] at mlp.w2.weight
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %w13.joined = aten.view %w13 size=[8, 4] : f32[8/tp:2, 4] at mlp.w13
      %b.joined = aten.view %b size=[8] : f32[8/tp:2] at mlp.w13
      %h = linear %x, %w13.joined, %b.joined : f32[2, 3, 8/tp:2] at mlp.w13
      %g, %u = aten.split.Tensor %h dim=-1 split_size=4 : f32[2, 3, 4/tp]{24, 8, 1}, f32[2, 3, 4/tp]{24, 8, 1} at mlp
      %m = aten.mul.Tensor %g, %u : f32[2, 3, 4/tp] at mlp
      %y = linear %m, %w2 : f32[2, 3, 4] sum(tp) at mlp.w2
    loss:
      %y.sum = all_reduce %y axis=tp : f32[2, 3, 4] at mlp.w2
      %squares = aten.mul.Tensor %y.sum, %y.sum : f32[2, 3, 4]
      %loss = aten.sum %squares : f32[]
    bwd:
      %dy = aten.mul.Scalar %y.sum other=2.0 : f32[2, 3, 4]
      %dm = linear_dx %dy, %w2 bwd_of=%y : f32[2, 3, 4/tp] at mlp.w2
      %dw2 = linear_dw %dy, %m bwd_of=%y : f32[4, 4/tp] at mlp.w2
      %dg = aten.mul.Tensor %dm, %u : f32[2, 3, 4/tp] at mlp
      %du = aten.mul.Tensor %dm, %g : f32[2, 3, 4/tp] at mlp
      %dh = aten.cat [%dg, %du] dim=-1 : f32[2, 3, 8/tp:2] at mlp
      %db = aten.sum.dim_IntList %dh dim=[0, 1] : f32[8/tp:2] at mlp.w13
      %dw13 = linear_dw %dh, %x bwd_of=%h : f32[8/tp:2, 4] at mlp.w13
      %w13.joined_1 = aten.view %w13 size=[8, 4] : f32[8/tp:2, 4] at mlp.w13
      %dx = linear_dx %dh, %w13.joined_1 bwd_of=%h : f32[2, 3, 4] sum(tp) at mlp.w13
      %dx.sum = all_reduce %dx axis=tp : f32[2, 3, 4] at mlp.w13
      %dw13.blocks = aten.view %dw13 size=[2, 4, 4] : f32[2, 4/tp, 4] at mlp.w13
      %w13.grad = gradient %dw13.blocks param=mlp.w13.weight : f32[2, 4/tp, 4]
      %db.blocks = aten.view %db size=[2, 4] : f32[2, 4/tp] at mlp.w13
      %b.grad = gradient %db.blocks param=mlp.w13.bias : f32[2, 4/tp]
      %w2.grad = gradient %dw2 param=mlp.w2.weight : f32[4, 4/tp]
      return %loss, %dx.sum
      carry %w13 = %w13.grad
      carry %b = %b.grad
      carry %w2 = %w2.grad
  )"));
}

// The same by other ops: narrow forms of split, and the gradient of slices.
std::string by_slices(int64_t of_gate, int64_t of_up) {
  std::string text = kGated;
  const auto slice = [](const char* name, int64_t start, int64_t end) {
    return concat("    %", name, " = aten.slice.Tensor %h dim=2 end=", end, " start=", start,
                  " : f32[2, 3, 8]{48, 16, 1} at mlp\n");
  };
  const auto back = [](const char* name, const char* from, int64_t start, int64_t end) {
    return concat("    %", name, " = aten.slice_backward %", from, " dim=2 end=", end,
                  " input_sizes=[2, 3, 16] start=", start, " step=1 : f32[2, 3, 16] at mlp\n");
  };
  text =
      with(text,
           "    %g, %u = aten.split.Tensor %h dim=-1 split_size=8 : f32[2, 3, 8]{48, 16, 1}, f32[2, 3, 8]{48, 16, 1} "
           "at mlp\n",
           slice("g", of_gate, of_gate + 8) + slice("u", of_up, of_up + 8));
  return with(text, "    %dh = aten.cat [%dg, %du] dim=-1 : f32[2, 3, 16] at mlp\n",
              back("dhg", "dg", of_gate, of_gate + 8) + back("dhu", "du", of_up, of_up + 8) +
                  "    %dh = aten.add.Tensor %dhg, %dhu : f32[2, 3, 16] at mlp\n");
}
std::string by_sizes() {
  return with(kGated, "aten.split.Tensor %h dim=-1 split_size=8", "aten.split_with_sizes %h dim=-1 split_sizes=[8, 8]");
}

// c_attn makes q, k and v of 4 heads; causal attention; c_proj.
constexpr const char* kAttention = R"(
  graph mesh [] view global
    %w = param name=c_attn.weight : f32[24, 8] at c_attn.weight
    %b = param name=c_attn.bias : f32[24] at c_attn.bias
    %p = param name=c_proj.weight : f32[8, 8] at c_proj.weight
    %x = input name=x : f32[2, 3, 8]
  fwd:
    %h = linear %x, %w, %b : f32[2, 3, 24] at c_attn
    %q, %k, %v = aten.split.Tensor %h dim=-1 split_size=8 : f32[2, 3, 8]{72, 24, 1}, f32[2, 3, 8]{72, 24, 1}, f32[2, 3, 8]{72, 24, 1}
    %q4 = aten.view %q size=[2, 3, 4, 2] : f32[2, 3, 4, 2]{72, 24, 2, 1}
    %k4 = aten.view %k size=[2, 3, 4, 2] : f32[2, 3, 4, 2]{72, 24, 2, 1}
    %v4 = aten.view %v size=[2, 3, 4, 2] : f32[2, 3, 4, 2]{72, 24, 2, 1}
    %qt = aten.transpose.int %q4 dim0=1 dim1=2 : f32[2, 4, 3, 2]{72, 2, 24, 1}
    %kt = aten.transpose.int %k4 dim0=1 dim1=2 : f32[2, 4, 3, 2]{72, 2, 24, 1}
    %vt = aten.transpose.int %v4 dim0=1 dim1=2 : f32[2, 4, 3, 2]{72, 2, 24, 1}
    %o, %lse = sdpa %qt, %kt, %vt, none is_causal=true : f32[2, 4, 3, 2]{24, 2, 8, 1}, f32[2, 4, 3]{12, 1, 4}
    %ot = aten.transpose.int %o dim0=1 dim1=2 : f32[2, 3, 4, 2]
    %m = aten.view %ot size=[2, 3, 8] : f32[2, 3, 8]
    %y = linear %m, %p : f32[2, 3, 8] at c_proj
  loss:
    %squares = aten.mul.Tensor %y, %y : f32[2, 3, 8]
    %loss = aten.sum %squares : f32[]
  bwd:
    %g = aten.mul.Scalar %y other=2.0 : f32[2, 3, 8]
    %dp = linear_dw %g, %m bwd_of=%y : f32[8, 8] at c_proj
    %dm = linear_dx %g, %p bwd_of=%y : f32[2, 3, 8] at c_proj
    %dm4 = aten.view %dm size=[2, 3, 4, 2] : f32[2, 3, 4, 2]
    %do = aten.transpose.int %dm4 dim0=1 dim1=2 : f32[2, 4, 3, 2]{24, 2, 8, 1}
    %dq, %dk, %dv = sdpa_backward %do, %qt, %kt, %vt, %o, %lse, none bwd_of=%o dropout_p=0.0 is_causal=true : f32[2, 4, 3, 2]{24, 2, 8, 1}, f32[2, 4, 3, 2]{24, 2, 8, 1}, f32[2, 4, 3, 2]{24, 2, 8, 1}
    %dqt = aten.transpose.int %dq dim0=1 dim1=2 : f32[2, 3, 4, 2]
    %dkt = aten.transpose.int %dk dim0=1 dim1=2 : f32[2, 3, 4, 2]
    %dvt = aten.transpose.int %dv dim0=1 dim1=2 : f32[2, 3, 4, 2]
    %dq8 = aten.view %dqt size=[2, 3, 8] : f32[2, 3, 8]
    %dk8 = aten.view %dkt size=[2, 3, 8] : f32[2, 3, 8]
    %dv8 = aten.view %dvt size=[2, 3, 8] : f32[2, 3, 8]
    %dh = aten.cat [%dq8, %dk8, %dv8] dim=-1 : f32[2, 3, 24]
    %db = aten.sum.dim_IntList %dh dim=[0, 1] : f32[24] at c_attn
    %dw = linear_dw %dh, %x bwd_of=%h : f32[24, 8] at c_attn
    %dx = linear_dx %dh, %w bwd_of=%h : f32[2, 3, 8] at c_attn
    %w.grad = gradient %dw param=c_attn.weight : f32[24, 8]
    %b.grad = gradient %db param=c_attn.bias : f32[24]
    %p.grad = gradient %dp param=c_proj.weight : f32[8, 8]
    return %loss, %dx
    carry %w = %w.grad
    carry %b = %b.grad
    carry %p = %p.grad
)";
const TensorParallel kAttentionRules = tensor_parallel({{"c_attn", Shard(0, {.blocks = 3})}, {"c_proj", Shard(1)}});

std::string sent(const ir::Graph& graph) {
  std::string all;
  for (const auto& op : graph.ops())
    if (op->is("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
      all += (all.empty() ? "" : ", ") + op->opcode.str() + " " + op->result()->name();
  return all;
}

TEST_CASE("separate_blocks: on 2 and 4 ranks fused weights mean the same as on one, and send as separate ones do") {
  for (const int64_t ranks : {2, 4}) {
    CAPTURE(ranks);
    for (const std::string& text : {std::string(kGated), by_sizes(), by_slices(0, 8), by_slices(8, 0)}) {
      const ir::Graph parts = testing::cut_over_tp(text, kGatedRules, ranks);
      testing::expect_same_meaning(text, parts, ranks);
      CHECK(sent(parts) == "all_reduce y.sum, all_reduce dx.sum");
    }
    const ir::Graph attention = testing::cut_over_tp(kAttention, kAttentionRules, ranks);
    testing::expect_same_meaning(kAttention, attention, ranks);
    CHECK(sent(attention) == "all_reduce y.sum, all_reduce dx.sum");
    for (const bool by_sequence : {false, true})
      for (const Shard& shard : {Shard(0), Shard(1), Shard(1, {.blocks = 2}), Shard(0, {.blocks = 3})})
        testing::expect_same_meaning(
            kAttention,
            testing::cut_over_tp(
                kAttention, tensor_parallel({{"c_attn.weight", shard}}, {.sequence_parallel = by_sequence}), ranks),
            ranks);
  }
}

// [in, out], as transformers' Conv1D has it.
TEST_CASE("separate_blocks: blocks side by side in the second dimension") {
  std::string text =
      with(kGated, "%w13 = param name=mlp.w13.weight : f32[16, 4]", "%w13 = param name=mlp.w13.weight : f32[4, 16]");
  text = with(text, "%h = linear %x, %w13, %b", "%h = matmul %x, %w13, %b");
  text = with(text, "%dw13 = linear_dw %dh, %x bwd_of=%h : f32[16, 4]", "%dw13 = linear_dw %x, %dh : f32[4, 16]");
  text = with(text, "%dx = linear_dx %dh, %w13 bwd_of=%h", "%dx = linear %dh, %w13");
  text = with(text, "%w13.grad = gradient %dw13 param=mlp.w13.weight : f32[16, 4]",
              "%w13.grad = gradient %dw13 param=mlp.w13.weight : f32[4, 16]");
  const TensorParallel rules = tensor_parallel(
      {{"*.w13.weight", Shard(1, {.blocks = 2})}, {"*.w13.bias", Shard(0, {.blocks = 2})}, {"*.w2", Shard(1)}});
  for (const int64_t ranks : {2, 4}) {
    const ir::Graph parts = testing::cut_over_tp(text, rules, ranks);
    testing::expect_same_meaning(text, parts, ranks);
    CHECK(sent(parts) == "all_reduce y.sum, all_reduce dx.sum");
    testing::expect_same_meaning(text, testing::cut_over_tp(text, tensor_parallel({rules.rules[0]}), ranks), ranks);
  }
}

TEST_CASE("separate_blocks: what takes or joins blocks otherwise than as such is refused by the verifier") {
  testing::expect_refused(
      ir::print(testing::cut_over_tp(kGated, kGatedRules, 2)),
      {{"a weight as if it were cut in one range", "%w13.joined = aten.view %w13 size=[8, 4] : f32[8/tp:2, 4]",
        "%w13.joined = aten.view %w13 size=[8, 4] : f32[8/tp, 4]", "its type says cut in dimension 0"},
       {"a product as if it were cut in one range", "f32[2, 3, 8/tp:2] at mlp.w13", "f32[2, 3, 8/tp] at mlp.w13",
        "its type says cut in dimension 2"},
       {"another number of blocks", "%dh = aten.cat [%dg, %du] dim=-1 : f32[2, 3, 8/tp:2]",
        "%dh = aten.cat [%dg, %du] dim=-1 : f32[2, 3, 8/tp:4]", "its type says cut in dimension 2, in 4 blocks"},
       {"a stored weight of contiguous rows", "f32[2, 4/tp, 4] at mlp.w13.weight", "f32[2/tp, 4, 4] at mlp.w13.weight",
        "its type says cut in dimension 0, in 2 blocks"},
       {"blocks taken in halves",
        "%g, %u = aten.split.Tensor %h dim=-1 split_size=4 : f32[2, 3, 4/tp]{24, 8, 1}, f32[2, 3, 4/tp]{24, 8, 1}",
        "%g, %u, %i, %j = aten.split.Tensor %h dim=-1 split_size=2 : f32[2, 3, 2/tp]{24, 8, 1}, f32[2, 3, "
        "2/tp]{24, 8, 1}, f32[2, 3, 2/tp]{24, 8, 1}, f32[2, 3, 2/tp]{24, 8, 1}",
        "a range of 2 from 0 on is no whole blocks of 4"},
       {"a gradient that is stored as contiguous rows",
        "%dw13.blocks = aten.view %dw13 size=[2, 4, 4] : f32[2, 4/tp, 4]",
        "%dw13.blocks = aten.view %dw13 size=[2, 4, 4] : f32[2/tp, 4, 4]", "its type says cut in dimension 0"}});
}

// All ranks would swap alike: no placement tells, numbers do.
TEST_CASE("separate_blocks: blocks in another order are another function, which the interpreter tells") {
  const std::string sound = ir::print(testing::cut_over_tp(kGated, kGatedRules, 2));
  const ir::Graph whole = ir::parse_or_throw(testing::dedent(kGated));
  const auto differs = [&](const std::string& from, const std::string& to) {
    const ir::Graph mutant = ir::parse_or_throw(with(sound, from, to));
    CHECK(plan::verify_layouts(mutant) == "");
    const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
    const auto given = ir::interp::seeded_inputs(whole, 7);
    std::vector<ir::interp::Inputs> of_ranks(2);
    for (const auto& op : mutant.ops())
      for (size_t rank = 0; ir::is_root(*op) && rank < 2; ++rank) {
        const auto name = op->attr<std::string>("name");
        of_ranks[rank].emplace(name, testing::part_of(given[0].at(name), op->result()->type(), rank));
      }
    const auto expected = ir::interp::run(whole, given, exact).ranks[0];
    const auto got = ir::interp::run(mutant, of_ranks, exact);
    return ir::interp::largest_difference(got.ranks[0].outputs[1], expected.outputs[1]);
  };
  CHECK(differs("aten.cat [%dg, %du]", "aten.cat [%dg, %du]") < 1e-11);
  CHECK(differs("aten.cat [%dg, %du]", "aten.cat [%du, %dg]") > 1e-3);
  CHECK(differs("aten.mul.Tensor %dm, %u", "aten.mul.Tensor %dm, %g") > 1e-3);
}

void expect_refused(const std::string& text, const std::vector<TensorParallelRule>& rules, int64_t ranks,
                    const char* what) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"tp", ranks}};
  graph.view = ir::Graph::View::Local;
  CHECK_THROWS_WITH_AS(
      partition(graph, {"tp", ranks}, separate_blocks(graph, find_cuts(graph, tensor_parallel(rules), ranks))),
      doctest::Contains(what), UserError);
}

TEST_CASE("separate_blocks: without blocks what is taken apart is gathered, and how many would spare it is told") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kGated));
  graph.mesh = {{"tp", 2}};
  graph.view = ir::Graph::View::Local;
  const TensorParallel rules = tensor_parallel({{"*.w13", Shard(0)}});
  const PartitionReport report =
      partition(graph, {"tp", 2}, separate_blocks(graph, find_cuts(graph, rules, 2)), rules.options);
  testing::expect_same_meaning(kGated, graph, 2);
  std::vector<std::string> cures;
  for (const PartitionReport::Move& move : report.moves)
    if (!move.cure.empty()) cures.push_back(concat(move.opcode, " for ", move.reader, ": ", move.cure));
  CHECK(cures == std::vector<std::string>{
                     "all_gather for aten.split.Tensor: a rule for its weight with 2 blocks would leave it cut"});
}

TEST_CASE("separate_blocks: blocks that are not those of the model, or of the ranks, are refused with the cure") {
  expect_refused(
      R"(
    graph mesh [] view global
      %w = param name=qkv.weight : f32[16, 4] at qkv.weight
      %x = input name=x : f32[3, 4]
    fwd:
      %h = linear %x, %w : f32[3, 16] at qkv
      %q, %k, %v = aten.split_with_sizes %h dim=1 split_sizes=[8, 4, 4] : f32[3, 8]{16, 1}, f32[3, 4]{16, 1}, f32[3, 4]{16, 1} at attn
      return %q
  )",
      {{"qkv", Shard(0, {.blocks = 2})}}, 2,
      "aten.split_with_sizes at attn takes 8 and 4 and 4 of the 16 of %h, which a rule cuts in 2 blocks of 8 over tp");
  expect_refused(kGated, {{"*.w13", Shard(0, {.blocks = 3})}}, 2,
                 "takes for blocks of one size dimension 0 of mlp.w13");
  expect_refused(
      kGated, {{"*.w13", Shard(0, {.blocks = 2})}}, 16,
      "in 2 blocks, over tp = 16\n  expected a divisor of a block, and of the ranks: the nearest below is tp = 8");
  CHECK_THROWS_WITH_AS(tensor_parallel({{"*.w13", Shard(0, {.blocks = 0})}}), doctest::Contains("1 or more blocks"),
                       UserError);
  CHECK_THROWS_WITH_AS(tensor_parallel({}, {.constraints = {constrain("mlp", Shard(2, {.blocks = 2}))}}),
                       doctest::Contains("Shard(2, {.blocks = 2})"), UserError);
}

}  // namespace
}  // namespace sfsdp::parallel::separate_blocks_test
