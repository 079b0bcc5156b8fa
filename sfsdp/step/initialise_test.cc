// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/initialise.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/capture/capture_step.h"
#include "sfsdp/capture/meta_init.h"

namespace sfsdp {
namespace initialise_test {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype) {
    table = register_module("table", torch::nn::Embedding(300000, 4));  // more than is made at a time
    linear = register_module("linear", torch::nn::Linear(4, 6));
    scaled = register_parameter("scaled", torch::empty({3, 4}));
    square = register_parameter("square", torch::empty({4, 4}));
    torch::nn::init::normal_(scaled, 0.0, 0.02);
    {
      const torch::NoGradGuard no_grad;
      scaled.clamp_(-0.03, 0.03).mul_(2).tanh_();
    }
    torch::nn::init::orthogonal_(square);
    to(dtype);
  }
  torch::nn::Embedding table = nullptr;
  torch::nn::Linear linear = nullptr;
  at::Tensor scaled, square;
};
TORCH_MODULE(Net);

TEST_CASE(
    "initial values of a part are those of the whole, made alone where the initialisation is element by element") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    auto model = meta_init([&] { return Net(dtype); });
    std::vector<std::string> whole;
    for (const capture::StateTensor& tensor : capture::take_state(*model)) {
      CAPTURE(tensor.name);
      const int64_t count = c10::multiply_integers(tensor.shape);
      const at::Tensor all = step::initialise_range(tensor, 7, 0, count);
      CHECK((all.scalar_type() == dtype));
      for (const int64_t first : {int64_t{0}, count / 3, count - 1}) {
        const int64_t some = std::min<int64_t>(first == 0 ? 5 : 700001, count - first);
        CHECK(at::equal(step::initialise_range(tensor, 7, first, some), all.narrow(0, first, some)));
      }
      if (step::needs_whole_tensor(tensor)) whole.push_back(tensor.name);
    }
    REQUIRE(whole.size() == 1);
    CHECK(whole[0] == "square");
  }
}

}  // namespace initialise_test
}  // namespace sfsdp
