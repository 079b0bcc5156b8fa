// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/search_space.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "sfsdp/base/error.h"

namespace sfsdp::tools::search_space_test {
namespace {

train::JobConfig batch_of(int64_t local, int64_t global) {
  train::JobConfig config;
  config.training.local_batch_size = local;
  config.training.global_batch_size = global;
  return config;
}

TEST_CASE("search_space: each mesh, micro-batch, stage and remat once; all train the global batch") {
  const auto all = search_space(batch_of(1, 48), 4, {});
  // shards 1, 2, 4; a rank's 12 sequences have 6 divisors; DDP is one stage, else four; three kinds of remat
  CHECK(all.size() == 6 * 3 * (1 + 4 + 4));
  std::set<Choices> seen;
  for (const Candidate& c : all) {
    CHECK(seen.insert(choices_of(c)).second);
    CHECK(c.replicate * c.shard == 4);
    CHECK(c.local * c.accumulation * 4 == 48);
    const train::JobConfig config = config_of(batch_of(1, 48), c);
    CHECK(config.training.global_batch_size == 48);
    CHECK(config.training.local_batch_size == c.local);
  }
  CHECK(search_space(batch_of(2, -1), 1, {}).size() == 2 * 3);  // -1: a micro-batch each
  CHECK_THROWS_WITH_AS(search_space(batch_of(1, 10), 4, {}),
                       "training.global_batch_size = 10 on 4 ranks\n  expected a multiple of the ranks; try 12",
                       UserError);
}

TEST_CASE("search_space: with model axes as many sequences a step, on fewer ranks that have their own") {
  const ModelAxes axes = {.tensor = 2, .context = 3};
  const auto all = search_space(batch_of(2, -1), 24, axes);  // 48 sequences: 2 on each of 24
  for (const Candidate& c : all) {
    CHECK(c.replicate * c.shard == 4);
    CHECK(c.local * c.accumulation * 4 == 48);
    const train::JobConfig config = config_of(batch_of(2, -1), c);
    CHECK(model_axes_of(config) == axes);
    CHECK(config.training.global_batch_size == 48);
  }
  CHECK(choices_of(all[0])[0].second == "dp_replicate=4,dp_shard=1,cp=3,tp=2");
  CHECK_THROWS_AS(search_space(batch_of(1, -1), 8, {.context = 3}), UserError);
  CHECK_THROWS_WITH_AS(
      search_space(batch_of(1, 10), 16, {.tensor = 4}),
      "training.global_batch_size = 10 on 4 data-parallel ranks\n  expected a multiple of the ranks; try 12",
      UserError);

  const auto first = first_look(batch_of(2, -1), 24, axes);
  CHECK(first.size() == 2 * 2);  // 1 × 12 and 12 × 1 sequences; nothing again, all again
  for (const Candidate& c : first) CHECK((c.shard == 4 && c.stage == 3 && c.reshard));

  CHECK(degrees_beside(1, 1024, 8) == std::vector<int64_t>{1, 2, 4, 8});
  CHECK(degrees_beside(2, 1024, 8) == std::vector<int64_t>{1, 2, 4});
  CHECK(degrees_beside(1, 12, 8) == std::vector<int64_t>{1, 2, 4});
  CHECK(degrees_beside(16, 1024, 8).empty());
}

TEST_CASE("search_space: with ep as many sequences a rank, on shards that it divides") {
  const ModelAxes axes = {.tensor = 2, .expert = 4};
  const auto all = search_space(batch_of(2, -1), 24, axes);  // 12 ranks have samples of their own
  std::set<std::pair<int64_t, int64_t>> meshes;
  for (const Candidate& c : all) {
    meshes.insert({c.replicate, c.shard});
    const train::JobConfig config = config_of(batch_of(2, -1), c);
    CHECK(model_axes_of(config) == axes);
    CHECK(config.training.global_batch_size == 48);
  }
  CHECK(meshes == std::set<std::pair<int64_t, int64_t>>{{3, 4}, {1, 12}});
  CHECK(choices_of(all[0])[0].second == "dp_replicate=3,dp_shard=1,ep=4,tp=2");
  CHECK(structure_of(all.front()) != structure_of(all.back()));
  CHECK_THROWS_WITH_AS(search_space(batch_of(1, -1), 6, {.expert = 4}),
                       doctest::Contains("try --parallelism.expert_parallel_degree 3"), UserError);

  CHECK(expert_degrees({}, 24, 16) == std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12});
  CHECK(expert_degrees({.tensor = 2, .context = 3}, 24, 16) == std::vector<int64_t>{1, 2, 4});
}

}  // namespace
}  // namespace sfsdp::tools::search_space_test
