// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::cross_entropy_test {
namespace {

using testing::expect_pass;

constexpr const char* kLoss = R"(
    graph mesh [] view local
      %x = input name=x : bf16[3, 4]
      %t = input name=t : i64[3]
      %g = input name=g : f32[]
    loss:
      %wide = aten._to_copy %x dtype=f32 : f32[3, 4]
      %logp = aten._log_softmax %wide dim=1 half_to_float=false : f32[3, 4]
      %loss, %n = aten.nll_loss_forward %logp, %t, none ignore_index=-100 reduction=2 : f32[], f32[]
    bwd:
      %gp = aten.nll_loss_backward %g, %logp, %t, none, %n ignore_index=-100 reduction=2 bwd_of=%loss : f32[3, 4]
      %gx = aten._log_softmax_backward_data %gp, %logp dim=1 input_dtype=f32 bwd_of=%logp : f32[3, 4]
      %dx = aten._to_copy %gx dtype=bf16 layout=0 bwd_of=%wide : bf16[3, 4]
      return %loss, %dx)";

TEST_CASE("canonicalise: cross entropy leaves a number per row for its gradient, not the probabilities") {
  expect_pass("canonicalise", kLoss, R"(
    graph mesh [] view local
      %x = input name=x : bf16[3, 4]
      %t = input name=t : i64[3]
      %g = input name=g : f32[]
    loss:
      %loss, %n, %logp.left = cross_entropy %x, %t ignore_index=-100 reduction=2 : f32[], f32[], f32[3]
    bwd:
      %dx = cross_entropy_backward %g, %x, %t, %n, %logp.left ignore_index=-100 reduction=2 bwd_of=%loss : bf16[3, 4]
      return %loss, %dx
  )");
}

TEST_CASE("canonicalise: cross entropy of logits that are widened before they are flattened") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %x = input name=x : bf16[1, 3, 4]
      %t = input name=t : i64[3]
      %g = input name=g : f32[]
    loss:
      %wide = aten._to_copy %x dtype=f32 : f32[1, 3, 4]
      %rows = aten.view %wide size=[-1, 4] : f32[3, 4]
      %logp = aten._log_softmax %rows dim=1 half_to_float=false : f32[3, 4]
      %loss, %n = aten.nll_loss_forward %logp, %t, none ignore_index=-100 reduction=1 : f32[], f32[]
    bwd:
      %gp = aten.nll_loss_backward %g, %logp, %t, none, %n ignore_index=-100 reduction=1 bwd_of=%loss : f32[3, 4]
      %gx = aten._log_softmax_backward_data %gp, %logp dim=1 input_dtype=f32 bwd_of=%logp : f32[3, 4]
      %gv = aten.view %gx size=[1, 3, 4] bwd_of=%rows : f32[1, 3, 4]
      %dx = aten._to_copy %gv dtype=bf16 layout=0 bwd_of=%wide : bf16[1, 3, 4]
      return %loss, %dx)",
              R"(
    graph mesh [] view local
      %x = input name=x : bf16[1, 3, 4]
      %t = input name=t : i64[3]
      %g = input name=g : f32[]
    loss:
      %rows = aten.view %x size=[-1, 4] : bf16[3, 4]
      %loss, %n, %logp.left = cross_entropy %rows, %t ignore_index=-100 reduction=1 : f32[], f32[], f32[3]
    bwd:
      %gv = cross_entropy_backward %g, %rows, %t, %n, %logp.left ignore_index=-100 reduction=1 bwd_of=%loss : bf16[3, 4]
      %dx = aten.view %gv size=[1, 3, 4] bwd_of=%rows : bf16[1, 3, 4]
      return %loss, %dx
  )");
}

TEST_CASE("canonicalise: cross entropy whose probabilities something else reads stays, forward and backward") {
  testing::expect_unchanged("canonicalise", std::string(kLoss) + ", %logp\n");
}

}  // namespace
}  // namespace sfsdp::passes::cross_entropy_test
