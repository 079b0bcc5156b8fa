// SPDX-License-Identifier: BSD-3-Clause
// The gradient of a weight as a sum over chunks of rows.
#pragma once

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// Unset, then the sum of the parts that were added, in f32 at least: a sum in bf16 would lose what later chunks add.
class SumOfChunks {
 public:
  SumOfChunks(ir::Graph& graph, ir::Builder& build, ir::Builder::Place place)
      : graph_(graph), build_(build), place_(std::move(place)) {}

  // part: [n, k], as the product of a chunk's rows leaves it
  void add(ir::Value* part);
  // Readers of `product` get the sum in the product's dtype; one that only casts it to the sum's is not needed any more.
  void replace(ir::Value* product);

 private:
  ir::Value* cast(ir::Value* value, const ir::Type& type) const { return place_.value("cast", {value}, type); }

  ir::Graph& graph_;
  ir::Builder& build_;
  ir::Builder::Place place_;
  ir::Value* sum_ = nullptr;
};

}  // namespace sfsdp::passes
