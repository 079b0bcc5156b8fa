// SPDX-License-Identifier: BSD-3-Clause
// What an op is to the cost model: its class, the sizes of products and attention, its floating point operations.
#pragma once

#include <cstdint>

#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {

using Class = ir::CostClass;

// As the op's row says, but Free where it moves no data all the same, and Alone for an aten op that has no row.
Class class_of(const ir::Op& op);
// Whether a pack finds an operand in its place already: the kernel that makes it has written it there (inside=).
bool is_inside(const ir::Op& pack, size_t operand);
// Bytes of its result that a pack writes: all but what is there already.
int64_t packed_bytes(const ir::Op& pack);
// What a compiler may join.
constexpr bool is_fusible(Class kind) { return kind == Class::Pointwise || kind == Class::Reduction; }

// Batch, rows, columns, depth of a product; a convolution is one product.
struct ProductShape {
  double batch = 1, m = 1, n = 1, k = 1;
};
ProductShape product_shape(const ir::Op& op);

struct AttentionShape {
  double pairs = 0;   // batch × heads × query positions × key positions of what attends to each other
  double width = 0;   // of a head
  double length = 0;  // key positions, of a document where attention stays within one
  bool causal = false, backward = false;
  // What the last rank computes, of what ranks compute in the mean, where each has its part of the sequence in natural order: all others
  // wait for it. 1 in head and tail, or where no axis cuts the sequence.
  double of_mean = 1;
};
AttentionShape attention_shape(const ir::Op& op);

// Floating point operations of one op: products and attention; 0 for all else.
double flops_of(const ir::Op& op);

}  // namespace sfsdp::cost
