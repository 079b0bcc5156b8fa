// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/cross_entropy_call.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/exec/planned/canonical_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace cross_entropy_call_test {

constexpr int64_t kRows = 24, kClasses = 500;

ir::Graph graph_of(at::ScalarType dtype, int64_t reduction) {
  const std::string logits = concat(dtype == at::kFloat ? "f32" : "bf16", "[", kRows, ", ", kClasses, "]");
  const std::string loss = reduction == 0 ? concat("f32[", kRows, "]") : "f32[]";
  const std::string attrs = concat(" ignore_index=-100 reduction=", reduction, " row_kernel=sfsdp.rows : ");
  return ir::parse_or_throw(concat(
      "graph mesh [dp_shard=1] view local\n  %x = input name=x : ", logits, "\n  %t = input name=t : i64[", kRows,
      "]\n  %g = input name=g : ", loss, "\nfwd:\n  %l, %n, %s = cross_entropy %x, %t", attrs, loss, ", f32[], f32[",
      kRows, "]\nbwd:\n  %gx = cross_entropy_backward %g, %x, %t, %n, %s", attrs, logits, "\n  return %gx\n"));
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

TEST_CASE("cross entropy by sfsdp's kernel is no further from float64 than by LibTorch's ops") {
  at::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t reduction : {0, 1, 2}) {
      CAPTURE(dtype == at::kFloat);
      CAPTURE(reduction);
      const ir::Graph graph = graph_of(dtype, reduction);
      const ir::Op &forward = *graph.find_value("l")->producer(), &backward = *graph.find_value("gx")->producer();
      const at::Tensor logits = at::randn({kRows, kClasses}).mul(3).to(dtype);
      at::Tensor targets = at::randint(kClasses, {kRows});
      targets[3] = targets[20] = -100;
      const at::Tensor grad = reduction == 0 ? at::randn({kRows}) : at::full({}, 0.7F);
      const at::Tensor wide = logits.to(at::kDouble).requires_grad_();
      const at::Tensor loss = at::cross_entropy_loss(wide, targets, {}, reduction);
      loss.backward(grad.to(at::kDouble));
      CrossEntropyCall own_forward(forward), own_backward(backward);
      const auto own = own_forward.run(std::vector<at::Tensor>{logits, targets}, {});
      const at::Tensor own_grad =
          own_backward.run(std::vector<at::Tensor>{grad, logits, targets, own[1], own[2]}, {})[0];
      CanonicalCall aten_forward(forward, {}, Rng::Counter), aten_backward(backward, {}, Rng::Counter);
      const auto aten = aten_forward.run(std::vector<at::Tensor>{logits, targets}, {}, {});
      const at::Tensor aten_grad =
          aten_backward.run(std::vector<at::Tensor>{grad, logits, targets, aten[1], at::Tensor()}, {}, {})[0];
      CHECK(at::equal(own[1], aten[1]));
      CHECK(error_of(own[0], loss.detach()) <= std::max(1.05 * error_of(aten[0], loss.detach()), 6e-8));
      CHECK(error_of(own_grad, wide.grad()) <= 1.05 * error_of(aten_grad, wide.grad()));
      CHECK(error_of(own[2], at::logsumexp(wide.detach(), 1)) < 1e-7);
    }
}

TEST_CASE("cross entropy by sfsdp's kernel refuses what is no class, as LibTorch does; the mean of nothing is nan") {
  const ir::Graph graph = graph_of(at::kFloat, 1);
  CrossEntropyCall call(*graph.find_value("l")->producer());
  const at::Tensor logits = at::zeros({kRows, kClasses});
  for (const int64_t wrong : {kClasses, int64_t{-1}}) {
    at::Tensor targets = at::zeros({kRows}, at::kLong);
    targets[5] = wrong;
    CHECK_THROWS_WITH_AS(call.run(std::vector<at::Tensor>{logits, targets}, {}),
                         doctest::Contains(concat("Target ", wrong, " is out of bounds.").c_str()), c10::IndexError);
  }
  const auto results = call.run(std::vector<at::Tensor>{logits, at::full({kRows}, -100, at::kLong)}, {});
  CHECK(results[0].isnan().item<bool>());
  CHECK(results[1].item<float>() == 0);
}

}  // namespace cross_entropy_call_test
}  // namespace sfsdp::exec
