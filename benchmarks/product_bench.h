// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

// How fast a library computes the three products of a linear layer of each shape, y = x wT, dx = dy w and dw = dyT x, on one thread.
// Prints a line for each: kind, tokens, n, k, GF/s of the best run, error (root mean square, of the result's own, against float64).
//   library: aten (at::mm), onednn or openblas (what the planned executor calls), or a file of a BLAS library with cblas_sgemm
//   dtype:   float32 or bfloat16
//   seconds: for each product
//   shapes:  "tokens,n,k"
//   throws:  UserError for a library that is not here, or has no product of the dtype
void measure_products(const std::string& library, const std::string& dtype, double seconds,
                      const std::vector<std::string>& shapes);

// What `exec.products = measured` measures for a job, and what it takes, a line for each shape of the job's own products: GF/s of each library, the mean
// of all ranks, and the one that is chosen. Keeps and reads no cache. Each rank of the launch calls it; rank 0 prints.
//   args: a configuration, as for sfsdp train
void measure_products_of_job(const std::vector<std::string>& args);
