// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/partition.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/parallel/sequence_cuts.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/cut_over_tp.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/same_meaning.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::parallel::partition_test {
namespace {

using testing::kSentences;

// y = w2(w1(x)²), the sum of its squares, and what autograd makes of it.
constexpr const char* kMlp = R"(
  graph mesh [] view global
    %w1 = param name=mlp.w1.weight : f32[8, 4] at mlp.w1.weight
    %b1 = param name=mlp.w1.bias : f32[8] at mlp.w1.bias
    %w2 = param name=mlp.w2.weight : f32[4, 8] at mlp.w2.weight
    %b2 = param name=mlp.w2.bias : f32[4] at mlp.w2.bias
    %x = input name=x : f32[2, 3, 4]
  fwd:
    %h = linear %x, %w1, %b1 : f32[2, 3, 8] at mlp.w1
    %r = aten.mul.Tensor %h, %h : f32[2, 3, 8] at mlp
    %y = linear %r, %w2, %b2 : f32[2, 3, 4] at mlp.w2
  loss:
    %squares = aten.mul.Tensor %y, %y : f32[2, 3, 4]
    %loss = aten.sum %squares : f32[]
  bwd:
    %g = aten.mul.Scalar %y other=2.0 : f32[2, 3, 4]
    %db2 = aten.sum.dim_IntList %g dim=[0, 1] : f32[4] at mlp.w2
    %dr = linear_dx %g, %w2 bwd_of=%y : f32[2, 3, 8] at mlp.w2
    %dw2 = linear_dw %g, %r bwd_of=%y : f32[4, 8] at mlp.w2
    %d2 = aten.mul.Scalar %dr other=2.0 : f32[2, 3, 8] at mlp
    %dh = aten.mul.Tensor %d2, %h : f32[2, 3, 8] at mlp
    %db1 = aten.sum.dim_IntList %dh dim=[0, 1] : f32[8] at mlp.w1
    %dw1 = linear_dw %dh, %x bwd_of=%h : f32[8, 4] at mlp.w1
    %dx = linear_dx %dh, %w1 bwd_of=%h : f32[2, 3, 4] at mlp.w1
    %w1.grad = gradient %dw1 param=mlp.w1.weight : f32[8, 4]
    %b1.grad = gradient %db1 param=mlp.w1.bias : f32[8]
    %w2.grad = gradient %dw2 param=mlp.w2.weight : f32[4, 8]
    %b2.grad = gradient %db2 param=mlp.w2.bias : f32[4]
    return %loss, %dx
    carry %w1 = %w1.grad
    carry %b1 = %b1.grad
    carry %w2 = %w2.grad
    carry %b2 = %b2.grad
)";

const TensorParallel kRules = tensor_parallel({{"*.w1", Shard(0)}, {"*.w2", Shard(1)}});

