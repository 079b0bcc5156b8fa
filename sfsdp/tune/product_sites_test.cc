// SPDX-License-Identifier: BSD-3-Clause
// Which products are computed part by part, by what they take on a machine, and what that does to a block in simulated time.
#include "sfsdp/tune/product_sites.h"

#include <doctest/doctest.h>

#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/overlap/pipeline_products.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tune::product_sites_test {
namespace {

// The products of attention of a rank of tp = 8, as wide as Llama 3 405B's where dim is 16,384, of 8,192 tokens; attention itself is left out.
ir::Graph block(int64_t dim, int64_t tokens = 8192) {
  const int64_t own = tokens / 8, part = dim / 8;
  const auto of = [](int64_t rows, const std::string& text) { return concat("bf16[1, ", rows, text); };
  return ir::parse_or_throw(concat(
      "graph mesh [tp=8] view local\n", "  %x = input name=x : ", of(tokens, concat(", ", dim, "]\n")),
      "  %wq = param name=wq : bf16[", part, "/tp, ", dim, "]\n", "  %wk = param name=wk : bf16[128/tp, ", dim, "]\n",
      "  %wo = param name=wo : bf16[", dim, ", ", part, "/tp]\nfwd:\n",
      "  %n = own_part %x axis=tp dim=1 : ", of(own, concat("/tp, ", dim, "]\n")),
      "  %g = all_gather %n axis=tp dim=1 : ", of(tokens, concat(", ", dim, "]\n")),
      "  %q = linear %g, %wq : ", of(tokens, concat(", ", part, "/tp] at layers.0.wq\n")), "  %k = linear %g, %wk : ",
      of(tokens, ", 128/tp] at layers.0.wk\n"), "  %h = aten.silu %q : ", of(tokens, concat(", ", part, "/tp]\n")),
      "  %p = linear %h, %wo : ", of(tokens, concat(", ", dim, "] sum(tp) at layers.0.wo\n")),
      "  %o = reduce_scatter %p axis=tp dim=1 : ", of(own, concat("/tp, ", dim, "] at layers.0.wo\n")),
      "  return %o, %k\n"));
}

sim::Simulation simulated(ir::Graph graph, const cost::Machine& machine, const std::string& sites) {
  const std::string first = sites.empty() ? "" : concat("pipeline_products sites=\"", sites, "\", ");
  passes::run_passes(graph, passes::parse_passes(concat(first, "split_collectives, cover_permutes, fuse")));
  return sim::simulate(graph, machine);
}

TEST_CASE("product sites: of a wide block on a node of eight both are faster part by part, and nothing is waited for") {
  const cost::Machine machine = cost::load_machine("dgx_h100");
  const ir::Graph graph = block(16384);
  const auto sites = choose_product_sites(graph, "tp", machine);
  REQUIRE(sites.size() == 2);
  CHECK(sites[0].opcode == "all_gather");
  CHECK(sites[0].products == 2);
  CHECK(sites[0].bytes == int64_t{2} * 8192 * 16384);
  CHECK(sites[1].opcode == "reduce_scatter");
  CHECK(sites[1].path == "layers.0.wo");
  for (const ProductSiteChoice& site : sites) {
    CHECK(site.taken);
    CHECK(site.in_steps < site.seconds);
  }
  CHECK(taken_names(sites) == "g,o");
  const sim::Simulation was = simulated(graph.clone(), machine, ""),
                        is = simulated(graph.clone(), machine, taken_names(sites));
  CHECK(was.exposed_seconds.at("all_gather") > 5e-4);
  CHECK(was.exposed_seconds.at("reduce_scatter") > 5e-4);
  CHECK(is.exposed_seconds.at("permute") < 0.1 * was.exposed());
  // A gather counts the whole, of which a rank has its own part.
  CHECK(is.communicated_bytes.at("permute") == doctest::Approx(2 * 7 / 8.0 * static_cast<double>(sites[0].bytes)));
  CHECK(is.flops == doctest::Approx(was.flops));
  CHECK(is.step_seconds < was.step_seconds);
  // What a site gains alone is what it gains in the step, but for kernels that are fused across it.
  const double alone = sites[0].seconds + sites[1].seconds - sites[0].in_steps - sites[1].in_steps;
  CHECK(was.step_seconds - is.step_seconds == doctest::Approx(alone).epsilon(0.1));
}

TEST_CASE("product sites: of a small block none is faster, and the nearest one's times are told") {
  const auto sites = choose_product_sites(block(512, 512), "tp", cost::load_machine("dgx_h100"));
  REQUIRE(sites.size() == 2);
  CHECK(taken_names(sites).empty());
  const std::string why = why_none_taken(sites);
  CHECK(why.starts_with("of 2 sites none is faster part by part; at layers.0.w"));
  CHECK(why.find(" ms as it stands") != std::string::npos);
  CHECK(
      why_none_taken({}) ==
      "no product stands beside a gather or a reduction of rows, as the ranks divide neither samples nor positions, or "
      "no rule cuts products");
  CHECK(taken_names(choose_product_sites(block(512, 512), "tp", std::nullopt)) == "g,o");
}

}  // namespace
}  // namespace sfsdp::tune::product_sites_test
