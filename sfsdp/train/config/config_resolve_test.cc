// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config_resolve.h"

#include <doctest/doctest.h>

#include <variant>
#include <vector>

#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

TEST_CASE("optimizer.no_decay and optimizer.lr_factors become groups of the optimizer, in their order") {
  Optimizer config;
  config.no_decay = {"*norm*", "*bias"};
  config.lr_factors = {"tok_embeddings.*=0.1", " layers.* = 2"};
  const std::vector<ParamGroup> expected = {
      {"*norm*", 0.0, {}}, {"*bias", 0.0, {}}, {"tok_embeddings.*", {}, 0.1}, {"layers.*", {}, 2.0}};
  const auto adamw = std::get<AdamW>(optimizer_of(config));
  CHECK(adamw.groups == expected);
  CHECK(adamw.lr == 8e-4);
  CHECK(adamw.weight_decay == 0.1);
  config.name = "Adam";
  config.eps = 1e-6;
  CHECK(std::get<Adam>(optimizer_of(config)).groups == expected);
  CHECK(std::get<Adam>(optimizer_of(config)).eps == 1e-6);
  config.name = "SGD";
  config.momentum = 0.5;
  CHECK(std::get<SGD>(optimizer_of(config)).groups == expected);
  CHECK(std::get<SGD>(optimizer_of(config)).momentum == 0.5);
}

TEST_CASE("an entry of lr_factors that is not pattern=factor is refused") {
  for (const char* entry : {"tok_embeddings.*", "=0.1", "norm=", "norm=fast", "norm=-1", "norm=nan"}) {
    Optimizer config;
    config.lr_factors = {entry};
    CHECK_THROWS_WITH_AS(optimizer_of(config), doctest::Contains("such as tok_embeddings.*=0.1"), UserError);
  }
}

// TorchTitan, docs of lr_scheduler: W = 2, D = round(10 * 0.5) = 5, S = 10 + 1 - 2 - 5 = 4.
TEST_CASE("lr_scheduler.total_steps is the length of the schedule, training.steps where the run ends") {
  JobConfig config;
  config.optimizer.lr = 2;
  config.training.steps = 8;
  config.lr_scheduler = {.warmup_steps = 2, .decay_ratio = 0.5, .min_lr_factor = 0.5, .total_steps = 10};
  const LrSchedule schedule(schedule_of(config));
  const std::vector<double> expected = {1, 2, 2, 2, 2, 2, 1.8, 1.6, 1.4, 1.2, 1, 1};
  for (size_t k = 0; k < expected.size(); ++k)
    CHECK(schedule.lr(static_cast<int64_t>(k) + 1) == doctest::Approx(expected[k]).epsilon(1e-15));
  config.lr_scheduler.total_steps = std::nullopt;
  CHECK(schedule_of(config).steps == 8);
}

TEST_CASE("a group's numbers are named as the keys that set them") {
  CHECK(with_keys("compile: ParamGroup::pattern = *nrom* matches no parameter") ==
        "compile: optimizer.no_decay or optimizer.lr_factors = *nrom* matches no parameter");
  CHECK(with_keys("compile: Adam::lr = -1") == "compile: optimizer.lr = -1");
}

}  // namespace
}  // namespace sfsdp::train