TEST_CASE("partition: an MLP needs one sum forward, and one backward for what it hands on") {
  CHECK(ir::print(testing::cut_over_tp(kMlp, kRules, 2)) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w1 = param name=mlp.w1.weight : f32[4/tp, 4] at mlp.w1.weight
      %b1 = param name=mlp.w1.bias : f32[4/tp] at mlp.w1.bias
      %w2 = param name=mlp.w2.weight : f32[4, 4/tp] at mlp.w2.weight
      %b2 = param name=mlp.w2.bias : f32[4] at mlp.w2.bias
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %h = linear %x, %w1, %b1 : f32[2, 3, 4/tp] at mlp.w1
      %r = aten.mul.Tensor %h, %h : f32[2, 3, 4/tp] at mlp
      %y.product = linear %r, %w2 : f32[2, 3, 4] sum(tp) at mlp.w2
      %y.product.sum = all_reduce %y.product axis=tp : f32[2, 3, 4] at mlp.w2
      %y = aten.add.Tensor %y.product.sum, %b2 : f32[2, 3, 4] at mlp.w2
    loss:
      %squares = aten.mul.Tensor %y, %y : f32[2, 3, 4]
      %loss = aten.sum %squares : f32[]
    bwd:
      %g = aten.mul.Scalar %y other=2.0 : f32[2, 3, 4]
      %db2 = aten.sum.dim_IntList %g dim=[0, 1] : f32[4] at mlp.w2
      %dr = linear_dx %g, %w2 bwd_of=%y.product : f32[2, 3, 4/tp] at mlp.w2
      %dw2 = linear_dw %g, %r bwd_of=%y.product : f32[4, 4/tp] at mlp.w2
      %d2 = aten.mul.Scalar %dr other=2.0 : f32[2, 3, 4/tp] at mlp
      %dh = aten.mul.Tensor %d2, %h : f32[2, 3, 4/tp] at mlp
      %db1 = aten.sum.dim_IntList %dh dim=[0, 1] : f32[4/tp] at mlp.w1
      %dw1 = linear_dw %dh, %x bwd_of=%h : f32[4/tp, 4] at mlp.w1
      %dx = linear_dx %dh, %w1 bwd_of=%h : f32[2, 3, 4] sum(tp) at mlp.w1
      %dx.sum = all_reduce %dx axis=tp : f32[2, 3, 4] at mlp.w1
      %w1.grad = gradient %dw1 param=mlp.w1.weight : f32[4/tp, 4]
      %b1.grad = gradient %db1 param=mlp.w1.bias : f32[4/tp]
      %w2.grad = gradient %dw2 param=mlp.w2.weight : f32[4, 4/tp]
      %b2.grad = gradient %db2 param=mlp.w2.bias : f32[4]
      return %loss, %dx.sum
      carry %w1 = %w1.grad
      carry %b1 = %b1.grad
      carry %w2 = %w2.grad
      carry %b2 = %b2.grad
  )"));
}

void expect_refused(const std::string& text, const TensorParallel& rules, const char* what) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"tp", 2}};
  graph.view = ir::Graph::View::Local;
  CHECK_THROWS_WITH_AS(partition(graph, {"tp", 2}, separate_blocks(graph, find_cuts(graph, rules, 2))),
                       doctest::Contains(what), UserError);
}

TEST_CASE("partition: a group norm is told how many samples a rank has") {
  const ir::Graph graph = testing::cut_over_tp(R"(
    graph mesh [] view global
      %w = param name=w.weight : f32[8, 4] at w.weight
      %x = input name=x : f32[6, 4]
    fwd:
      %h = linear %x, %w : f32[6, 8] at w
      %t = aten.t %h : f32[8, 6]{1, 8} at w
      %c = aten.clone %t memory_format=0 : f32[8, 6] at w
      %n, %mean, %rstd = aten.native_group_norm %c, none, none N=8 C=6 HxW=1 group=2 eps=1e-05 : f32[8, 6], f32[8, 2], f32[8, 2] at norm
      %y = aten.sum %n : f32[] at norm
      return %y
  )",
                                               tensor_parallel({{"w", Shard(0)}}), 2);
  const ir::Op& norm = *graph.find_value("n")->producer();
  CHECK(norm.attr<int64_t>("N") == 4);
  CHECK(norm.result(1)->type().shape() == std::vector<int64_t>{4, 2});
  for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
}

TEST_CASE("partition: an op of which nothing says how it may be cut is refused with its module and the cure") {
  std::string text = kMlp;
  const std::string square = "%r = aten.mul.Tensor %h, %h : f32[2, 3, 8] at mlp\n";
  text.replace(text.find(square), square.size(), "%r = aten.own_act %h : f32[2, 3, 8] at mlp\n");
  expect_refused(
      text, kRules,
      "tensor_parallel: aten.own_act at mlp reads %h, which is cut in dimension 2 over tp, and nothing says how "
      "this op may be cut\n  expected an access map in its row of sfsdp/ir/atenset.def, or no rule for the "
      "weights of mlp");
}

