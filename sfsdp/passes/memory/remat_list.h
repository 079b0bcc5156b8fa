// SPDX-License-Identifier: BSD-3-Clause
// Which results of a block RematMode::Op keeps: products and attention, or what a list names. The pass remat follows it, and
// so does the memory that is simulated of PyTorch's systems.
// Source: TorchTitan's selective activation checkpointing per op (distributed/activation_checkpoint.py).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/memory/remat.h"

namespace sfsdp::passes {

class RematList {
 public:
  RematList(const ir::Graph& graph, const RematOptions& options);

  // Whether the results of an op of forward are kept.
  //   products: of its block up to here, counted by this call
  bool keeps(const ir::Op& op, int64_t& products) const;

 private:
  bool keeps_product(const ir::Op& op, int64_t& products) const;
  bool is_forced(const ir::Op& op) const;
  void find_parts(const ir::Graph& graph);

  std::vector<std::string> save_;
  std::set<std::vector<int64_t>> forced_;  // shapes of right operands of products that are computed again
  int64_t mm_again_;
  // Products of some rows (pipeline_products), which are not kept: where they are joined, what is joined is kept as the product of all rows;
  // of what is added up the rank's own part counts.
  std::unordered_set<const ir::Op*> parts_;
};

// The names of a list with commas, as options of the pass have them.
std::vector<std::string> listed_names(const std::string& text);

// Throws UserError for a name of RematOptions::save that is no op and no module of a block, naming the nearest.
void check_save_names(const ir::Graph& graph, const RematOptions& options);

}  // namespace sfsdp::passes
