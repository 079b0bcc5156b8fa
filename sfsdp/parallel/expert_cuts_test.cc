// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_cuts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/expert_parallel.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/plan/verify/rounds.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/same_meaning.h"

namespace sfsdp::parallel::expert_cuts_test {
namespace {

// Rows in the order of the experts, of which the second has none and ENDS says where each ends; what they give is added to the tokens.
const std::string kForward = R"(
  graph mesh [] view global
    %w1 = param name=moe.experts.w1 : f32[4, 3, 5] at moe.experts.w1
    %w2 = param name=moe.experts.w2 : f32[4, 5, 3] at moe.experts.w2
    %x = input name=x : f32[8, 3]
    %order = input name=order : i64[8]
  fwd:
    ENDS
    %t = aten._log_softmax %x dim=1 half_to_float=false : f32[8, 3]
    %rows = aten.index_select %t, %order dim=0 : f32[8, 3] at moe
    %h = aten._grouped_mm %rows, %w1, %ends, none : f32[8, 5] at moe.experts
    %a = aten.silu %h : f32[8, 5] at moe.experts
    %y = aten._grouped_mm %a, %w2, %ends, none : f32[8, 3] at moe.experts
    %back = aten.index_select %y, %order dim=0 : f32[8, 3] at moe
    %out = aten.add.Tensor %t, %back : f32[8, 3]
  loss:
    %squares = aten.mul.Tensor %out, %out : f32[8, 3]
    %loss = aten.sum %squares : f32[]
)";
const std::string kBackward = R"(
  bwd:
    %zeros = aten.new_zeros %y size=[8, 3] : f32[8, 3] at moe
    %dy = aten.index_add %zeros, %order, %out dim=0 : f32[8, 3] at moe
    %at = aten.t %a : f32[5, 8]{1, 5} at moe.experts
    %dw2 = aten._grouped_mm %at, %dy, %ends, none : f32[4, 5, 3] at moe.experts
    %w2t = aten.transpose.int %w2 dim0=1 dim1=2 : f32[4, 3, 5]{15, 1, 3} at moe.experts
    %da = aten._grouped_mm %dy, %w2t, %ends, none : f32[8, 5] at moe.experts
    %dh = aten.mul.Tensor %da, %a : f32[8, 5] at moe.experts
    %rt = aten.t %rows : f32[3, 8]{1, 3} at moe.experts
    %dw1 = aten._grouped_mm %rt, %dh, %ends, none : f32[4, 3, 5] at moe.experts
    %w1t = aten.transpose.int %w1 dim0=1 dim1=2 : f32[4, 5, 3]{15, 1, 5} at moe.experts
    %dr = aten._grouped_mm %dh, %w1t, %ends, none : f32[8, 3] at moe.experts
    %zx = aten.new_zeros %t size=[8, 3] : f32[8, 3] at moe
    %dx0 = aten.index_add %zx, %order, %dr dim=0 : f32[8, 3] at moe
    %dx = aten.add.Tensor %out, %dx0 : f32[8, 3]
    %w1.grad = gradient %dw1 param=moe.experts.w1 : f32[4, 3, 5]
    %w2.grad = gradient %dw2 param=moe.experts.w2 : f32[4, 5, 3]
    return %loss, %dx
    carry %w1 = %w1.grad
    carry %w2 = %w2.grad
)";

std::string with_ends(std::string text, const std::string& ends) { return text.replace(text.find("ENDS"), 4, ends); }
std::string ends_at(int a, int b, int c, int d) {
  std::string text;
  for (const int end : {a, b, c, d})
    text += "%e" + std::to_string(text.size()) + " = full value=" + std::to_string(end) + " : i32[1]\n    ";
  std::string names;
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 1))
    names += (names.empty() ? "" : ", ") + text.substr(at, text.find(' ', at) - at);
  return text + "%ends = aten.cat [" + names + "] dim=0 : i32[4]";
}