// Softmax reads whole rows, tril knows its place. One gather does for both: the other softmax, along the dimension that is not cut, could
// have computed a rank's part, and would have had it gathered for tril.
TEST_CASE("partition: what must be whole is gathered before it") {
  const ir::Graph graph = testing::cut_over_tp(R"(
    graph mesh [] view global
      %w = param name=w.weight : f32[8, 4] at w.weight
      %x = input name=x : f32[6, 4]
    fwd:
      %h = linear %x, %w : f32[6, 8] at w
      %s = aten._softmax %h dim=1 half_to_float=false : f32[6, 8] at act
      %t = aten._softmax %h dim=0 half_to_float=false : f32[6, 8] at act
      %l = aten.tril %t : f32[6, 8] at act
      %y = aten.add.Tensor %s, %l : f32[6, 8]
      return %y
  )",
                                               tensor_parallel({{"w", Shard(0)}}), 2);
  CHECK(ir::print(graph) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w = param name=w.weight : f32[4/tp, 4] at w.weight
      %x = input name=x : f32[6, 4]
    fwd:
      %h = linear %x, %w : f32[6, 4/tp] at w
      %h.parts = aten.view %h size=[6, 1, 4] : f32[6, 1/tp, 4] at w
      %h.front = aten.permute %h.parts dims=[1, 0, 2] : f32[1/tp, 6, 4] at w
      %h.all = all_gather %h.front axis=tp dim=0 : f32[2, 6, 4] at w
      %h.back = aten.permute %h.all dims=[1, 0, 2] : f32[6, 2, 4]{4, 24, 1} at w
      %h.dense = aten.clone %h.back memory_format=0 : f32[6, 2, 4] at w
      %h.whole = aten.view %h.dense size=[6, 8] : f32[6, 8] at w
      %s = aten._softmax %h.whole dim=1 half_to_float=false : f32[6, 8] at act
      %t = aten._softmax %h.whole dim=0 half_to_float=false : f32[6, 8] at act
      %l = aten.tril %t : f32[6, 8] at act
      %y = aten.add.Tensor %s, %l : f32[6, 8]
      return %y
  )"));
}

// Views of a cut dimension: it may be joined with others, or taken apart, and moves with the others. Joined with what stands before it,
// it is cut in blocks.
TEST_CASE("partition: heads are cut out of a width, and joined to one again") {
  const ir::Graph graph = testing::cut_over_tp(R"(
    graph mesh [] view global
      %w = param name=w.weight : f32[24, 4] at w.weight
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %h = linear %x, %w : f32[2, 3, 24] at w
      %a = aten.view %h size=[2, 3, 4, 6] : f32[2, 3, 4, 6]
      %b = aten.transpose.int %a dim0=1 dim1=2 : f32[2, 4, 3, 6]{72, 6, 24, 1}
      %c = aten.clone %b memory_format=0 : f32[2, 4, 3, 6]
      %d = aten.view %c size=[8, 18] : f32[8, 18]
      %g = linear %x, %w : f32[2, 3, 24] at w
      %e = aten.view %g size=[2, 3, 4, 6] : f32[2, 3, 4, 6]
      %f = aten.transpose.int %e dim0=1 dim1=2 : f32[2, 4, 3, 6]{72, 6, 24, 1}
      %n = aten.neg %f : f32[2, 4, 3, 6]{72, 6, 24, 1}
      return %d, %n
  )",
                                               tensor_parallel({{"w", Shard(0)}}), 2);
  CHECK(ir::print(graph) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w = param name=w.weight : f32[12/tp, 4] at w.weight
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %h = linear %x, %w : f32[2, 3, 12/tp] at w
      %a = aten.view %h size=[2, 3, 2, 6] : f32[2, 3, 2/tp, 6]
      %b = aten.transpose.int %a dim0=1 dim1=2 : f32[2, 2/tp, 3, 6]{36, 6, 12, 1}
      %c = aten.clone %b memory_format=0 : f32[2, 2/tp, 3, 6]
      %d = aten.view %c size=[4, 18] : f32[4/tp:2, 18]
      %d.blocks = aten.view %d size=[2, 2, 18] : f32[2, 2/tp, 18]
      %d.blocks.parts = aten.view %d.blocks size=[2, 1, 2, 18] : f32[2, 1/tp, 2, 18]
      %d.blocks.front = aten.permute %d.blocks.parts dims=[1, 0, 2, 3] : f32[1/tp, 2, 2, 18]
      %d.blocks.all = all_gather %d.blocks.front axis=tp dim=0 : f32[2, 2, 2, 18]
      %d.blocks.back = aten.permute %d.blocks.all dims=[1, 0, 2, 3] : f32[2, 2, 2, 18]{36, 72, 18, 1}
      %d.blocks.dense = aten.clone %d.blocks.back memory_format=0 : f32[2, 2, 2, 18]
      %d.blocks.whole = aten.view %d.blocks.dense size=[2, 4, 18] : f32[2, 4, 18]
      %d.blocks.whole.whole = aten.view %d.blocks.whole size=[8, 18] : f32[8, 18]
      %g = linear %x, %w : f32[2, 3, 12/tp] at w
      %e = aten.view %g size=[2, 3, 2, 6] : f32[2, 3, 2/tp, 6]
      %f = aten.transpose.int %e dim0=1 dim1=2 : f32[2, 2/tp, 3, 6]{36, 6, 12, 1}
      %n = aten.neg %f : f32[2, 2/tp, 3, 6]{36, 6, 12, 1}
      %n.flat = aten.permute %n dims=[0, 2, 1, 3] : f32[2, 3, 2/tp, 6]
      %n.flat.parts = aten.view %n.flat size=[2, 3, 1, 2, 6] : f32[2, 3, 1/tp, 2, 6]
      %n.flat.front = aten.permute %n.flat.parts dims=[2, 0, 1, 3, 4] : f32[1/tp, 2, 3, 2, 6]
      %n.flat.all = all_gather %n.flat.front axis=tp dim=0 : f32[2, 2, 3, 2, 6]
      %n.flat.back = aten.permute %n.flat.all dims=[1, 2, 0, 3, 4] : f32[2, 3, 2, 2, 6]{36, 12, 72, 6, 1}
      %n.flat.dense = aten.clone %n.flat.back memory_format=0 : f32[2, 3, 2, 2, 6]
      %n.flat.whole = aten.view %n.flat.dense size=[2, 3, 4, 6] : f32[2, 3, 4, 6]
      %n.whole = aten.permute %n.flat.whole dims=[0, 2, 1, 3] : f32[2, 4, 3, 6]{72, 6, 24, 1}
      return %d.blocks.whole.whole, %n.whole
  )"));
}

