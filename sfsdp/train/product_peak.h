// SPDX-License-Identifier: BSD-3-Clause
// How fast a thread multiplies matrices at best: what `mfu` is of.
#pragma once

#include <cstdint>
#include <functional>

namespace sfsdp::train {

// Flops per second of one thread in the fastest of a few square products, of n x n matrices for n from 64 to 2048, measured in about
// 0.3 s. Sizes double while the next ones are in time at the best speed so far.
//   product: of n, run once more on one thread; returns its processor time in seconds. The first one of a size fetches code and decides
//            nothing
// By processor time, not by the clock: what other programs have of the core meanwhile makes no peak small. On one thread, as several wait for
// each other on the processor.
double measure_peak_flops(const std::function<double(int64_t n)>& product);

}  // namespace sfsdp::train
