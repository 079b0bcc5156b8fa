// SPDX-License-Identifier: BSD-3-Clause
// What the arithmetic of a large product and of attention takes on a device; the memory that they move is op_cost's.
#pragma once

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_shape.h"

namespace sfsdp::cost {

// FLOP/s of products of this op's dtype, by the data sheet.
double peak_of(const ir::Op& op, const Machine& machine);

// Seconds of one product as the fastest kernel of a library computes it.
//   rate: FLOP/s of large products on the whole device
// The output is cut into tiles, each computed by one multiprocessor, a wave of tiles after the other. A tile takes its
// depth and half_k more, to fill the pipeline and to write. Tried are tiles of the machine's size and smaller ones, which
// load more bytes for each flop; and, where tiles do not fill the multiprocessors, splitting the depth (split-K), whose
// partial sums pass memory once more in f32.
// Source: CUTLASS, media/docs/efficient_gemm.md (tiles, split-K); Stream-K, arXiv:2301.03598, section 3 (waves).
double product_seconds(const ProductShape& shape, double rate, const Machine& machine);
double product_seconds(const ir::Op& op, const Machine& machine);

double attention_seconds(const ir::Op& op, const Machine& machine);

// Floating point operations of large products, such as this op, in the time of a byte of large pointwise kernels.
double flops_per_byte(const ir::Op& product, const Machine& machine);

}  // namespace sfsdp::cost