// ---- the program of all ranks means what the whole one does

using testing::expect_same_meaning;

void expect_same_meaning(std::string_view text, const TensorParallel& rules, int64_t ranks) {
  expect_same_meaning(text, testing::cut_over_tp(text, rules, ranks), ranks);
}

TEST_CASE("partition: on 2 and 4 ranks an MLP means the same as on one, whatever is named") {
  for (const int64_t ranks : {2, 4}) {
    expect_same_meaning(kMlp, kRules, ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"*.w1", Shard(0)}}), ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"*.w2", Shard(1)}}), ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"*.w1|w2", Shard(0)}}), ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"*.w1|w2", Shard(1)}}), ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"mlp.w2", Shard(0)}, {"mlp.w1.weight", Shard(1)}}), ranks);
    expect_same_meaning(kMlp, tensor_parallel({{"*.bias", Shard(0)}}), ranks);
  }
}

// ---- vocabularies

// A table, a head and the loss, and what autograd makes of them: no token 2 is learnt, no target 1 counts.
const std::string kWords = R"(
  graph mesh [] view global
    %w = param name=tok.weight : f32[4, 6] at tok.weight
    %o = param name=head.weight : f32[4, 6] at head.weight
    %ids = input name=ids : i64[2, 3]
    %t = input name=t : i64[6]
  fwd:
    %e = embedding %w, %ids padding_idx=2 : f32[2, 3, 6] at tok
    %h = aten.mul.Tensor %e, %e : f32[2, 3, 6]
    %y = linear %h, %o : f32[2, 3, 4] at head
    %x = aten.view %y size=[6, 4] : f32[6, 4]
  loss:
    %loss, %n, %lse = cross_entropy %x, %t ignore_index=1 : f32[], f32[], f32[6]
  bwd:
    %one = full value=1.0 : f32[]
    %dx = cross_entropy_backward %one, %x, %t, %n, %lse ignore_index=1 bwd_of=%loss : f32[6, 4]
    %dy = aten.view %dx size=[2, 3, 4] : f32[2, 3, 4]
    %do = linear_dw %dy, %h bwd_of=%y : f32[4, 6] at head
    %dh = linear_dx %dy, %o bwd_of=%y : f32[2, 3, 6] at head
    %d2 = aten.mul.Scalar %dh other=2.0 : f32[2, 3, 6]
    %de = aten.mul.Tensor %d2, %e : f32[2, 3, 6]
    %dw = embedding_backward %de, %ids num_weights=4 padding_idx=2 bwd_of=%e : f32[4, 6] at tok
    %w.grad = gradient %dw param=tok.weight : f32[4, 6]
    %o.grad = gradient %do param=head.weight : f32[4, 6]
    return %loss
    carry %w = %w.grad
    carry %o = %o.grad
)";

