// SPDX-License-Identifier: BSD-3-Clause
// pipeline_products: what it takes apart, that it means the same, and that programs that are wrong in one place are refused.
#include "sfsdp/passes/overlap/pipeline_products.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/gathered_mlp.h"
#include "sfsdp/testing/interp/interpreter.h"

namespace sfsdp::passes::pipeline_products_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("pipeline_products: rows of other ranks are brought beside products, sums of rows sent beside them") {
  expect_pass("pipeline_products", R"(
    graph mesh [tp=3] view local
      %x = input name=x : f32[6, 4]
      %w1 = param name=w1 : f32[2/tp, 4]
      %w3 = param name=w3 : f32[2/tp, 4]
      %w2 = param name=w2 : f32[4, 2/tp]
    fwd:
      %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]
      %g = all_gather %n axis=tp dim=0 : f32[6, 4] at layers.0.norm
      %a = linear %g, %w1 : f32[6, 2/tp] at layers.0.w1
      %b = linear %g, %w3 : f32[6, 2/tp] at layers.0.w3
      %h = aten.mul.Tensor %a, %b : f32[6, 2/tp]
      %p = linear %h, %w2 : f32[6, 4] sum(tp) at layers.0.w2
      %o = reduce_scatter %p axis=tp dim=0 : f32[2/tp, 4] at layers.0.w2
      %y = all_gather %o axis=tp dim=0 : f32[6, 4]
    bwd:
      %dw1 = linear_dw %a, %g bwd_of=%a : f32[2/tp, 4]
      %dw1.all = all_gather %dw1 axis=tp dim=0 : f32[6, 4]
      return %y, %dw1.all
  )",
              R"(
    graph mesh [tp=3] view local
      %x = input name=x : f32[6, 4]
      %w1 = param name=w1 : f32[2/tp, 4]
      %w3 = param name=w3 : f32[2/tp, 4]
      %w2 = param name=w2 : f32[4, 2/tp]
    fwd:
      %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]
      %n.from1 = permute %n axis=tp shift=1 : f32[2/tp, 4] at layers.0.norm
      %a.of0 = linear %n, %w1 : f32[2, 2/tp] at layers.0.w1
      %b.of0 = linear %n, %w3 : f32[2, 2/tp] at layers.0.w3
      %n.from2 = permute %n axis=tp shift=2 : f32[2/tp, 4] at layers.0.norm
      %a.of1 = linear %n.from1, %w1 : f32[2, 2/tp] at layers.0.w1
      %b.of1 = linear %n.from1, %w3 : f32[2, 2/tp] at layers.0.w3
      %a.of2 = linear %n.from2, %w1 : f32[2, 2/tp] at layers.0.w1
      %b.of2 = linear %n.from2, %w3 : f32[2, 2/tp] at layers.0.w3
      %a = join_parts [%a.of0, %a.of1, %a.of2] axis=tp dim=0 : f32[6, 2/tp] at layers.0.w1
      %b = join_parts [%b.of0, %b.of1, %b.of2] axis=tp dim=0 : f32[6, 2/tp] at layers.0.w3
      %g = join_parts [%n, %n.from1, %n.from2] axis=tp dim=0 : f32[6, 4] at layers.0.norm
      %h = aten.mul.Tensor %a, %b : f32[6, 2/tp]
      %h.rows2 = own_part %h axis=tp dim=0 shift=2 : f32[2, 2/tp] at layers.0.w2
      %p.of2 = linear %h.rows2, %w2 : f32[2, 4] sum(tp) at layers.0.w2
      %p.of2.home1 = permute %p.of2 axis=tp shift=1 : f32[2/tp, 4] at layers.0.w2
      %h.rows1 = own_part %h axis=tp dim=0 shift=1 : f32[2, 2/tp] at layers.0.w2
      %p.of1 = linear %h.rows1, %w2 : f32[2, 4] sum(tp) at layers.0.w2
      %p.of1.home2 = permute %p.of1 axis=tp shift=2 : f32[2/tp, 4] at layers.0.w2
      %h.rows0 = own_part %h axis=tp dim=0 shift=0 : f32[2, 2/tp] at layers.0.w2
      %p.of0 = linear %h.rows0, %w2 : f32[2, 4] sum(tp) at layers.0.w2
      %o = add_parts [%p.of2.home1, %p.of1.home2, %p.of0] axis=tp : f32[2/tp, 4] at layers.0.w2
      %y = all_gather %o axis=tp dim=0 : f32[6, 4]
    bwd:
      %dw1 = linear_dw %a, %g bwd_of=%a : f32[2/tp, 4]
      %dw1.all = all_gather %dw1 axis=tp dim=0 : f32[6, 4]
      return %y, %dw1.all
  )");
}

