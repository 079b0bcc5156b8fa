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
TEST_CASE(
    "config_resolve: a list of what is kept is the pass's, and a list without its mode is said to change nothing") {
  JobConfig config = load_config(std::vector<std::string>{
      "--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op",
      "--activation_checkpoint.save=linear,attention.wq",
      "--activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns=feed_forward.w1"});
  const passes::RematOptions remat = remat_of(config.activation_checkpoint);
  CHECK(remat.save == "linear,attention.wq");
  CHECK(remat.mm_again_of == "feed_forward.w1");
  CHECK(config.notes.empty());
  config = load_config(std::vector<std::string>{"--activation_checkpoint.save=linear"});
  REQUIRE(config.notes.size() == 1);
  CHECK(config.notes[0].starts_with("activation_checkpoint.save changes nothing"));
}

}  // namespace sfsdp::train
