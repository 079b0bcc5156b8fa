// SPDX-License-Identifier: BSD-3-Clause
// Shape functions that many ops share, written once for any schema: one rule per kind of op.
#pragma once

#include <span>

namespace torch {
class Library;
}

namespace sfsdp::capture {

enum class MetaRule {
  Pointwise,       // all tensors broadcast; promoted dtype
  PointwiseFirst,  // all tensors broadcast; dtype of the first
  Predicate,       // all tensors broadcast; bool
  InPlace,         // returns its first argument
  Preserve,        // like the first tensor, its dense strides kept
  Contiguous,      // sizes and dtype of the first tensor, contiguous
  PerSample,       // a loss: by `reduction`, pointwise over the first two tensors or one number
  Number,          // one number of the first tensor's dtype
  Reduce,          // over `dim` (an int, a list, or all), keeping it if `keepdim`
};

struct MetaRuleRow {
  const char* name;  // "relu", "where.self"
  MetaRule rule;
};

// Every op that a rule describes.
std::span<const MetaRuleRow> meta_rules();

// Registers the rule of one row on the library's Meta key.
void register_rule(torch::Library& meta, const MetaRuleRow& row);

}  // namespace sfsdp::capture
