// SPDX-License-Identifier: BSD-3-Clause
// Expected numbers are worked out by hand.
#include "sfsdp/testing/interp/interpreter.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/collectives.h"

namespace sfsdp::ir::interp::interpreter_test {
namespace {

Graph read(const std::string& mesh, std::string_view body) {
  Graph graph = parse_or_throw("graph mesh [" + mesh + "] view local\n" + testing::dedent(body));
  verify_or_throw(graph);
  return graph;
}

Array f32(std::vector<int64_t> shape, std::vector<double> data) {
  return {DType::f32, std::move(shape), std::move(data)};
}

using Data = std::vector<double>;

// Output 0 of each rank.
std::vector<Data> outputs(const Graph& graph, const std::vector<Inputs>& inputs) {
  std::vector<Data> data;
  for (const RankResult& rank : run(graph, inputs).ranks) data.push_back(rank.outputs.at(0).data);
  return data;
}

// One op on %x of two ranks, [1, 2] and [3, 4].
std::vector<Data> on_two_ranks(const std::string& line) {
  const Graph graph = read("a=2", "  %x = input name=x : f32[2]\nfwd:\n  " + line + "\n  return %y");
  return outputs(graph, {{{"x", f32({2}, {1, 2})}}, {{"x", f32({2}, {3, 4})}}});
}

TEST_CASE("largest_difference: what is no number, or has another shape, differs without bound") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Array numbers = {DType::f64, {3}, {1, -2, inf}};
  CHECK(largest_difference(numbers, numbers) == 0);
  CHECK(largest_difference(numbers, {DType::f64, {3}, {1.5, -4, inf}}) == 2);
  CHECK(largest_difference(numbers, {DType::f64, {3}, {nan, -2, inf}}) == inf);
  CHECK(largest_difference({DType::f64, {2}, {nan, 1}}, {DType::f64, {2}, {nan, 1}}) == inf);
  CHECK(largest_difference(numbers, {DType::f64, {3}, {1, -2, -inf}}) == inf);
  CHECK(largest_difference(numbers, {DType::f64, {3, 1}, {1, -2, inf}}) == inf);
  CHECK(largest_magnitude({DType::f64, {2}, {1, -2}}) == 2);
  CHECK(largest_magnitude({DType::f64, {3}, {nan, 1, -inf}}) == 1);
}

TEST_CASE("collectives do what their names say") {
  CHECK(on_two_ranks("%y = all_gather %x axis=a dim=0 : f32[4]") == std::vector<Data>{{1, 2, 3, 4}, {1, 2, 3, 4}});
  CHECK(on_two_ranks("%y = reduce_scatter %x axis=a dim=0 : f32[1]") == std::vector<Data>{{4}, {6}});
  CHECK(on_two_ranks("%y = all_reduce %x axis=a : f32[2]") == std::vector<Data>{{4, 6}, {4, 6}});
  CHECK(on_two_ranks("%y = all_reduce %x axis=a op=max : f32[2]") == std::vector<Data>{{3, 4}, {3, 4}});
  CHECK(on_two_ranks("%y = all_reduce %x axis=a op=min : f32[2]") == std::vector<Data>{{1, 2}, {1, 2}});
  CHECK(on_two_ranks("%y = broadcast %x axis=a root=1 : f32[2]") == std::vector<Data>{{3, 4}, {3, 4}});
  CHECK(on_two_ranks("%v = view %x : f32[2, 1]\n  %y = all_to_all %v axis=a split=0 join=1 : f32[1, 2]") ==
        std::vector<Data>{{1, 3}, {2, 4}});
  CHECK(on_two_ranks("%s = all_reduce.start %x axis=a : async f32[2]\n  %y = wait %s : f32[2]") ==
        std::vector<Data>{{4, 6}, {4, 6}});
}

TEST_CASE("pack by rank puts each operand's shares side by side; unpack takes one operand out of all shares") {
  const Graph graph = read("a=2", R"(
      %x = input name=x : f32[2, 2]
      %y = input name=y : f32[2]
    fwd:
      %p = pack [%x, %y] offsets=[0, 3] ranks=2 : f32[10]
      %u = unpack %p offset=0 ranks=2 : f32[2, 2]
      %v = unpack %p offset=3 ranks=2 : f32[2]
      return %p, %u, %v
  )");
  const Inputs inputs = {{"x", f32({2, 2}, {1, 2, 3, 4})}, {"y", f32({2}, {5, 6})}};
  const auto results = run(graph, {inputs, inputs}).ranks[1].outputs;
  CHECK(results[0].data == Data{1, 2, 0, 5, 0, 3, 4, 0, 6, 0});
  CHECK(results[1].data == Data{1, 2, 3, 4});
  CHECK(results[2].data == Data{5, 6});
}

TEST_CASE("an all_to_all moves a cut from one inner dimension to another, and back") {
  // The whole is [2, 2, 4], elements numbered as they lie; the ranks have halves of the last dimension.
  const auto half = [](double begin) {
    Data data;
    for (const double row : {0, 4, 8, 12}) data.insert(data.end(), {row + begin, row + begin + 1});
    return Inputs{{"x", f32({2, 2, 2}, data)}};
  };
  const Graph graph = read("a=2", R"(
      %x = input name=x : f32[2, 2, 2]
    fwd:
      %y = all_to_all %x axis=a split=1 join=2 : f32[2, 1, 4]
      %z = all_to_all %y axis=a split=2 join=1 : f32[2, 2, 2]
      return %y, %z
  )");
  const std::vector<Inputs> inputs = {half(0), half(2)};
  const auto ranks = run(graph, inputs).ranks;
  CHECK(ranks[0].outputs[0].data == Data{0, 1, 2, 3, 8, 9, 10, 11});
  CHECK(ranks[1].outputs[0].data == Data{4, 5, 6, 7, 12, 13, 14, 15});
  for (const size_t rank : {0, 1}) CHECK(ranks[rank].outputs[1].data == inputs[rank].at("x").data);
}

TEST_CASE("a gather along an inner dimension, before which all sizes are 1, puts the ranks' parts side by side") {
  const Graph graph = read("a=2", R"(
      %x = input name=x : f32[1, 2]
    fwd:
      %y = all_gather %x axis=a dim=1 : f32[1, 4]
      %z = reduce_scatter %y axis=a dim=1 : f32[1, 2]
      return %y, %z
  )");
  const auto result = run(graph, {{{"x", f32({1, 2}, {1, 2})}}, {{"x", f32({1, 2}, {3, 4})}}});
  CHECK(result.ranks[0].outputs[0].data == Data{1, 2, 3, 4});
  CHECK(result.ranks[0].outputs[1].data == Data{2, 4});
  CHECK(result.ranks[1].outputs[1].data == Data{6, 8});
}

TEST_CASE("axes group ranks row-major, in the order in which they are listed") {
  const DeviceMesh mesh({{"a", 2}, {"b", 3}});
  CHECK(mesh.world_size() == 6);
  CHECK(mesh.axis_rank(4, "a") == 1);
  CHECK(mesh.axis_rank(4, "b") == 1);
  CHECK(mesh.ranks_of_group(4, {"a"}) == std::vector<int64_t>{1, 4});
  CHECK(mesh.ranks_of_group(4, {"b"}) == std::vector<int64_t>{3, 4, 5});
  CHECK(mesh.ranks_of_group(4, {"a", "b"}) == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(mesh.ranks_of_group(4, {"b", "a"}) == std::vector<int64_t>{0, 3, 1, 4, 2, 5});
  CHECK(mesh.group_rank(4, {"b", "a"}) == 3);
}

// One op on one rank; `x` is [[1, 2], [3, 4]] and `y` is [10, 20].
Data on_one_rank(const std::string& line) {
  const Graph graph =
      read("", "  %x = input name=x : f32[2, 2]\n  %y = input name=y : f32[2]\nfwd:\n  " + line + "\n  return %z");
  return outputs(graph, {{{"x", f32({2, 2}, {1, 2, 3, 4})}, {"y", f32({2}, {10, 20})}}})[0];
}

TEST_CASE("kernels on one rank") {
  CHECK(on_one_rank("%z = aten.mm %x, %x : f32[2, 2]") == Data{7, 10, 15, 22});
  CHECK(on_one_rank("%z = aten.t %x : f32[2, 2]") == Data{1, 3, 2, 4});
  CHECK(on_one_rank("%z = aten.add.Tensor %x, %y alpha=2 : f32[2, 2]") == Data{21, 42, 23, 44});
  CHECK(on_one_rank("%z = aten.sub.Tensor %x, %y : f32[2, 2]") == Data{-9, -18, -7, -16});
  CHECK(on_one_rank("%z = aten.mul.Tensor %x, %y : f32[2, 2]") == Data{10, 40, 30, 80});
  CHECK(on_one_rank("%z = aten.sum %x : f32[]") == Data{10});
  CHECK(on_one_rank("%z = aten.sum.dim_IntList %x dim=[0] keepdim=false : f32[2]") == Data{4, 6});
  CHECK(on_one_rank("%z = aten.sum.dim_IntList %x dim=[-1] keepdim=true : f32[2, 1]") == Data{3, 7});
  CHECK(on_one_rank("%z = aten.cat [%x, %x] dim=1 : f32[2, 4]") == Data{1, 2, 1, 2, 3, 4, 3, 4});
  CHECK(on_one_rank("%n = aten.neg %y : f32[2]\n  %z = aten.relu %n : f32[2]") == Data{0, 0});
  CHECK(on_one_rank("%n = aten.neg %x : f32[2, 2]\n  %z = add_into %n, %x donates=[0] : f32[2, 2]") ==
        Data{0, 0, 0, 0});
  CHECK(on_one_rank("%z = pad %x dim=1 size=3 : f32[2, 3]") == Data{1, 2, 0, 3, 4, 0});
  CHECK(on_one_rank("%z = narrow %x dim=1 length=1 start=1 : f32[2, 1]") == Data{2, 4});
  CHECK(on_one_rank("%z = view %x offset=1 : f32[3]") == Data{2, 3, 4});
  CHECK(on_one_rank("%z = mul_scalar %y value=0.5 : f32[2]") == Data{5, 10});
  CHECK(on_one_rank("%z = full value=3 : f32[2]") == Data{3, 3});
  CHECK(on_one_rank("%z = sum_squares [%x, %y] : f64[2]") == Data{30, 500});
  CHECK(on_one_rank("%s = sum_squares [%x, %x] : f64[2]\n  %z = grad_norm %s : f32[]") ==
        Data{round_to(DType::f32, std::sqrt(60.0))});
  CHECK(on_one_rank("%n = scalar value=4.0 : f64[]\n  %z = clip_coefficient %n max_norm=8.0 : f32[]") == Data{1});
  CHECK(on_one_rank("%n = scalar value=inf : f64[]\n  %z = non_finite %n : f32[]") == Data{1});
  CHECK(on_one_rank("%z = aten.select_backward %y dim=0 index=-1 input_sizes=[2, 2] : f32[2, 2]") ==
        Data{0, 0, 10, 20});
  CHECK(on_one_rank("%z = aten.slice.Tensor %x dim=1 end=9 start=-1 : f32[2, 1]{2, 1}") == Data{2, 4});
  CHECK(on_one_rank("%z = aten.slice_backward %y dim=0 end=9 input_sizes=[3] start=-2 step=1 : f32[3]") ==
        Data{0, 10, 20});
  const std::string drawn = "%z = aten.rand size=[2] stream=1 : f32[2]";
  CHECK(on_one_rank(drawn) == on_one_rank(drawn));
  CHECK(on_one_rank(drawn) != on_one_rank("%z = aten.rand size=[2] stream=2 : f32[2]"));
}

TEST_CASE("cross entropy and its gradient") {
  CHECK(on_one_rank("%z = aten.ne.Scalar %y other=10 : b1[2]") == Data{0, 1});
  const std::string log_p = "%p = aten._log_softmax %x dim=1 half_to_float=false : f32[2, 2]\n";
  const std::string loss = log_p + "  %b = aten.ne.Scalar %y other=10 : b1[2]\n  %t = cast %b : i64[2]\n";
  const auto close = [](const Data& got, const Data& expected) {
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  };
  const double low = 1 / (1 + std::exp(1.0)), high = 1 - low;  // both rows are 1 apart; the targets are 0 and 1
  close(on_one_rank(loss + "  %z, %n = aten.nll_loss_forward %p, %t, none reduction=1 : f32[], f32[]"),
        {-(std::log(low) + std::log(high)) / 2});
  close(on_one_rank(loss + "  %z, %n = aten.nll_loss_forward %p, %t, none ignore_index=1 reduction=1 : f32[], f32[]"),
        {-std::log(low)});
  close(on_one_rank(loss + "  %l, %z = aten.nll_loss_forward %p, %t, none ignore_index=1 reduction=2 : f32[], f32[]"),
        {1});
  const std::string backward = loss + "  %l, %n = aten.nll_loss_forward %p, %t, none reduction=1 : f32[], f32[]\n" +
                               "  %one = full value=1.0 : f32[]\n  %g = aten.nll_loss_backward %one, %p, %t, none, %n "
                               "reduction=1 : f32[2, 2]\n" +
                               "  %z = aten._log_softmax_backward_data %g, %p dim=1 input_dtype=f32 : f32[2, 2]";
  close(on_one_rank(backward), {(low - 1) / 2, high / 2, low / 2, (high - 1) / 2});
}

TEST_CASE("an index that is none is said with its op: ids of a table, targets of a loss") {
  const Graph table = read("a=1", R"(
    %w = param name=w : f32[2, 1]
    %i = input name=i : i64[1]
    fwd:
      %y = embedding %w, %i : f32[1, 1]
      return %y
  )");
  const Graph loss = read("a=1", R"(
    %w = param name=w : f32[1, 2]
    %i = input name=i : i64[1]
    fwd:
      %y, %n, %l = cross_entropy %w, %i : f32[], f32[], f32[1]
      return %y
  )");
  for (const double index : {2.0, -1.0}) {
    const Array ids{DType::i64, {1}, {index}};
    CHECK_THROWS_WITH_AS(run(table, {{{"w", f32({2, 1}, {1, 2})}, {"i", ids}}}), doctest::Contains("expected 0 to 1"),
                         UserError);
    CHECK_THROWS_WITH_AS(run(loss, {{{"w", f32({1, 2}, {1, 2})}, {"i", ids}}}), doctest::Contains("expected 0 to 1"),
                         UserError);
  }
}

TEST_CASE("the first step of AdamW moves a parameter by lr against the sign of its gradient") {
  const Graph graph = read("", R"(
      %p = param name=p : f32[2]
      %m = state name=m : f32[2]
      %v = state name=v : f32[2]
      %g = input name=g : f32[2]
      %one = input name=one : f32[]
      %fine = input name=fine : f32[]
    opt:
      %a, %b, %c = adamw %p, %m, %v, %g, %one, %fine beta1=0.5 beta2=0.75 eps=0.0 weight_decay=0.0 : f32[2], f32[2], f32[2]
      carry %p = %a
      carry %m = %b
      carry %v = %c
  )");
  const auto step = [&](double non_finite) {
    const Inputs inputs = {{"p", f32({2}, {1, 1})},  {"m", f32({2}, {0, 0})}, {"v", f32({2}, {0, 0})},
                           {"g", f32({2}, {2, -4})}, {"one", f32({}, {1})},   {"fine", f32({}, {non_finite})}};
    return run(graph, {inputs}).ranks[0].carried;
  };
  CHECK(step(0).at("p").data == Data{0.875, 1.125});
  CHECK(step(0).at("m").data == Data{1, -2});
  CHECK(step(0).at("v").data == Data{1, 4});
  CHECK(step(1).at("p").data == Data{1, 1});
  CHECK(step(1).at("v").data == Data{0, 0});
}

TEST_CASE("SGD with momentum") {
  const Graph graph = read("", R"(
      %p = param name=p : f32[1]
      %m = state name=m : f32[1]
      %fine = input name=fine : f32[]
    opt:
      %a, %b = sgd %p, %m, %p, %fine momentum=0.5 weight_decay=1.0 : f32[1], f32[1]
      carry %p = %a
      carry %m = %b
  )");
  const auto result = run(graph, {{{"p", f32({1}, {4})}, {"m", f32({1}, {16})}, {"fine", f32({}, {0})}}});
  CHECK(result.ranks[0].carried.at("m").data == Data{16});  // 0.5 * 16 + (4 + 1.0 * 4)
  CHECK(result.ranks[0].carried.at("p").data == Data{2});   // 4 - 0.125 * 16
}

TEST_CASE("Adam's decay is a part of the gradient; segments of a bucket have their own decay and learning rate") {
  const Graph graph = read("a=2", R"(
      %p = param name=p : f32[2/a]
      %m = state name=m : f32[2/a]
      %v = state name=v : f32[2/a]
      %g = input name=g : f32[2]
      %one = input name=one : f32[]
      %fine = input name=fine : f32[]
    opt:
      %a, %b, %c = adam %p, %m, %v, %g, %one, %fine axis=a begins=[0, 1, 3] beta1=0.5 beta2=0.75 eps=0.0 lr_factor=[1.0, 2.0, 4.0] weight_decay=[0.0, 3.0, 1.0] : f32[2/a], f32[2/a], f32[2/a]
      carry %p = %a
      carry %m = %b
      carry %v = %c
  )");
  const Inputs inputs = {{"p", f32({2}, {1, 1})}, {"m", f32({2}, {0, 0})}, {"v", f32({2}, {0, 0})},
                         {"g", f32({2}, {2, 1})}, {"one", f32({}, {1})},   {"fine", f32({}, {0})}};
  const auto ranks = run(graph, {inputs, inputs}).ranks;
  // lr is 0.125; the first step is lr * factor, whatever the gradient's size: 2, 1 + 3, 2 + 3, 1 + 1
  CHECK(ranks[0].carried.at("p").data == Data{0.875, 0.75});
  CHECK(ranks[1].carried.at("p").data == Data{0.75, 0.5});
  CHECK(ranks[0].carried.at("m").data == Data{1, 2});
  CHECK(ranks[1].carried.at("m").data == Data{2.5, 1});
  CHECK(ranks[1].carried.at("v").data == Data{6.25, 1});
}

TEST_CASE("a replicated gradient counts once") {
  const Graph graph = read("a=2", R"(
      %g = input name=g : f32[1]
    clip:
      %s = sum_squares [%g, %g] axis=a replicated=[true, false] : f64[2]
      return %s
  )");
  CHECK(outputs(graph, {{{"g", f32({1}, {3})}}, {{"g", f32({1}, {3})}}}) == std::vector<Data>{{9, 9}, {0, 9}});
}

TEST_CASE("numbers are rounded to what a dtype holds, ties to even") {
  CHECK(round_to(DType::bf16, 1 + 0x1p-8) == 1);
  CHECK(round_to(DType::bf16, 1 + 0x3p-8) == 1 + 0x1p-6);
  CHECK(round_to(DType::bf16, 0x1.ffp127) == INFINITY);
  CHECK(round_to(DType::bf16, 0x1p-133) == 0x1p-133);  // the smallest subnormal
  CHECK(round_to(DType::bf16, 0x1p-134) == 0);
  CHECK(round_to(DType::f16, 65519) == 65504);
  CHECK(round_to(DType::f16, 65520) == INFINITY);
  CHECK(round_to(DType::f16, 0x1p-24) == 0x1p-24);
  CHECK(round_to(DType::f8e4m3, 448) == 448);
  CHECK(round_to(DType::f8e4m3, 17) == 16);
  CHECK(std::isnan(round_to(DType::f8e4m3, 1000)));
  CHECK(round_to(DType::f8e5m2, -1e9) == -INFINITY);
  CHECK(round_to(DType::f32, 1 + 0x1p-24) == 1);
  CHECK(round_to(DType::i8, 300) == 127);
  CHECK(round_to(DType::i32, -1.9) == -1);
  CHECK(round_to(DType::b1, 0.1) == 1);
}

TEST_CASE("results are rounded per op, unless asked not to") {
  const Graph graph = read("", R"(
      %x = input name=x : f32[1]
    fwd:
      %y = cast %x : bf16[1]
      return %y
  )");
  const std::vector<Inputs> inputs = {{{"x", f32({1}, {1 + 0x1p-8})}}};
  CHECK(run(graph, inputs).ranks[0].outputs[0].data == Data{1});
  CHECK(run(graph, inputs, {.rounding = Rounding::None}).ranks[0].outputs[0].data == Data{1 + 0x1p-8});
}

TEST_CASE("micro-batches: accumulate adds up, what is once=true runs in the last alone, then the update") {
  Graph graph = read("a=2", R"(
      %w = param name=w : f32[1/a]
      %nf = state name=nf : f32[]
      %x = input name=x : f32[2] own(a)
    fwd:
      %y = mul_scalar %x value=2.0 : f32[2]
    bwd:
      %sum = accumulate %y : f32[2]
      %rs = reduce_scatter %sum axis=a dim=0 once=true : f32[1]
    opt:
      %w.new = sgd %w, none, %rs, %nf momentum=0.0 weight_decay=0.0 : f32[1/a]
      return %y, %sum
      carry %w = %w.new
  )");
  const Array no = Array::scalar(DType::f32, 0);
  const std::vector<Inputs> inputs = {
      {{"w", f32({1}, {100})}, {"nf", no}, {"x", f32({2}, {1, 2})}, {"x@1", f32({2}, {3, 4})}},
      {{"w", f32({1}, {200})}, {"nf", no}, {"x", f32({2}, {10, 20})}, {"x@1", f32({2}, {30, 40})}}};
  const auto run_with = [&](int64_t micro_batches) {
    graph.micro_batches = micro_batches;
    return run(graph, inputs);
  };
  const RunResult one = run_with(1), two = run_with(2);
  CHECK(one.ranks[0].outputs[1].data == Data{2, 4});
  CHECK(one.ranks[0].carried.at("w").data == Data{100 - 22.0 / 8});  // 2 · (1 + 10), times lr
  CHECK(two.ranks[0].outputs[0].data == Data{6, 8});                 // of the last
  CHECK(two.ranks[1].outputs[1].data == Data{80, 120});
  CHECK(two.ranks[0].carried.at("w").data == Data{100 - 88.0 / 8});   // 8 + 80
  CHECK(two.ranks[1].carried.at("w").data == Data{200 - 132.0 / 8});  // 12 + 120
  CHECK_THROWS_WITH_AS(run_with(3), doctest::Contains("no input x@2 for rank 0"), UserError);
}

TEST_CASE("micro-batches: a running statistic goes on from one to the next, a sum is rounded each time") {
  Graph graph = read("", R"(
      %s = state name=s : f32[1]
      %x = input name=x : f32[1]
    fwd:
      %h = mul_scalar %s value=0.5 : f32[1]
      %n = aten.add.Tensor %h, %x : f32[1]
      %low = cast %x : bf16[1]
      %sum = accumulate %low : bf16[1]
      return %sum
      carry %s = %n
  )");
  const std::vector<Inputs> inputs = {
      {{"s", f32({1}, {8})}, {"x", f32({1}, {256})}, {"x@1", f32({1}, {1})}, {"x@2", f32({1}, {1})}}};
  graph.micro_batches = 3;
  const RunResult three = run(graph, inputs);
  CHECK(three.ranks[0].carried.at("s").data == Data{66.5});  // 8 / 2 + 256 = 260, 130 + 1 = 131, 65.5 + 1
  CHECK(three.ranks[0].outputs[0].data == Data{256});        // bf16 holds no 257
  const RunResult exact = run(graph, inputs, {.rounding = Rounding::None});
  CHECK(exact.ranks[0].outputs[0].data == Data{258});
}

TEST_CASE("made-up inputs differ over the axes that a type names, and there only") {
  Graph graph = read("a=2, b=2", R"(
      %same = param name=same : f32[8]
      %split = param name=split : f32[8/b]
      %own = input name=own : f32[8] own(a, b)
  )");
  const auto inputs = seeded_inputs(graph, 1);
  CHECK(inputs[0].at("same") == inputs[3].at("same"));
  CHECK(inputs[0].at("split") == inputs[2].at("split"));
  CHECK(inputs[0].at("split") != inputs[1].at("split"));
  CHECK(inputs[0].at("own") != inputs[2].at("own"));
  CHECK(seeded_inputs(graph, 2)[0].at("same") != inputs[0].at("same"));
  graph.micro_batches = 2;
  const auto two = seeded_inputs(graph, 1);
  CHECK(two[0].at("own") == inputs[0].at("own"));
  CHECK(two[0].at("own@1") != two[0].at("own"));
  CHECK_FALSE(two[0].contains("same@1"));  // parameters are of the step
}

TEST_CASE("what it cannot run is an error that says so") {
  const Graph graph = read("", "  %x = input name=x : f32[2]\nfwd:\n  %y = aten.erfinv %x : f32[2]\n  return %y");
  CHECK_THROWS_WITH_AS(run(graph, seeded_inputs(graph, 1)), doctest::Contains("no kernel for aten.erfinv"), UserError);
  CHECK_THROWS_WITH_AS(run(graph, {{}}), doctest::Contains("no input x for rank 0"), UserError);
  CHECK_THROWS_WITH_AS(run(graph, {{{"x", f32({3}, {1, 2, 3})}}}), doctest::Contains("expected f32[2]"), UserError);
  CHECK_THROWS_WITH_AS(run(graph, {}), doctest::Contains("inputs for 0 ranks"), UserError);
}

}  // namespace
}  // namespace sfsdp::ir::interp::interpreter_test
