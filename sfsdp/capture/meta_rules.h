// SPDX-License-Identifier: BSD-3-Clause
// Shape functions that many ops share, written once for any schema: one rule per kind of op.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch {
class Library;
}

namespace sfsdp::capture {

enum class MetaRule {
  Pointwise,       // all tensors broadcast; promoted dtype
  PointwiseFirst,  // all tensors broadcast; dtype of the first
  Predicate,       // all tensors broadcast; bool
  InPlace,         // returns its first argument
  Preserve,        // all results like `self`, its dense strides kept
  Contiguous,      // all results with sizes and dtype of `self`, contiguous
  Image,           // like `self`; batched images keep channels_last
  PerSample,       // a loss: by `reduction`, pointwise over the first two tensors or one number
  Reduce,          // over `dim` (an int, a list, or all), keeping it if `keepdim`; a second result may be indices
  Sum,             // the same; integers become int64
  Count,           // the same; int64
};

struct MetaRuleRow {
  const char* name;  // "relu", "where.self"
  MetaRule rule;
};

// An empty result with the sizes and strides that LibTorch's pointwise loop chooses for these inputs, in this order.
at::Tensor broadcast_all(const std::vector<at::Tensor>& inputs, c10::ScalarType dtype);

// Every op that a rule describes.
std::span<const MetaRuleRow> meta_rules();

// What to write instead of an op ("aten::nonzero") that has neither rule nor function of its own.
std::string instead_of(std::string_view name);

// Registers the rule of one row on the library's Meta key.
void register_rule(torch::Library& meta, const MetaRuleRow& row);

}  // namespace sfsdp::capture
