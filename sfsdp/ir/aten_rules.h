// SPDX-License-Identifier: BSD-3-Clause
// The rules named in atenset.def: which dtype and shape each result has. Attributes are the schema's arguments, left out
// at their defaults. Strides are LibTorch's choice and not checked, nor is what a kernel alone can know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {

void aten_promoted(RuleContext& context);        // operands and numbers broadcast, the dtype that all promote to
void aten_promoted_float(RuleContext& context);  // the same, f32 where that were no float
void aten_compared(RuleContext& context);        // b1
void aten_where(RuleContext& context);
void aten_masked_fill(RuleContext& context);
void aten_float_of(RuleContext& context);
void aten_as_first(RuleContext& context);
void aten_like(RuleContext& context);   // dtype=
void aten_sized(RuleContext& context);  // size= dtype=
void aten_arange(RuleContext& context);
void aten_dropout(RuleContext& context);
void aten_product(RuleContext& context);
void aten_add_product(RuleContext& context);
void aten_convolution(RuleContext& context);
void aten_convolution_backward(RuleContext& context);
void aten_attention(RuleContext& context);
void aten_attention_backward(RuleContext& context);
void aten_sum(RuleContext& context);
void aten_reduced(RuleContext& context);
void aten_index_reduced(RuleContext& context);
void aten_cumsum(RuleContext& context);
void aten_softmax(RuleContext& context);
void aten_softmax_backward(RuleContext& context);
void aten_nll_loss(RuleContext& context);
void aten_nll_loss_backward(RuleContext& context);
void aten_layer_norm(RuleContext& context);
void aten_layer_norm_backward(RuleContext& context);
void aten_group_norm(RuleContext& context);

// aten_view_rules.cc: views, and what cuts, joins and picks.
void aten_view(RuleContext& context);
void aten_unsqueeze(RuleContext& context);
void aten_squeeze(RuleContext& context);
void aten_transpose(RuleContext& context);
void aten_permute(RuleContext& context);
void aten_expand(RuleContext& context);
void aten_select(RuleContext& context);
void aten_slice(RuleContext& context);
void aten_split(RuleContext& context);
void aten_split_with_sizes(RuleContext& context);
void aten_unbind(RuleContext& context);
void aten_as_strided(RuleContext& context);
void aten_embedding(RuleContext& context);
void aten_embedding_backward(RuleContext& context);
void aten_gather(RuleContext& context);
void aten_index_select(RuleContext& context);
void aten_sort(RuleContext& context);
void aten_topk(RuleContext& context);
void aten_cat(RuleContext& context);
void aten_stack(RuleContext& context);
void aten_select_backward(RuleContext& context);
void aten_slice_backward(RuleContext& context);
void aten_constant_pad(RuleContext& context);
void aten_repeat(RuleContext& context);

// What the rules are made of. An attribute of another kind, or one that is missing, stops the rule.
namespace aten {

using Shape = std::vector<int64_t>;

int64_t integer(RuleContext& context, const std::string& key);
int64_t integer(RuleContext& context, const std::string& key, int64_t fallback);
bool flag(RuleContext& context, const std::string& key);
Shape integers(RuleContext& context, const std::string& key);
std::optional<Shape> integers_if(RuleContext& context, const std::string& key);  // an integer is a list of one
DType dtype(RuleContext& context, DType fallback);                               // dtype=
// A dimension of a tensor of `rank`, counted from its end if below 0. A number has one dimension to name.
size_t wrapped(RuleContext& context, int64_t dim, size_t rank);
// Operand `index`, of `rank` dimensions.
const Type& tensor(RuleContext& context, size_t index, size_t rank);
bool has_operand(const RuleContext& context, size_t index);
// Product of sizes that may be any attribute's; stops where one is below 0 or the product above kMaxBytes.
int64_t numel(RuleContext& context, const Shape& shape);
// NumPy's broadcasting of two shapes.
Shape broadcast(RuleContext& context, const Shape& a, const Shape& b);
// dtype: nullopt where LibTorch's kernels differ. A gradient that was not asked for is a token.
void expect(RuleContext& context, int result, std::optional<DType> dtype, const Shape& shape);

}  // namespace aten
}  // namespace sfsdp::ir