const TensorParallel kRowsOfWords = tensor_parallel({{"tok|head", Shard(0)}});

TEST_CASE(
    "partition: a vocabulary in parts needs one sum of what is looked up, and three numbers a token for the loss") {
  CHECK(ir::print(testing::cut_over_tp(kWords, kRowsOfWords, 2)) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w = param name=tok.weight : f32[2/tp, 6] at tok.weight
      %o = param name=head.weight : f32[2/tp, 6] at head.weight
      %ids = input name=ids : i64[2, 3]
      %t = input name=t : i64[6]
    fwd:
      %e = embedding %w, %ids axis=tp padding_idx=2 : f32[2, 3, 6] sum(tp) at tok
      %e.sum = all_reduce %e axis=tp : f32[2, 3, 6] at tok
      %h = aten.mul.Tensor %e.sum, %e.sum : f32[2, 3, 6]
      %y = linear %h, %o : f32[2, 3, 2/tp] at head
      %x = aten.view %y size=[6, 2] : f32[6, 2/tp]
    loss:
      %loss.parts = cross_entropy_parts %x, %t axis=tp ignore_index=1 : f32[3/tp, 6]
      %loss.parts.whole = all_gather %loss.parts axis=tp dim=0 : f32[6, 6]
      %loss, %n, %lse = cross_entropy_of_parts %loss.parts.whole, %t ignore_index=1 : f32[], f32[], f32[6]
    bwd:
      %one = full value=1.0 : f32[]
      %dx = cross_entropy_backward %one, %x, %t, %n, %lse axis=tp ignore_index=1 bwd_of=%loss : f32[6, 2/tp]
      %dy = aten.view %dx size=[2, 3, 2] : f32[2, 3, 2/tp]
      %do = linear_dw %dy, %h bwd_of=%y : f32[2/tp, 6] at head
      %dh = linear_dx %dy, %o bwd_of=%y : f32[2, 3, 6] sum(tp) at head
      %dh.sum = all_reduce %dh axis=tp : f32[2, 3, 6] at head
      %d2 = aten.mul.Scalar %dh.sum other=2.0 : f32[2, 3, 6]
      %de = aten.mul.Tensor %d2, %e.sum : f32[2, 3, 6]
      %dw = embedding_backward %de, %ids axis=tp num_weights=4 padding_idx=2 bwd_of=%e : f32[2/tp, 6] at tok
      %w.grad = gradient %dw param=tok.weight : f32[2/tp, 6]
      %o.grad = gradient %do param=head.weight : f32[2/tp, 6]
      return %loss
      carry %w = %w.grad
      carry %o = %o.grad
  )"));
}

// Each rank makes its own rows of the gradient, of its columns of what the loss leaves: no sum over the axis, no whole one.
// %q is like %p for six ops around, but for its two operands, which are one summand: it cannot be left one, as %p's first is.
TEST_CASE("partition: what suits a product of two sums does not suit the square of one") {
  const ir::Graph graph = testing::cut_over_tp(R"(
    graph mesh [] view global
      %wa = param name=a.weight : f32[6, 8] at a.weight
      %wb = param name=b.weight : f32[6, 8] at b.weight
      %wc = param name=c.weight : f32[6, 8] at c.weight
      %x = input name=x : f32[16, 8]
      %u = input name=u : f32[16, 8]
      %v = input name=v : f32[16, 8]
    fwd:
      %y1 = linear %x, %wa : f32[16, 6] at a
      %y2 = linear %u, %wb : f32[16, 6] at b
      %p = aten.mul.Tensor %y1, %y2 : f32[16, 6]
      %s = aten.sum %p : f32[]
      %z = linear %v, %wc : f32[16, 6] at c
      %q = aten.mul.Tensor %z, %z : f32[16, 6]
      %t = aten.sum %q : f32[]
    loss:
      %loss = aten.add.Tensor %s, %t : f32[]
      return %loss
  )",
                                               tensor_parallel({{"a|b|c", Shard(1)}}), 2);
  CHECK(plan::verify_layouts(graph) == "");
}

