// SPDX-License-Identifier: BSD-3-Clause
// How long libraries take for products of each shape, measured; kept in a file of the user's cache, so that a run measures but what no
// run before it has.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sfsdp/ir/canonical/product_shape.h"

namespace sfsdp::cost {

using ProductSeconds = std::map<std::string, double, std::less<>>;  // by kernel, as ir/named_kernels.h has it; above 0
using ProductTimes = std::map<ir::ProductShape, ProductSeconds>;

// XDG_CACHE_HOME/sfsdp, or HOME/.cache/sfsdp; "" where the environment has neither.
std::string cache_folder();

struct KeptProducts {
  ProductTimes times;
  std::string fault;  // why nothing was read of a file that is there
};

// The times of one machine: `key` says processor, threads, ranks and versions of libraries. A file for each key.
std::string products_file(const std::string& folder, std::string_view key);
// Never throws. No file: no times, and no fault.
KeptProducts read_product_times(const std::string& folder, std::string_view key);
// Adds `times` to what is there by now, for readers all or nothing of it; the folder is made. Writers take turns, by a lock on
// FOLDER/products.lock, and remove what killed ones have left. Where a file system has no locks, or the lock is not to be had within 2 s,
// of two that write at once what the later one writes stays.
//   throws: UserError where it cannot be written
void add_product_times(const std::string& folder, std::string_view key, const ProductTimes& times);

}  // namespace sfsdp::cost
