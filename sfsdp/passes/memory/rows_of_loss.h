// SPDX-License-Identifier: BSD-3-Clause
// A cross entropy in canonical ops, and all that it computes row by row: from the last product to the product's two gradients.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::passes {

// Which dimensions of a value are the tokens: `count` of them from `first` on, in order.
struct RowDims {
  size_t first = 0, count = 1;
  bool operator==(const RowDims&) const = default;
};

// hidden · weightᵀ -> logits -> ... -> loss, count, log sums; and back: the gradient of the logits -> ... -> those of hidden and
// weight. Between them stand views, permutations, copies, casts, and collectives of another dimension than the rows.
struct LossRows {
  ir::Op *product = nullptr, *loss = nullptr, *backward = nullptr;
  ir::Op *grad_hidden = nullptr, *grad_weight = nullptr;  // linear_dx and linear_dw
  std::vector<ir::Op*> forward;                           // from the product to the loss, both among them
  std::vector<ir::Op*>
      gradients;  // from `backward` on, in order; the two products' gradients among them, but for `apart`
  // Where each rank makes the weight's gradient of its own rows: the reduce_scatter that adds it up and leaves a rank its classes, and all
  // that is for it alone. As rows and gradients of a rank's classes are there too, chunks need none of it.
  ir::Op* weight_sum = nullptr;
  std::vector<ir::Op*> apart;
  std::vector<ir::Op*> late;  // what reads the loss before `backward`: its sum over ranks, the mean
  std::unordered_map<const ir::Value*, RowDims> rows;

  int64_t count() const { return loss->operands[1]->type().dims[0].size; }  // of rows
};

// What was found, or why nothing was: a text that names ops and module paths.
struct FoundLossRows {
  std::optional<LossRows> rows;
  std::string why_not;
};

//   loss: cross_entropy or cross_entropy_of_parts
FoundLossRows find_rows_of_loss(const ir::Index& index, ir::Op* loss);

// Where the rows are that a view of `before` has of the same elements in `after`. nullopt: joined with other dimensions, or taken apart.
std::optional<RowDims> rows_reshaped(const std::vector<int64_t>& before, RowDims rows,
                                     const std::vector<int64_t>& after);

// Dimension `dim` of a value whose rows are one dimension instead.
int64_t joined_dim(int64_t dim, RowDims rows);

}  // namespace sfsdp::passes