const ExpertParallelOptions kExchange = {.dispatch = DispatchMethod::Exchange};

ir::Graph cut(const std::string& text, int64_t ranks,
              const ExpertParallelOptions& expert = {.dispatch = DispatchMethod::Gather}) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"ep", ranks}};
  graph.view = ir::Graph::View::Local;
  const ContextParallelOptions batch = {.load_balance = false};
  partition(graph, {"ep", ranks}, find_experts(graph, {}, ranks), {}, &batch, 1, expert);
  for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
  CHECK(plan::verify_layouts(graph) == "");
  return graph;
}

TEST_CASE(
    "partition over ep: tokens are gathered, a rank's experts compute their rows, a sum goes back to the tokens") {
  CHECK(ir::print(cut(with_ends(kForward, "%ends = full value=8 : i32[4]") + "    return %loss\n", 2)) ==
        testing::dedent(R"(
    graph mesh [ep=2] view local
      %w1 = param box=ep name=moe.experts.w1 : f32[2/ep, 3, 5] at moe.experts.w1
      %w2 = param box=ep name=moe.experts.w2 : f32[2/ep, 5, 3] at moe.experts.w2
      %x = input name=x : f32[8, 3]
      %order = input name=order : i64[8]
    fwd:
      %x.part = own_part %x axis=ep dim=0 : f32[4/ep, 3]
      %order.part = own_part %order axis=ep dim=0 : i64[4/ep]
      %ends = full value=8 : i32[4]
      %ends.own = own_ends %ends axis=ep : i32[2/ep] at moe.experts
      %t = aten._log_softmax %x.part dim=1 half_to_float=false : f32[4/ep, 3]
      %t.whole = all_gather %t axis=ep dim=0 : f32[8, 3]
      %rows = aten.index_select %t.whole, %order dim=0 : f32[8, 3] at moe
      %rows.own = own_rows %rows, %ends axis=ep dim=0 : f32[8, 3] rows0(ep) at moe
      %h = aten._grouped_mm %rows.own, %w1, %ends.own, none : f32[8, 5] rows0(ep) at moe.experts
      %a = aten.silu %h : f32[8, 5] rows0(ep) at moe.experts
      %y = aten._grouped_mm %a, %w2, %ends.own, none : f32[8, 3] rows0(ep) at moe.experts
      %y.spread = spread_rows %y, %ends axis=ep dim=0 : f32[8, 3] sum(ep) at moe.experts
      %back = aten.index_select %y.spread, %order dim=0 : f32[8, 3] sum(ep) at moe
      %back.part = reduce_scatter %back axis=ep dim=0 : f32[4/ep, 3] at moe
      %out = aten.add.Tensor %t, %back.part : f32[4/ep, 3]
    loss:
      %squares = aten.mul.Tensor %out, %out : f32[4/ep, 3]
      %loss = aten.sum %squares : f32[] sum(ep)
      %loss.sum = all_reduce %loss axis=ep : f32[]
      return %loss.sum
  )"));
}

// The ends are made after the rows are picked, as a model may well do.
TEST_CASE("partition over ep by exchange: tokens' rows are sent to their experts, and what these give is sent back") {
  std::string text = kForward;
  text.replace(text.find("    ENDS\n"), 9, "");
  text.replace(text.find("    %h ="), 0, "    %ends = full value=8 : i32[4]\n");
  CHECK(ir::print(cut(text + "    return %loss\n", 2, kExchange)) == testing::dedent(R"(
    graph mesh [ep=2] view local
      %w1 = param box=ep name=moe.experts.w1 : f32[2/ep, 3, 5] at moe.experts.w1
      %w2 = param box=ep name=moe.experts.w2 : f32[2/ep, 5, 3] at moe.experts.w2
      %x = input name=x : f32[8, 3]
      %order = input name=order : i64[8]
    fwd:
      %x.part = own_part %x axis=ep dim=0 : f32[4/ep, 3]
      %order.part = own_part %order axis=ep dim=0 : i64[4/ep]
      %t = aten._log_softmax %x.part dim=1 half_to_float=false : f32[4/ep, 3]
      %ends = full value=8 : i32[4]
      %ends.own = own_ends %ends axis=ep : i32[2/ep] at moe.experts
      %rows = all_to_all_v %t, %order, %ends axis=ep rows=8 to=rows : f32[8, 3] rows0(ep) at moe
      %h = aten._grouped_mm %rows, %w1, %ends.own, none : f32[8, 5] rows0(ep) at moe.experts
      %a = aten.silu %h : f32[8, 5] rows0(ep) at moe.experts
      %y = aten._grouped_mm %a, %w2, %ends.own, none : f32[8, 3] rows0(ep) at moe.experts
      %back = all_to_all_v %y, %order, %ends axis=ep rows=8 to=parts : f32[4/ep, 3] at moe
      %out = aten.add.Tensor %t, %back : f32[4/ep, 3]
    loss:
      %squares = aten.mul.Tensor %out, %out : f32[4/ep, 3]
      %loss = aten.sum %squares : f32[] sum(ep)
      %loss.sum = all_reduce %loss axis=ep : f32[]
      return %loss.sum
  )"));
}

TEST_CASE("partition over ep: tokens are exchanged where they have fewer copies than there are ranks") {
  const std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]") + "    return %loss\n";
  for (const int64_t ranks : {2, 4}) {  // a copy each
    CHECK(ir::print(cut(text, ranks, ExpertParallelOptions())) == ir::print(cut(text, ranks, kExchange)));
    CHECK(ir::print(cut(text, ranks)).find("all_to_all_v") == std::string::npos);
  }
  std::string twice = text;
  for (const auto& [from, to] :
       {std::pair("i64[8]", "i64[16]"),
        std::pair("%rows = aten.index_select %t, %order dim=0 : f32[8, 3]",
                  "%rows = aten.index_select %t, %order dim=0 : f32[16, 3]"),
        std::pair("f32[8, 5]", "f32[16, 5]"), std::pair("%ends, none : f32[8, 3]", "%ends, none : f32[16, 3]"),
        std::pair("%back = aten.index_select %y, %order", "%back = aten.index_select %y, %back_order"),
        std::pair("  fwd:", "    %back_order = input name=back_order : i64[8]\n  fwd:")})
    for (size_t at = twice.find(from); at != std::string::npos; at = twice.find(from, at + std::string(to).size()))
      twice.replace(at, std::string(from).size(), to);
  CHECK(ir::print(cut(twice, 2, ExpertParallelOptions())) == ir::print(cut(twice, 2)));  // two copies, two ranks
  CHECK(ir::print(cut(twice, 4, ExpertParallelOptions())) == ir::print(cut(twice, 4, kExchange)));
}

TEST_CASE("partition over ep: on 2 and 4 ranks a mixture means the same as on one, whoever has the rows") {
  for (const int64_t ranks : {2, 4})
    for (const std::string& ends :
         {ends_at(3, 3, 5, 8), ends_at(8, 8, 8, 8), ends_at(0, 0, 0, 8), ends_at(2, 4, 6, 8)}) {
      CAPTURE(ranks);
      CAPTURE(ends);
      const std::string text = with_ends(kForward, ends) + kBackward.substr(1);
      for (const DispatchMethod dispatch : {DispatchMethod::Gather, DispatchMethod::Exchange})
        testing::expect_same_meaning(text, cut(text, ranks, {.dispatch = dispatch}), ranks);
    }
}

// A rank has room for an even share, or for half or one and a half of it; what is more comes in further rounds, in forward and backward.
TEST_CASE("partition over ep: with room for some rows, in as many rounds as they need, a mixture means the same") {
  for (const int64_t ranks : {2, 4})
    for (const double capacity : {0.5, 1.0, 1.5})
      for (const std::string& ends :
           {ends_at(3, 3, 5, 8), ends_at(8, 8, 8, 8), ends_at(0, 0, 0, 8), ends_at(2, 4, 6, 8)}) {
        CAPTURE(ranks);
        CAPTURE(capacity);
        CAPTURE(ends);
        const std::string text = with_ends(kForward, ends) + kBackward.substr(1);
        ir::Graph graph = cut(text, ranks, {.capacity = capacity});
        CHECK(plan::check_rounds(graph) != "");
        const std::array calls = {passes::make_call("further_rounds")};
        passes::run_passes(graph, calls, {.checks = passes::Checks::EveryPass});
        CHECK(plan::verify_layouts(graph) == "");
        CHECK(plan::check_rounds(graph) == "");
        testing::expect_same_meaning(text, graph, ranks);
      }
}

TEST_CASE("partition over ep: room for some rows, of which an op wants all, is refused by name") {
  std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]");
  const std::string back = "aten.index_select %y, %order dim=0 : f32[8, 3] at moe";
  text.replace(text.find(back), back.size(), "aten.cumsum %y dim=0 : f32[8, 3] at moe");
  CHECK_THROWS_WITH_AS(
      cut(text + "    return %loss\n", 2, {.capacity = 1}),
      doctest::Contains("aten.cumsum at moe wants aten._grouped_mm at moe.experts %y of all ranks' experts at once"),
      UserError);
}

