// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

// How fast a library computes the three products of a linear layer of each shape, y = x wT, dx = dy w and dw = dyT x, on one thread.
// Prints a line for each: kind, tokens, n, k, GF/s of the best run, error (root mean square, of the result's own, against float64).
//   library: aten (at::mm), onednn (what the planned executor calls), or a file of a BLAS library with cblas_sgemm
//   dtype:   float32 or bfloat16
//   seconds: for each product
//   shapes:  "tokens,n,k"
//   throws:  UserError for a library that is not here, or has no product of the dtype
void measure_products(const std::string& library, const std::string& dtype, double seconds,
                      const std::vector<std::string>& shapes);
