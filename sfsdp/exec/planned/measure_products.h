// SPDX-License-Identifier: BSD-3-Clause
// Which library computes the products of each shape, by what they take here, with all ranks at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/cost/product_times.h"
#include "sfsdp/exec/planned/products.h"
#include "sfsdp/passes/fuse/name_kernels.h"

namespace sfsdp::exec {

// What one product takes on this rank's threads, the least of a few runs in turn, by the kernel's name. A larger product than about
// 16 GFLOP is measured with its largest dimensions cut in two until it is none, and counts as the whole one.
cost::ProductSeconds time_product(const ir::ProductShape& shape, const std::vector<ProductKernel>& kernels);

struct ProductOptions {
  std::string rule;          // the kernel to prefer (tune::choose_products)
  std::string cache_folder;  // cost::cache_folder(); "": none
  std::function<cost::ProductSeconds(const ir::ProductShape&, const std::vector<ProductKernel>&)> time = &time_product;
};

struct ProductChoice {
  passes::ProductTable table;      // the same on all ranks; empty: there is nothing to choose from
  cost::ProductTimes seconds;      // means over ranks
  std::vector<std::string> notes;  // for the log
};

// Libraries that all ranks have, in one version. What no earlier run on this machine has measured, with as many ranks and threads, is
// measured now, by all ranks at once; the table is by the sums of all ranks' times. A collective call.
//   world: null: one rank
ProductChoice choose_products(const std::vector<ir::ProductShape>& shapes, const ProductOptions& options,
                              comm::CommWorld* world);

}  // namespace sfsdp::exec