ir::Graph after(const std::string& text, const std::string& calls) {
  ir::Graph graph = ir::parse_or_throw(text);
  run_passes(graph, parse_passes(calls));
  return graph;
}

// The largest difference of what any rank returns in exact arithmetic.
double difference(const ir::Graph& is, const ir::Graph& was) {
  const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
  const auto given = ir::interp::seeded_inputs(was, 7);
  const auto got = ir::interp::run(is, given, exact), expected = ir::interp::run(was, given, exact);
  double most = 0;
  for (size_t r = 0; r < got.ranks.size(); ++r)
    for (size_t k = 0; k < got.ranks[r].outputs.size(); ++k)
      most = std::max(most, ir::interp::largest_difference(got.ranks[r].outputs[k], expected.ranks[r].outputs[k]));
  return most;
}

TEST_CASE("pipeline_products: a block means on each rank what it meant, in float64, and lies as its types say") {
  for (const int64_t ranks : {2, 3, 4, 5}) {
    CAPTURE(ranks);
    const std::string text = testing::gathered_mlp(ranks);
    const ir::Graph was = ir::parse_or_throw(text);
    CHECK(plan::verify_layouts(was) == "");
    for (const char* calls : {"pipeline_products", "pipeline_products, split_collectives, cover_permutes",
                              "pipeline_products, remat mode=full, split_collectives, cover_permutes"}) {
      const ir::Graph is = after(text, calls);
      CHECK(ir::verify(is).empty());
      CHECK(plan::verify_layouts(is) == "");
      CHECK(difference(is, was) < 1e-11);
    }
  }
}

// All ranks compute all of that product, and of its parts each its own.
TEST_CASE("pipeline_products: a weight that is whole beside one that is cut") {
  const ir::Graph was = ir::parse_or_throw(R"(
    graph mesh [tp=2] view local
      %x = input name=x : f32[4, 4]
      %w = param name=w : f32[3/tp, 4]
      %v = param name=v : f32[5, 4]
    fwd:
      %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]
      %g = all_gather %n axis=tp dim=0 : f32[4, 4]
      %a = linear %g, %w : f32[4, 3/tp]
      %b = linear %g, %v : f32[4, 5]
      return %b
  )");
  ir::Graph is = was.clone();
  run_passes(is, parse_passes("pipeline_products"));
  CHECK(plan::verify_layouts(is) == "");
  CHECK(difference(is, was) < 1e-11);
}

struct Mutant {
  const char *what, *from, *to;
};