TEST_CASE(
    "partition over ep: experts that the ranks do not divide, and models without any, are refused with the cure") {
  const std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]") + "    return %loss\n";
  CHECK_THROWS_WITH_AS(cut(text, 3), doctest::Contains("w1 has 4 experts, over ep = 3"), UserError);
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  const auto expect_nearest = [&](std::vector<MeshAxis> mesh, int64_t ranks, const char* nearest) {
    graph.mesh = std::move(mesh);
    CHECK_THROWS_WITH_AS(find_experts(graph, {}, ranks),
                         doctest::Contains(concat("the nearest below is ep = ", nearest).c_str()), UserError);
  };
  expect_nearest({{"ep", 3}}, 3, "1");
  expect_nearest({{"dp_shard", 1}, {"ep", 6}}, 6, "2");  // of 6 ranks 4 cannot be
  expect_nearest({{"dp_shard", 2}, {"ep", 6}, {"tp", 2}}, 6, "4");
  std::string many = kForward + "    return %loss\n";
  for (const char* shape : {"f32[4, 3, 5]", "f32[4, 5, 3]"}) many.replace(many.find(shape), 6, "f32[64,");
  graph = ir::parse_or_throw(testing::dedent(with_ends(many, "%ends = full value=8 : i32[64]")));
  expect_nearest({{"ep", 6}}, 6, "2");
  expect_nearest({{"dp_shard", 2}, {"ep", 6}, {"tp", 2}}, 6, "4");
  const ir::Graph none =
      ir::parse_or_throw("graph mesh [] view global\n  %x = input name=x : f32[8, 3]\n  return %x\n");
  CHECK_THROWS_WITH_AS(find_experts(none, {}, 2), doctest::Contains("such as *.experts, or ep = 1"), UserError);
}

