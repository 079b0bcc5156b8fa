// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config_resolve.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

TEST_CASE("gradients and moments of another dtype than the parameters are refused by train, by name") {
  JobConfig config;
  CHECK_FALSE(grad_dtype(config));
  CHECK_FALSE(state_dtype(config));
  config.optimizer.state_dtype = "float32";  // as the parameters
  CHECK_FALSE(state_dtype(config));
  check_trained(config);
  config.optimizer.state_dtype = "int8";
  CHECK(state_dtype(config) == ir::DType::i8);
  CHECK_THROWS_WITH_AS(check_trained(config),
                       doctest::Contains("optimizer.state_dtype = int8 with training.dtype = float32"), UserError);
  config.optimizer.state_dtype = "parameters";
  config.training.grad_dtype = "float32";
  config.training.dtype = "bfloat16";
  CHECK(grad_dtype(config) == ir::DType::f32);
  CHECK_THROWS_WITH_AS(check_trained(config), doctest::Contains("training.grad_dtype = float32"), UserError);
}

}  // namespace
}  // namespace sfsdp::train