const std::vector<Mutant> kMutants = {
    {"rows of another rank", "permute %n axis=tp shift=1", "permute %n axis=tp shift=2"},
    {"a permute is skipped", "linear %n.from2, %w1", "linear %n, %w1"},
    {"rows of one rank twice", "linear %n.from2, %w1", "linear %n.from1, %w1"},
    {"joined in another order", "[%a.of0, %a.of1, %a.of2, %a.of3]", "[%a.of0, %a.of2, %a.of1, %a.of3]"},
    {"a part is joined twice", "[%a.of0, %a.of1, %a.of2, %a.of3]", "[%a.of0, %a.of1, %a.of2, %a.of2]"},
    {"rows joined in another order", "[%n, %n.from1, %n.from2, %n.from3]", "[%n.from1, %n, %n.from2, %n.from3]"},
    {"a part is sent to another owner", "permute %p.of2 axis=tp shift=2", "permute %p.of2 axis=tp shift=1"},
    {"another rank's rows are sent", "own_part %h axis=tp dim=0 shift=2", "own_part %h axis=tp dim=0 shift=1"},
    {"another dimension's rows", "%h.rows2 = own_part %h axis=tp dim=0 shift=2",
     "%h.rows2 = own_part %h axis=tp dim=0"},
    {"a part is left out", "add_parts [%p.of3.home1, %p.of2.home2, %p.of1.home3, %p.of0]",
     "add_parts [%p.of3.home1, %p.of2.home2, %p.of2.home2, %p.of0]"},
    {"a part is added in another's place", "add_parts [%p.of3.home1, %p.of2.home2, %p.of1.home3, %p.of0]",
     "add_parts [%p.of2.home2, %p.of3.home1, %p.of1.home3, %p.of0]"},
    {"the own part is another's", "add_parts [%p.of3.home1, %p.of2.home2, %p.of1.home3, %p.of0]",
     "add_parts [%p.of3.home1, %p.of2.home2, %p.of1.home3, %p.of1]"},
    {"a part stays where it was made", "add_parts [%p.of3.home1,", "add_parts [%p.of3,"},
    {"parts of two ranks are added before they are sent", "aten.add.Tensor %t1.of2, %t3.of2",
     "aten.add.Tensor %t1.of2, %t3.of3"},
    {"a part is added times two", "aten.add.Tensor %t1.of3, %t3.of3", "aten.add.Tensor %t1.of3, %t3.of3 alpha=2"},
    {"a part of another product is joined", "[%a.of0, %a.of1, %a.of2, %a.of3]", "[%a.of0, %a.of1, %b.of2, %a.of3]"},
    {"a part by another weight", "linear %n.from2, %w1", "linear %n.from2, %w3"},
    {"a part of another sum", "add_parts [%t.of3.home1, %t.of2.home2,", "add_parts [%t.of3.home1, %p.of2.home2,"},
    {"a part lacks a product", "aten.add.Tensor %t1.of2, %t3.of2", "aten.add.Tensor %t1.of2, %t1.of2"},
    {"rows of one rank are read as all", "%s = aten.silu %a",
     "%u = aten.relu %a.of0 : f32[2, 2, 3/tp]\n  %s = aten.silu %a"},
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, std::string(from));
  return text.replace(at, from.size(), to);
}

TEST_CASE("pipeline_products: what is wrong in one place is refused for how values lie") {
  const std::string text = ir::print(after(testing::gathered_mlp(4), "pipeline_products"));
  for (const Mutant& mutant : kMutants) {
    CAPTURE(mutant.what);
    const ir::Graph graph = ir::parse_or_throw(replaced(text, mutant.from, mutant.to));
    CHECK(ir::verify(graph).empty());
    CHECK(plan::verify_layouts(graph) != "");
  }
}

TEST_CASE("pipeline_products: sites that cannot be taken say why") {
  const auto refused = [](const std::string& ops) {
    const ir::Graph graph = ir::parse_or_throw(
        "graph mesh [tp=2] view local\n  %x = input name=x : f32[4, 4]\n  %w = param name=w : f32[4, 4]\nfwd:\n"
        "  %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]\n" +
        ops);
    std::string text;
    for (const ProductSite& site : find_product_sites(graph, "tp")) text += site.refused + ";";
    return text;
  };
  CHECK(refused("  %g = all_gather %n axis=tp dim=0 : f32[4, 4]\n  %y = linear %g, %w : f32[4, 4]\n") == ";");
  CHECK(refused("  %g = all_gather %n axis=tp dim=0 : f32[4, 4]\n  %y = aten.relu %g : f32[4, 4]\n") == "");
  CHECK(refused("  %g = all_gather %n axis=tp dim=0 : f32[4, 4]\n  %v = aten.relu %w : f32[4, 4]\n"
                "  %y = linear %g, %v : f32[4, 4]\n")
            .find("is made after they are gathered;") != std::string::npos);
  CHECK(refused("  %p = linear %x, %w : f32[4, 4] sum(tp)\n  %q = aten.relu %p : f32[4, 4] sum(tp)\n"
                "  %s = aten.add.Tensor %p, %q : f32[4, 4] sum(tp)\n"
                "  %y = reduce_scatter %s axis=tp dim=0 : f32[2/tp, 4]\n") == "");
  CHECK(refused("  %p = linear %x, %w : f32[4, 4] sum(tp)\n  %q = aten.relu %x : f32[4, 4] sum(tp)\n"
                "  %s = aten.add.Tensor %p, %q : f32[4, 4] sum(tp)\n"
                "  %y = reduce_scatter %s axis=tp dim=0 : f32[2/tp, 4]\n") == "aten.relu makes a part of the sum;");
}

}  // namespace
}  // namespace sfsdp::passes::pipeline_products_test
