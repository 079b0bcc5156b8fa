// SPDX-License-Identifier: BSD-3-Clause
// What:   makes one product of linear layers that read one activation and whose weights lie one after the other: QKV, gate and
//         up. In backward one product for the gradients of the weights, and one for that of the activation, which adds up inside.
// Why:    the activation is read once, larger products fill a device better, and no sum of gradients goes through memory.
// Bits:   the executor computes the products one by one and adds in eager's order. A device's kernel adds in the product.
// Needs:  group_weights and bucket; canonical ops.
// Leaves: what could not be joined, counted: left_apart (weights not side by side: of other units, or padded), left_bias, left_sum
//         (gradients of the activation that are added to something else in between).
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool join_products(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