// Over cp the joined rows of three samples lie in three blocks, of which two ranks of tp cannot have some each.
TEST_CASE("partition: rows whose blocks over cp do not fit the ranks of tp are refused by name") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [] view local
      %e = param name=emb : f32[10, 8] at emb
      %w = param name=w.weight : f32[8, 6] at w.weight
      %v = param name=v.weight : f32[6, 8] at v.weight
      %x = input name=x : i64[3, 8]
    fwd:
      %h = embedding %e, %x : f32[3, 8, 8] at emb
      %f = aten.view %h size=[24, 8] : f32[24, 8]
      %s = aten.stack [%f, %f, %f] dim=0 : f32[3, 24, 8]
      %a = linear %s, %v : f32[3, 24, 6] at v
      %y = linear %a, %w : f32[3, 24, 8] at w
      %g = aten.gelu %y : f32[3, 24, 8]
      %k = linear %g, %v : f32[3, 24, 6] at v
    loss:
      %loss = aten.sum %k : f32[]
      return %loss
  )"));
  const Strategy strategy = data_parallel(
      init_device_mesh({{"cp", 2}, {"tp", 2}}), {},
      tensor_parallel({{"v", Shard(0)}, {"w", Shard(1)}}, {.sequence_parallel = true}), {.load_balance = false});
  CHECK_THROWS_WITH_AS(
      apply_model_parallel(graph, strategy),
      doctest::Contains("whose 3 blocks over cp cannot lie in 2 ranges over tp\n  expected a number of "
                        "samples that tp = 2 divides, or no sequence parallelism"),
      UserError);
}

TEST_CASE("partition: where logits are gathered, each rank makes its part of the head's gradient alone") {
  const Constraint rows = constrain("head", Shard(0)), whole = constrain("head", Replicate());
  for (const TensorParallelOptions& options : {TensorParallelOptions{.loss_parallel = false},
                                               {.sequence_parallel = true, .loss_parallel = false},
                                               {.sequence_parallel = true, .constraints = {whole}},
                                               {.sequence_parallel = true, .constraints = {rows}}}) {
    const TensorParallel rules = tensor_parallel(kRowsOfWords.rules, options);
    const std::string got = ir::print(testing::cut_over_tp(kWords, rules, 2));
    CAPTURE(got);
    const std::string h = options.sequence_parallel ? "%h.whole" : "%h";
    CHECK(got.find(concat("%do = linear_dw %dy.part, ", h, " bwd_of=%y : f32[2/tp, 6] at head\n")) != got.npos);
    CHECK(got.find("%o.grad = gradient %do param=head.weight : f32[2/tp, 6]") != got.npos);
    expect_same_meaning(kWords, rules, 2);
  }
}

TEST_CASE("partition: on 2 and 4 ranks a vocabulary means the same as on one, whichever part of it is cut, and how") {
  std::string of_sum = kWords, each = kWords, half = kWords;
  const auto replace = [](std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  };
  replace(of_sum, "ignore_index=1", "ignore_index=1 reduction=2");
  replace(each, "ignore_index=1", "ignore_index=1 reduction=0");
  replace(each, "%one = full value=1.0 : f32[]", "%one = full value=1.0 : f32[6]");
  replace(each, "%loss, %n, %lse = cross_entropy %x, %t ignore_index=1 reduction=0 : f32[]",
          "%loss, %n, %lse = cross_entropy %x, %t ignore_index=1 reduction=0 : f32[6]");
  const TensorParallel gathered = tensor_parallel(kRowsOfWords.rules, {.loss_parallel = false}),
                       by_sequence = tensor_parallel(kRowsOfWords.rules, {.sequence_parallel = true});
  for (const std::string& text : {kWords, of_sum, each})
    for (const int64_t ranks : {2, 4}) {
      CAPTURE(ranks);
      for (const TensorParallel& rules :
           {kRowsOfWords, gathered, tensor_parallel({{"tok", Shard(0)}}), tensor_parallel({{"head", Shard(0)}})})
        expect_same_meaning(text, rules, ranks);
      if (ranks > 2) continue;  // 6 columns, 2 samples
      expect_same_meaning(text, by_sequence, ranks);
      expect_same_meaning(text, tensor_parallel({{"tok|head", Shard(1)}}), ranks);
    }
}

