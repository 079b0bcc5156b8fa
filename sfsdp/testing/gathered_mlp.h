// SPDX-License-Identifier: BSD-3-Clause
// A block of a model over an axis tp whose rows are cut between its products, forward and backward: what asynchronous tensor parallelism
// takes apart.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/base/check.h"

namespace sfsdp::testing {

// silu(x) is gathered, silu(g · w1ᵀ) · (g · w3ᵀ) · w2ᵀ is reduced to a rank's rows; then the gradients of the weights and of x, as if that of
// the result were silu(x). Returned are whole values.
//   rows: that a rank has of `ranks` times as many, of 4 elements each
inline std::string gathered_mlp(int64_t ranks, int64_t rows = 2, const std::string& dtype = "f32") {
  const std::string x = concat(dtype, '[', ranks * rows, ", 2, 4]"), own = concat(dtype, '[', rows, "/tp, 2, 4]"),
                    wide = concat(dtype, '[', ranks * rows, ", 2, 3/tp]");
  return concat("graph mesh [tp=", ranks, "] view local\n", R"(  %x = input name=x : )", x, R"(
  %w1 = param name=w1 : )",
                dtype, R"([3/tp, 4]
  %w3 = param name=w3 : )",
                dtype, R"([3/tp, 4]
  %w2 = param name=w2 : )",
                dtype, R"([4, 3/tp]
fwd:
  %r = own_part %x axis=tp dim=0 : )",
                own, R"(
  %n = aten.silu %r : )",
                own, R"(
  %g = all_gather %n axis=tp dim=0 : )",
                x, R"(
  %a = linear %g, %w1 : )",
                wide, R"(
  %b = linear %g, %w3 : )",
                wide, R"(
  %s = aten.silu %a : )",
                wide, R"(
  %h = aten.mul.Tensor %s, %b : )",
                wide, R"(
  %p = linear %h, %w2 : )",
                x, R"( sum(tp)
  %o = reduce_scatter %p axis=tp dim=0 : )",
                own, R"(
  %y = all_gather %o axis=tp dim=0 : )",
                x, R"(
bwd:
  %dp = all_gather %n axis=tp dim=0 : )",
                x, R"(
  %dw2 = linear_dw %dp, %h bwd_of=%p : )",
                dtype, R"([4, 3/tp]
  %dh = linear_dx %dp, %w2 bwd_of=%p : )",
                wide, R"(
  %dw1 = linear_dw %dh, %g bwd_of=%a : )",
                dtype, R"([3/tp, 4]
  %t1 = linear_dx %dh, %w1 bwd_of=%a : )",
                x, R"( sum(tp)
  %t3 = linear_dx %dh, %w3 bwd_of=%b : )",
                x, R"( sum(tp)
  %t = aten.add.Tensor %t1, %t3 : )",
                x, R"( sum(tp)
  %dn = reduce_scatter %t axis=tp dim=0 : )",
                own, R"(
  %dx = all_gather %dn axis=tp dim=0 : )",
                x, R"(
  %dw1.all = all_gather %dw1 axis=tp dim=0 : )",
                dtype, '[', 3 * ranks, R"(, 4]
  return %y, %dx, %dw1.all
)");
}

}  // namespace sfsdp::testing
