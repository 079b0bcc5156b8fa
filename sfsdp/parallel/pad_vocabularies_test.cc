// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/pad_vocabularies.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/cut_over_tp.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"
#include "sfsdp/testing/same_meaning.h"

namespace sfsdp::parallel::pad_vocabularies_test {
namespace {

std::string with(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// A table, a head with a bias and the loss of V classes, and what autograd makes of them: no token 2 is learnt, no target 1 counts.
std::string words(int64_t classes) {
  return with(R"(
  graph mesh [] view global
    %w = param name=tok.weight : f32[V, 6] at tok.weight
    %o = param name=head.weight : f32[V, 6] at head.weight
    %b = param name=head.bias : f32[V] at head.bias
    %ids = input name=ids : i64[2, 3]
    %t = input name=t : i64[6]
  fwd:
    %e = embedding %w, %ids padding_idx=2 : f32[2, 3, 6] at tok
    %h = aten.mul.Tensor %e, %e : f32[2, 3, 6]
    %y = linear %h, %o, %b : f32[2, 3, V] at head
    %x = aten.view %y size=[6, V] : f32[6, V]
  loss:
    %loss, %n, %lse = cross_entropy %x, %t ignore_index=1 : f32[], f32[], f32[6]
  bwd:
    %one = full value=1.0 : f32[]
    %dx = cross_entropy_backward %one, %x, %t, %n, %lse ignore_index=1 bwd_of=%loss : f32[6, V]
    %dy = aten.view %dx size=[2, 3, V] : f32[2, 3, V]
    %db = aten.sum.dim_IntList %dy dim=[0, 1] : f32[V] at head
    %do = linear_dw %dy, %h bwd_of=%y : f32[V, 6] at head
    %dh = linear_dx %dy, %o bwd_of=%y : f32[2, 3, 6] at head
    %d2 = aten.mul.Scalar %dh other=2.0 : f32[2, 3, 6]
    %de = aten.mul.Tensor %d2, %e : f32[2, 3, 6]
    %dw = embedding_backward %de, %ids num_weights=V padding_idx=2 bwd_of=%e : f32[V, 6] at tok
    %w.grad = gradient %dw param=tok.weight : f32[V, 6]
    %o.grad = gradient %do param=head.weight : f32[V, 6]
    %b.grad = gradient %db param=head.bias : f32[V]
    return %loss
    carry %w = %w.grad
    carry %o = %o.grad
    carry %b = %b.grad
)",
              "V", std::to_string(classes));
}

// The head reads the table itself, and both gradients are added.
std::string tied(int64_t classes) {
  std::string text = words(classes);
  const std::string v = std::to_string(classes);
  text = with(text, "    %o = param name=head.weight : f32[" + v + ", 6] at head.weight\n", "");
  text = with(text, "    %b = param name=head.bias : f32[" + v + "] at head.bias\n", "");
  text = with(text, "    %b.grad = gradient %db param=head.bias : f32[" + v + "]\n", "");
  text = with(text, "    %o.grad = gradient %do param=head.weight : f32[" + v + ", 6]\n", "");
  text = with(text, "    carry %o = %o.grad\n    carry %b = %b.grad\n", "");
  text = with(text, "linear %h, %o, %b", "linear %h, %w");
  text = with(text, "linear_dx %dy, %o", "linear_dx %dy, %w");
  return with(text, "    %w.grad = gradient %dw",
              "    %both = aten.add.Tensor %do, %dw : f32[" + v + ", 6]\n    %w.grad = gradient %both");
}

const TensorParallel kRows = tensor_parallel({{"tok|head", Shard(0)}}), kTied = tensor_parallel({{"tok", Shard(0)}});

TEST_CASE(
    "a vocabulary that the ranks do not divide: each has as many rows, and the attributes say how many there are") {
  CHECK(ir::print(testing::cut_over_tp(words(5), kRows, 2)) == testing::dedent(R"(
    graph mesh [tp=2] view local
      %w = param name=tok.weight vocabulary=5 : f32[3/tp, 6] at tok.weight
      %o = param name=head.weight vocabulary=5 : f32[3/tp, 6] at head.weight
      %b = param name=head.bias vocabulary=5 : f32[3/tp] at head.bias
      %ids = input name=ids : i64[2, 3]
      %t = input name=t : i64[6]
    fwd:
      %e = embedding %w, %ids axis=tp num_weights=5 padding_idx=2 : f32[2, 3, 6] sum(tp) at tok
      %e.sum = all_reduce %e axis=tp : f32[2, 3, 6] at tok
      %h = aten.mul.Tensor %e.sum, %e.sum : f32[2, 3, 6]
      %y = linear %h, %o, %b : f32[2, 3, 3/tp] at head
      %x = aten.view %y size=[6, 3] : f32[6, 3/tp]
    loss:
      %loss.parts = cross_entropy_parts %x, %t axis=tp classes=5 ignore_index=1 : f32[3/tp, 6]
      %loss.parts.whole = all_gather %loss.parts axis=tp dim=0 : f32[6, 6]
      %loss, %n, %lse = cross_entropy_of_parts %loss.parts.whole, %t ignore_index=1 : f32[], f32[], f32[6]
    bwd:
      %one = full value=1.0 : f32[]
      %dx = cross_entropy_backward %one, %x, %t, %n, %lse axis=tp classes=5 ignore_index=1 bwd_of=%loss : f32[6, 3/tp]
      %dy = aten.view %dx size=[2, 3, 3] : f32[2, 3, 3/tp]
      %db = aten.sum.dim_IntList %dy dim=[0, 1] : f32[3/tp] at head
      %do = linear_dw %dy, %h bwd_of=%y : f32[3/tp, 6] at head
      %dh = linear_dx %dy, %o bwd_of=%y : f32[2, 3, 6] sum(tp) at head
      %dh.sum = all_reduce %dh axis=tp : f32[2, 3, 6] at head
      %d2 = aten.mul.Scalar %dh.sum other=2.0 : f32[2, 3, 6]
      %de = aten.mul.Tensor %d2, %e.sum : f32[2, 3, 6]
      %dw = embedding_backward %de, %ids axis=tp num_weights=5 padding_idx=2 bwd_of=%e : f32[3/tp, 6] at tok
      %w.grad = gradient %dw param=tok.weight : f32[3/tp, 6]
      %o.grad = gradient %do param=head.weight : f32[3/tp, 6]
      %b.grad = gradient %db param=head.bias : f32[3/tp]
      return %loss
      carry %w = %w.grad
      carry %o = %o.grad
      carry %b = %b.grad
  )"));
}

// Carried gradients are compared row by row, and those of padding with 0. 5 rows over 4 ranks are 2, 2, 1 and none.
TEST_CASE(
    "on ranks that do not divide it a vocabulary means what it does on one, tied or not, to the last rank without "
    "rows") {
  const TensorParallel by_sequence = tensor_parallel(kRows.rules, {.sequence_parallel = true});
  for (const int64_t classes : {5, 7, 9})
    for (const int64_t ranks : {2, 3, 4}) {
      CAPTURE(classes);
      CAPTURE(ranks);
      const std::string apart = words(classes), shared = tied(classes);
      testing::expect_same_meaning(apart, testing::cut_over_tp(apart, kRows, ranks), ranks);
      testing::expect_same_meaning(shared, testing::cut_over_tp(shared, kTied, ranks), ranks);
      for (const char* only : {"tok", "head"})
        testing::expect_same_meaning(apart, testing::cut_over_tp(apart, tensor_parallel({{only, Shard(0)}}), ranks),
                                     ranks);
      if (ranks == 2 || ranks == 3)
        testing::expect_same_meaning(apart, testing::cut_over_tp(apart, by_sequence, ranks), ranks);
      for (const char* reduction : {"ignore_index=1 reduction=2", "ignore_index=0"}) {
        const std::string other = with(apart, "ignore_index=1", reduction);
        testing::expect_same_meaning(other, testing::cut_over_tp(other, kRows, ranks), ranks);
      }
    }
}

// The head is frozen and has an adapter, %down and %up: no rule names its rows, which are those of the head.
std::string adapted(int64_t classes) {
  const std::string v = std::to_string(classes);
  std::string text = words(classes);
  text = with(text, "    %ids = input",
              "    %down = param name=head.lora_A.weight : f32[2, 6] at head.lora_A.weight\n    %up = param "
              "name=head.lora_B.weight : f32[" +
                  v + ", 2] at head.lora_B.weight\n    %ids = input");
  text = with(
      text, "    %y = linear %h, %o, %b : f32[2, 3, " + v + "] at head\n",
      "    %y0 = linear %h, %o, %b : f32[2, 3, " + v + "] at head\n    %a = linear %h, %down : f32[2, 3, 2] at head\n" +
          "    %l = linear %a, %up : f32[2, 3, " + v + "] at head\n    %s = aten.mul.Scalar %l other=0.5 : f32[2, 3, " +
          v + "] at head\n    %y = aten.add.Tensor %y0, %s : f32[2, 3, " + v + "] at head\n");
  const size_t from = text.find("    %db ="), to = text.find("    %d2 =");
  text.replace(
      from, to - from,
      "    %ds = aten.mul.Scalar %dy other=0.5 : f32[2, 3, " + v +
          "] at head\n    %dup = linear_dw %ds, %a "
          "bwd_of=%l : f32[" +
          v +
          ", 2] at head\n    %da = linear_dx %ds, %up bwd_of=%l : f32[2, 3, 2] at head\n"
          "    %ddown = linear_dw %da, %h bwd_of=%a : f32[2, 6] at head\n    %dh1 = linear_dx %da, %down bwd_of=%a : "
          "f32[2, 3, 6] at head\n    %dh0 = linear_dx %dy, %o bwd_of=%y0 : f32[2, 3, 6] at head\n    %dh = "
          "aten.add.Tensor %dh0, %dh1 : f32[2, 3, 6] at head\n");
  text = with(text, "    %o.grad = gradient %do param=head.weight : f32[" + v + ", 6]\n",
              "    %down.grad = gradient %ddown param=head.lora_A.weight : f32[2, 6]\n");
  text = with(text, "    %b.grad = gradient %db param=head.bias : f32[" + v + "]\n",
              "    %up.grad = gradient %dup param=head.lora_B.weight : f32[" + v + ", 2]\n");
  return with(text, "    carry %o = %o.grad\n    carry %b = %b.grad\n",
              "    carry %down = %down.grad\n    carry %up = %up.grad\n");
}

TEST_CASE("a frozen head with an adapter is padded, and the adapter's rows and the bias with it, whatever rules name") {
  for (const int64_t ranks : {2, 3, 4})
    for (const char* rule : {"tok|head", "head.weight"}) {
      CAPTURE(ranks);
      CAPTURE(rule);
      const std::string text = adapted(5);
      const ir::Graph graph = testing::cut_over_tp(text, tensor_parallel({{rule, Shard(0)}}), ranks);
      CHECK(plan::verify_layouts(graph) == "");
      for (const char* name : {"head.weight", "head.bias", "head.lora_B.weight"}) {
        const ir::Op* param = graph.find_param(name);
        CHECK(param->attr<int64_t>("vocabulary") == 5);
        CHECK(param->result()->type().dims[0].split == std::vector<std::string>{"tp"});
      }
      CHECK_FALSE(graph.find_param("head.lora_A.weight")->has_attr("vocabulary"));
      testing::expect_same_meaning(text, graph, ranks);
    }
  // Where the ranks divide it the adapter is whole, as before.
  const ir::Graph even = testing::cut_over_tp(adapted(6), kRows, 2);
  CHECK(even.find_param("head.lora_B.weight")->result()->type().dims[0].split.empty());
}

TEST_CASE("capped logits of a tied table are padded: their gradients are 0 where they are") {
  std::string text = tied(5);
  text = with(text, "    %x = aten.view %y", "    %s = aten.tanh %y : f32[2, 3, 5] at head\n    %x = aten.view %s");
  text = with(text, "    %dy = aten.view %dx size=[2, 3, 5] : f32[2, 3, 5]\n",
              "    %ds = aten.view %dx size=[2, 3, 5] : f32[2, 3, 5]\n"
              "    %dy = aten.tanh_backward %ds, %s bwd_of=%s : f32[2, 3, 5] at head\n");
  for (const int64_t ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const ir::Graph graph = testing::cut_over_tp(text, kRows, ranks);
    CHECK(plan::verify_layouts(graph) == "");
  }
}

TEST_CASE("a vocabulary of fewer words than ranks means what it does on one") {
  for (const int64_t ranks : {5, 6}) {
    CAPTURE(ranks);
    const std::string apart = words(4), shared = tied(4);
    testing::expect_same_meaning(apart, testing::cut_over_tp(apart, kRows, ranks), ranks);
    testing::expect_same_meaning(shared, testing::cut_over_tp(shared, kTied, ranks), ranks);
  }
}

void expect_refused(const std::string& text, const TensorParallel& rules, const char* what) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  graph.mesh = {{"tp", 2}};
  graph.view = ir::Graph::View::Local;
  CHECK_THROWS_WITH_AS(partition(graph, {"tp", 2}, separate_blocks(graph, find_cuts(graph, rules, 2)), rules.options),
                       doctest::Contains(what), UserError);
}

TEST_CASE("what would see padding is refused by name, with the cure") {
  expect_refused(
      words(5), tensor_parallel(kRows.rules, {.loss_parallel = false}),
      "of a vocabulary of 5 that tp = 2 does not divide, are gathered for the loss\n  expected loss_parallel, or a "
      "vocabulary of 6");
  const std::string line = "    %x = aten.view %y size=[6, 5] : f32[6, 5]\n";
  const auto read_by = [&](const std::string& op) { return with(words(5), line, op + line); };
  expect_refused(read_by("    %z = aten.logsumexp %y dim=[2] keepdim=false : f32[2, 3] at head\n"), kRows,
                 "tensor_parallel: aten.logsumexp at head reads %y, of a vocabulary of 5 that tp = 2 does not divide\n"
                 "  expected lookups, products and a loss in parts to read it; or a vocabulary of 6");
  expect_refused(with(words(5), "return %loss", "return %loss, %y"), kRows, "of a vocabulary of 5");
  // Whether the gradient of these is 0 where they are padded, no rule says.
  expect_refused(
      with(words(5), "    %x = aten.view %y", "    %s = aten.relu %y : f32[2, 3, 5] at head\n    %x = aten.view %s"),
      tensor_parallel({{"head", Shard(0)}}), "the nearest below is tp = 1");
  expect_refused(words(5), tensor_parallel({{"tok|head", Shard(0)}}, {.constraints = {constrain("head", Replicate())}}),
                 "as a whole, of a vocabulary that tp does not divide");
  // No vocabulary: as before.
  expect_refused(words(5), tensor_parallel({{"head.weight", Shard(1)}, {"tok", Shard(1)}, {"head.bias", Shard(0)}}),
                 "of a vocabulary of 5");
}

TEST_CASE(
    "verify_layouts: padding that is looked up, counted, added up, gathered or carried on is found, with the op") {
  testing::expect_refused(testing::dedent(ir::print(testing::cut_over_tp(words(5), kRows, 2))),
                          {
                              {"padded classes are counted", "axis=tp classes=5 ignore_index=1 : f32[3/tp, 6]",
                               "axis=tp ignore_index=1 : f32[3/tp, 6]", "classes are 6, and 5 are there, 1 of padding"},
                              {"padded classes have a gradient", "%n, %lse axis=tp classes=5 ignore_index=1",
                               "%n, %lse axis=tp ignore_index=1", "classes are 6, and 5 are there, 1 of padding"},
                              {"one class too many", "axis=tp classes=5 ignore_index=1 : f32[3/tp, 6]",
                               "axis=tp classes=6 ignore_index=1 : f32[3/tp, 6]", "classes are 6, and 5 are there"},
                              {"an id of padding is looked up", "%w, %ids axis=tp num_weights=5 padding_idx=2",
                               "%w, %ids axis=tp padding_idx=2", "num_weights are 6, and 5 are there"},
                              {"a table without padding, said to have some", "name=tok.weight vocabulary=5",
                               "name=tok.weight", "num_weights are 5, and 6 are there"},
                              {"a gradient of padding is not 0", "%w.grad = gradient %dw",
                               "%one.more = aten.add.Scalar %dw other=1.0 : "
                               "f32[3/tp, 6]\n  %w.grad = gradient %one.more",
                               "the padding of a gradient is not 0"},
                              {"probabilities of padding are added up", "%x = aten.view %y size=[6, 3] : f32[6, 3/tp]",
                               "%p = aten.exp %y : f32[2, 3, 3/tp]\n  %z = aten.sum.dim_IntList %p dim=[2] : f32[2, 3] "
                               "sum(tp)\n  %x = aten.view "
                               "%y size=[6, 3] : f32[6, 3/tp]",
                               "padding is added up that is not 0"},
                          });
}

}  // namespace
}  // namespace sfsdp::parallel::pad_vocabularies_test
