// SPDX-License-Identifier: BSD-3-Clause
// What a step sends and stores where cp cuts the sequence, and what it is asked in vain. That it trains as eager does: mesh_parity_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace context_parallel_test {

// 2 samples of 8 tokens.
Batch sentences(int64_t length = 8) {
  const at::Tensor ids = at::arange(2 * (length + 1)).remainder(11).view({2, length + 1});
  return {ids.narrow(1, 0, length).contiguous(), ids.narrow(1, 1, length).contiguous()};
}

std::shared_ptr<Program> compiled(std::vector<MeshAxis> axes, const ContextParallelOptions& context = {},
                                  int64_t length = 8) {
  const Strategy strategy = data_parallel(init_device_mesh(std::move(axes)), {}, {}, context);
  return compile_program(meta_init(testing::make_llama), testing::loss_of, testing::kParityOptimizer, sentences(length),
                         strategy, {});
}

// docs/model_axes.md; keys and values of the whole sequence pass once each way.
TEST_CASE("a block of Llama gathers k and v over cp, and scatters their gradients, and sends nothing else") {
  const std::string block = "2 bwd reduce_scatter, 2 fwd all_gather";
  for (const bool balanced : {false, true}) {
    const auto program = compiled({{"dp_shard", 2}, {"cp", 2}}, {.load_balance = balanced});
    const auto variant = program->first();
    const auto counts = testing::collectives_by_block(variant->graph, "cp");
    CHECK(counts.at("layers.0") == block);
    CHECK(counts.at("layers.1") == block);
  }
}

TEST_CASE("parameters are sharded over dp_shard and cp together") {
  const auto four = compiled({{"dp_shard", 4}}), both = compiled({{"dp_shard", 2}, {"cp", 2}}),
             alone = compiled({{"cp", 4}});
  for (const StoredTensor& tensor : four->tensors())
    for (const auto& program : {both, alone}) {
      const auto found = std::ranges::find(program->tensors(), tensor.name, &StoredTensor::name);
      REQUIRE(found != program->tensors().end());
      CHECK(found->sharded == tensor.sharded);
      CHECK(found->shard == tensor.shard);
      CHECK(found->cuts.empty());
    }
}

TEST_CASE("sequences that cp does not divide, and dimensions that no tensor has, are refused with the cure") {
  CHECK_THROWS_WITH_AS(compiled({{"cp", 2}}, {}, 6), doctest::Contains("the sequence of 6 tokens of %"), UserError);
  CHECK_THROWS_WITH_AS(
      compiled({{"cp", 2}}, {}, 6),
      doctest::Contains("over cp = 2\n  expected a multiple of 4, or no ContextParallelOptions::load_balance"),
      UserError);
  CHECK_NOTHROW(compiled({{"cp", 2}}, {.load_balance = false}, 6));
  CHECK_THROWS_WITH_AS(compiled({{"cp", 2}}, {.load_balance = false}, 7), doctest::Contains("expected a multiple of 2"),
                       UserError);
  CHECK_THROWS_WITH_AS(compiled({{"cp", 2}}, {.sequence_dims = {1, 2}}),
                       doctest::Contains("ContextParallelOptions::sequence_dims = [1, 2], and input 1 is i64[2, 8]"),
                       UserError);
  CHECK_THROWS_WITH_AS(compiled({{"cp", 2}}, {.sequence_dims = {1}}), doctest::Contains("and input 1 is i64[2, 8]"),
                       UserError);
}

}  // namespace context_parallel_test
}  // namespace sfsdp