TEST_CASE("partition: logits in bfloat16 leave parts in float32; without loss_parallel they are gathered") {
  std::string text = kWords;
  const std::string loss = "%loss, %n, %lse = cross_entropy %x, %t ignore_index=1 : f32[], f32[], f32[6]",
                    x = "%x = aten.view %y size=[6, 4] : f32[6, 4]\n",
                    backward =
                        "%dx = cross_entropy_backward %one, %x, %t, %n, %lse ignore_index=1 bwd_of=%loss : f32[6, 4]";
  text.replace(text.find(backward), backward.size(),
               "%dx.h = cross_entropy_backward %one, %x, %t, %n, %lse ignore_index=1 in_dtype=true bwd_of=%loss : "
               "bf16[6, 4]\n    %dx = cast %dx.h : f32[6, 4]");
  text.replace(text.find("%one = full value=1.0 : f32[]"), 29, "%one = full value=1.0 : bf16[]");
  text.replace(text.find(loss), loss.size(),
               "%loss, %n, %lse = cross_entropy %x, %t ignore_index=1 in_dtype=true : bf16[], bf16[], bf16[6]");
  text.replace(text.find(x), x.size(),
               "%x.f = aten.view %y size=[6, 4] : f32[6, 4]\n    %x = cast %x.f : bf16[6, 4]\n");
  const std::string got = ir::print(testing::cut_over_tp(text, kRowsOfWords, 2));
  CHECK(got.find("%loss.parts = cross_entropy_parts %x, %t axis=tp ignore_index=1 : f32[3/tp, 6]") != got.npos);
  CHECK(got.find("ignore_index=1 : bf16[], bf16[], f32[6]") != got.npos);
  expect_same_meaning(text, kRowsOfWords, 2);
  const std::string whole =
      ir::print(testing::cut_over_tp(text, tensor_parallel(kRowsOfWords.rules, {.loss_parallel = false}), 2));
  CHECK(whole.find("cross_entropy_parts") == whole.npos);
  CHECK(whole.find("cross_entropy %x.whole, %t") != whole.npos);
}

// ---- sequences

// Gradients are left to data_parallel as summands; here each is added up where it is carried on.
ir::Graph cut_sequence(std::string_view text, const ContextParallelOptions& options, int64_t ranks, int64_t inner = 1) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"cp", ranks}};
  graph.view = ir::Graph::View::Local;
  partition(graph, {"cp", ranks}, {}, {}, &options, inner);
  for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
  CHECK(plan::verify_layouts(graph) == "");
  return graph;
}

void expect_same_of_tokens(std::string_view text, const ContextParallelOptions& options, int64_t ranks) {
  expect_same_meaning(text, cut_sequence(text, options, ranks), ranks);
}

TEST_CASE("partition: a sequence in parts sends keys and values alone, and gives what the whole one does") {
  for (const bool balanced : {false, true}) {
    const std::string got = ir::print(cut_sequence(kSentences, {.load_balance = balanced}, 2));
    CAPTURE(got);
    const auto count = [&](const std::string& what) {
      int64_t found = 0;
      for (size_t at = 0; (at = got.find(what, at)) != got.npos; ++at) ++found;
      return found;
    };
    CHECK(count("= all_gather ") == 2);      // k forward and, for pos, what is cut in its rows
    CHECK(count("= reduce_scatter ") == 1);  // of dk
    CHECK(count("= own_part ") == 3);        // ids, targets, pos
    CHECK(count("reorder ") == (balanced ? 6 : 0));
  }
  for (const int64_t ranks : {2, 4})
    for (const bool balanced : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(balanced);
      expect_same_of_tokens(kSentences, {.load_balance = balanced}, ranks);
    }
}