TEST_CASE(
    "apply_model_parallel: experts that tp would cut as well as ep are refused, with a rule that cuts within them") {
  std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]") + "    return %loss\n";
  std::ranges::replace(text, '5', '6');  // a width that 2 ranks divide
  const auto apply = [&](std::vector<TensorParallelRule> rules, std::vector<MeshAxis> axes = {{"ep", 2}, {"tp", 2}}) {
    ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
    apply_model_parallel(graph, data_parallel(DeviceMesh(std::move(axes)), {}, tensor_parallel(std::move(rules))));
    CHECK(plan::verify_layouts(graph) == "");
  };
  CHECK_THROWS_WITH_AS(
      apply({{"*.w1|w3", Shard(0)}, {"*.w2", Shard(2)}}),
      "tensor_parallel: {\"*.w1|w3\", Shard(0)} cuts dimension 0 of moe.experts.w1, the experts, which ep = 2 cuts\n"
      "  expected a rule before it that cuts within each expert, such as {\"moe.experts.w1\", Shard(1)}, or a pattern "
      "that leaves them out",
      UserError);
  // 4 experts over tp = 3 would be a refusal too, whose cure would not help.
  CHECK_THROWS_WITH_AS(apply({{"*.w2", Shard(0)}}, {{"ep", 2}, {"tp", 3}}),
                       doctest::Contains("cuts dimension 0 of moe.experts.w2, the experts"), UserError);
  apply({{"*.experts.w1", Shard(2)}, {"*.experts.w2", Shard(1)}, {"*.w1|w2", Shard(0)}});
  apply({{"*.w1", Shard(0)}, {"*.w2", Shard(0)}}, {{"dp_shard", 2}, {"tp", 2}});
  // What the first product adds up, of dimension 1 here, silu wants whole, of rows that no other rank of ep has.
  for (size_t at; (at = text.find(", 3")) != std::string::npos;) text.replace(at, 3, ", 4");
  CHECK_THROWS_WITH_AS(apply({{"*.w1", Shard(1)}}),
                       doctest::Contains("tensor_parallel: aten.silu at moe.experts wants all of aten._grouped_mm at "
                                         "moe.experts %h over tp, of which each rank of ep has rows"),
                       UserError);
}

