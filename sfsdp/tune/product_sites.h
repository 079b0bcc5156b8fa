// SPDX-License-Identifier: BSD-3-Clause
// Where products are computed part by part beside what a model axis sends of them (passes/overlap/pipeline_products.h): each site is
// simulated by itself, as it stands and part by part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::tune {

// One gather or reduction of rows that products stand beside.
struct ProductSiteChoice {
  std::string name;    // of what the collective makes
  std::string opcode;  // of the collective
  std::string path;    // of its first product's module
  ir::Section section = ir::Section::Fwd;
  int64_t bytes = 0;  // of the whole value
  int64_t products = 0;
  std::string refused;  // why it cannot be taken; "": it can
  double seconds = 0;   // as it stands; 0 without a machine
  double in_steps = 0;  // part by part
  bool taken = false;
};

// In the graph's order. With a machine those are taken that are faster there part by part: its latencies, the smaller products' rates, what
// is copied to part and join, and how much a kernel is slower beside what is sent. Without one: all that can be.
//   graph: a rank's, of global names; collectives in one piece
std::vector<ProductSiteChoice> choose_product_sites(const ir::Graph& graph, std::string_view axis,
                                                    const std::optional<cost::Machine>& machine);

// Names of those that are taken, as PipelineProductsOptions::sites has them.
std::string taken_names(const std::vector<ProductSiteChoice>& sites);

// Why none is taken: there is no site, none can be taken, or none is faster, with the times of the one that comes nearest.
std::string why_none_taken(const std::vector<ProductSiteChoice>& sites);

}  // namespace sfsdp::tune