// The same with four heads, of one element each.
std::string sentences_of_four_heads() {
  std::string text = kSentences;
  const auto replace_all = [&](std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  };
  replace_all("[2, 8, 2, 2]", "[2, 8, 4, 1]");
  replace_all("[2, 2, 8, 2]{32, 2, 4, 1}", "[2, 4, 8, 1]{32, 1, 4, 1}");
  replace_all("[2, 2, 8]{16, 1, 2}", "[2, 4, 8]{32, 1, 4}");
  return text;
}

int64_t count_in(const std::string& text, std::string_view what) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++found;
  return found;
}

TEST_CASE("partition: attention over exchanged heads gathers no keys, and gives what the whole one does") {
  const std::string text = sentences_of_four_heads();
  for (const bool balanced : {false, true}) {
    const ContextParallelOptions options = {.load_balance = balanced, .rotate_method = RotateMethod::AllToAll};
    const std::string got = ir::print(cut_sequence(text, options, 2));
    CAPTURE(got);
    CHECK(count_in(got, "= all_to_all ") ==
          7);  // q, k and o forward; their gradients and that of v, which is k, backward
    CHECK(count_in(got, "= all_gather ") == 1);  // for pos, what is cut in its rows
    CHECK(count_in(got, "= reduce_scatter ") == 0);
    CHECK(count_in(got, "axis=cp balanced") == 0);
    for (const int64_t ranks : {2, 4}) {
      CAPTURE(ranks);
      expect_same_of_tokens(text, options, ranks);
    }
    for (const int64_t ranges : {1, 2}) {
      CAPTURE(ranges);
      const ir::Graph parts = cut_sequence(text, options, 2, ranges);
      CHECK((ir::print(parts).find("2/cp:2") == std::string::npos) == (ranges == 1));
      expect_same_meaning(text, parts, 2);
    }
  }
}

TEST_CASE("partition: by cost heads are exchanged where that sends less than keys and values do") {
  const std::string text = sentences_of_four_heads();
  const auto exchanges = [&](const std::string& of, int64_t ranks) {
    const ContextParallelOptions options = {.rotate_method = RotateMethod::Auto};
    const ir::Graph parts = cut_sequence(of, options, ranks);
    expect_same_meaning(of, parts, ranks);
    return count_in(ir::print(parts), "= all_to_all ");
  };
  CHECK(exchanges(text, 4) > 0);         // (q + k + o) / 4 < k, which is v too
  CHECK(exchanges(text, 2) == 0);        // (q + k + o) / 2 > k
  CHECK(exchanges(kSentences, 4) == 0);  // 2 heads
}

TEST_CASE("partition: heads that the ranks do not divide are refused by name, with the nearest degree that does") {
  const ContextParallelOptions options = {.load_balance = false, .rotate_method = RotateMethod::AllToAll};
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kSentences));
  graph.mesh = {{"cp", 4}};
  graph.view = ir::Graph::View::Local;
  CHECK_THROWS_WITH_AS(partition(graph, {"cp", 4}, {}, {}, &options),
                       doctest::Contains("has 2 heads of keys and values, of which cp = 4 ranks cannot have equal "
                                         "parts\n  expected cp = 2, or another ContextParallelOptions::rotate_method"),
                       UserError);
  // 4 heads have equal parts over 4 ranks, which 6 ranks do not come to and 12 do.
  const ir::Graph four = ir::parse_or_throw(testing::dedent(sentences_of_four_heads()));
  for (const auto& op : four.ops()) {
    if (!op->is("sdpa", "sdpa_backward")) continue;
    const auto expect = [&](const std::vector<MeshAxis>& mesh, int64_t inner, const char* degree) {
      CHECK_THROWS_WITH_AS(throw_no_heads(*op, mesh, {"cp", 6}, inner),
                           doctest::Contains(concat("expected cp = ", degree, ", or").c_str()), UserError);
    };
    expect({{"cp", 6}}, 1, "2");
    expect({{"dp_shard", 2}, {"cp", 6}}, 1, "4");
    expect({{"dp_shard", 2}, {"cp", 6}, {"tp", 2}}, 2, "2");
    expect({{"cp", 6}, {"tp", 4}}, 4, "1");
  }
}

}  // namespace
}  // namespace sfsdp::parallel::partition_test
