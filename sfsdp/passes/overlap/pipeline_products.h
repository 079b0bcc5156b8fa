// SPDX-License-Identifier: BSD-3-Clause
// What:   computes products part by part beside what a model axis sends of them. A product of rows that are gathered begins with the rank's
//         own, and goes on with those of the rank before it, of the one before that, and so on, each brought straight from its owner; the
//         results are put side by side. Where a sum of products is reduced and cut in rows, those of each other rank are computed first,
//         each sent to its owner, who adds up what all ranks send.
// Why:    what is sent passes under the products, which else wait for all of it, or are done before any of it is sent.
// Needs:  collectives in one piece; sites that are worth it are chosen by who knows the machine (tune/product_sites.h).
// Leaves: in place of a gather that is taken permutes, and join_parts of each product's parts; what else reads the gathered rows reads the
//         parts, joined. In place of a reduce_scatter permutes, and add_parts. Types and names of what others read are as they were.
// Source: decomposed collective matmul, Wang et al., ASPLOS 2023; PyTorch's async tensor parallelism.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/options.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct PipelineProductsOptions {
  std::string axis = "tp";
  // What the collectives make whose sites are taken, parted by commas; all: each that can be.
  std::string sites = "all";
  static const std::vector<Field<PipelineProductsOptions>>& fields();
};

// A collective over the axis that products stand beside.
struct ProductSite {
  ir::Op* collective = nullptr;              // all_gather or reduce_scatter, of rows
  ir::Value *from = nullptr, *to = nullptr;  // what is gathered or reduced, and what that makes
  int64_t dim = 0;                           // in which a rank has a part of one of them
  // The collective, and views and copies around it that bring the dimension to the front and back. In the graph's order.
  std::vector<ir::Op*> moves = {};
  // That read what is gathered, in the gather's section; or whose sum is reduced. In the graph's order.
  std::vector<ir::Op*> products = {};
  std::vector<ir::Op*> sums = {};  // that lead from the products to a reduce_scatter, in the graph's order
  bool has_others = false;         // others read what is gathered
  std::string refused = {};        // why it cannot be taken; "": it can
  bool is_gather() const { return collective->is("all_gather"); }
};

// In the graph's order. Collectives without a product are none.
std::vector<ProductSite> find_product_sites(const ir::Graph& graph, std::string_view axis);

bool pipeline_products(ir::Graph& graph, const PipelineProductsOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