TEST_CASE("apply_model_parallel: experts whose width on a rank is no multiple of 16 bytes are refused by name") {
  std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]") + "    return %loss\n";
  for (size_t at; (at = text.find('5')) != std::string::npos;) text.replace(at, 1, "12");
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  const TensorParallel rules = tensor_parallel({{"*.experts.w1", Shard(2)}, {"*.experts.w2", Shard(1)}});
  CHECK_THROWS_WITH_AS(apply_model_parallel(graph, data_parallel(init_device_mesh({{"tp", 2}}), {}, rules)),
                       doctest::Contains("aten._grouped_mm at moe.experts makes rows of 6 numbers on each rank\n"
                                         "  expected a multiple of 4: experts that are wider, or a smaller tp"),
                       UserError);
}

TEST_CASE("partition over tp: experts that are cut by their number, without ep, mean the same as on one rank") {
  for (const int64_t ranks : {2, 4})
    for (const std::string& ends : {ends_at(3, 3, 5, 8), ends_at(0, 0, 0, 8)}) {
      const std::string text = with_ends(kForward, ends) + kBackward.substr(1);
      for (const auto& rules : {tensor_parallel({{"*.w1|w2", Shard(0)}}), tensor_parallel({{"*.w1", Shard(0)}})}) {
        ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
        graph.mesh = {{"tp", ranks}};
        graph.view = ir::Graph::View::Local;
        partition(graph, {"tp", ranks}, separate_blocks(graph, find_cuts(graph, rules, ranks)), rules.options);
        CHECK(plan::verify_layouts(graph) == "");
        testing::expect_same_meaning(text, graph, ranks);
      }
    }
}

TEST_CASE("partition over ep: an op that reads the weights of all experts is refused by name, with the cure") {
  const std::string text = with_ends(kForward, "%ends = full value=8 : i32[4]") +
                           "    %all = aten.index_select %w1, %order dim=0 : f32[8, 3, 5]\n    return %loss, %all\n";
  CHECK_THROWS_WITH_AS(cut(text, 2), doctest::Contains("reads moe.experts.w1 of all experts"), UserError);
  CHECK_THROWS_WITH_AS(cut(text, 2), doctest::Contains("expected products of groups"), UserError);
}

}  // namespace
}  // namespace sfsdp::parallel::expert_cuts_test
