// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/tensor_parallel.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp::parallel::tensor_parallel_test {
namespace {

TEST_CASE("tensor_parallel: a pattern names a parameter or its module; alternatives share what stands before them") {
  CHECK(names("*.w1", "layers.0.w1.weight"));
  CHECK(names("*.w1", "w1.bias"));
  CHECK(names("*.w1.weight", "mlp.w1.weight"));
  CHECK(names("*.wq|wk|wv", "layers.3.attention.wv.weight"));
  CHECK(names("tok_embeddings|output", "output.weight"));
  CHECK_FALSE(names("*.w1", "layers.0.w11.weight"));
  CHECK_FALSE(names("*.w1", "layers.w1.0.weight"));
  CHECK_FALSE(names("*.wq|wk", "layers.3.attention.wo.weight"));
}

ir::Graph params() {
  return ir::parse_or_throw(R"(graph mesh [] view global
  %a = param name=mlp.w1.weight : f32[12, 4]
  %b = param name=mlp.w1.bias : f32[12]
  %c = param name=mlp.w2.weight : f32[4, 12]
  %d = param name=mlp.w2.bias : f32[4]
)");
}

TEST_CASE("tensor_parallel: the first rule that names a parameter counts, a bias is cut with rows alone") {
  using Cuts = std::map<std::string, Shard>;
  CHECK(find_cuts(params(), tensor_parallel({{"*.w1", Shard(0)}, {"*.w2", Shard(1)}}), 2) ==
        Cuts{{"mlp.w1.weight", Shard(0)}, {"mlp.w1.bias", Shard(0)}, {"mlp.w2.weight", Shard(1)}});
  CHECK(find_cuts(params(), tensor_parallel({{"*.w1.weight", Shard(1)}, {"*", Shard(0)}}), 2) ==
        Cuts{{"mlp.w1.weight", Shard(1)},
             {"mlp.w1.bias", Shard(0)},
             {"mlp.w2.weight", Shard(0)},
             {"mlp.w2.bias", Shard(0)}});
}

TEST_CASE("tensor_parallel: a rule of a plan for several models may name nothing") {
  using Cuts = std::map<std::string, Shard>;
  CHECK(find_cuts(params(), tensor_parallel({{"*.experts.w1", Shard(1), true}, {"*.w2.weight", Shard(1), true}}), 2) ==
        Cuts{{"mlp.w2.weight", Shard(1)}});
}

void expect_refused(const std::vector<TensorParallelRule>& rules, int64_t ranks, const char* what) {
  CHECK_THROWS_WITH_AS(find_cuts(params(), tensor_parallel(rules), ranks), doctest::Contains(what), UserError);
}

TEST_CASE("tensor_parallel: what names nothing, or cuts what the ranks do not divide, is refused with the cure") {
  expect_refused({{"*.w4", Shard(0)}}, 2, "{\"*.w4\", Shard(0)} names no parameter");
  expect_refused({{"*.w1.bias", Shard(1)}}, 2, "no parameter that it names has a dimension 1");
  expect_refused({{"*.w1", Shard(0)}}, 8,
                 "of size 12, over tp = 8\n  expected a divisor of it, and of the ranks: the nearest below is tp = 4");
  CHECK_THROWS_WITH_AS(tensor_parallel({{"*.w1", Shard(-1)}}), doctest::Contains("Shard(-1)"), UserError);
  CHECK_THROWS_WITH_AS(data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}})),
                       doctest::Contains("no parameter is cut over it"), UserError);
}

// 6 ranks cannot have tp = 4, whatever it divides; with dp_shard = 2 they are 12, of which 4 is a part.
TEST_CASE("tensor_parallel: the degree that a refusal names is one that the mesh has ranks for and all rules allow") {
  const auto expect_nearest = [](std::vector<MeshAxis> mesh, int64_t narrow, const char* nearest) {
    ir::Graph graph =
        ir::parse_or_throw(concat("graph mesh [] view global\n  %a = param name=w1 : f32[64, 4]\n"
                                  "  %b = param name=w2 : f32[4, ",
                                  narrow, "]\n"));
    graph.mesh = std::move(mesh);
    CHECK_THROWS_WITH_AS(find_cuts(graph, tensor_parallel({{"w1", Shard(0)}, {"w2", Shard(1)}}), 6),
                         doctest::Contains(concat("the nearest below is tp = ", nearest).c_str()), UserError);
  };
  expect_nearest({{"tp", 6}}, 64, "2");
  expect_nearest({{"dp_shard", 1}, {"tp", 6}}, 64, "2");
  expect_nearest({{"dp_shard", 2}, {"tp", 6}}, 64, "4");
  expect_nearest({{"dp_replicate", 2}, {"dp_shard", 1}, {"tp", 6}}, 64, "2");
  expect_nearest({{"dp_shard", 2}, {"tp", 6}}, 6, "2");  // w1 alone would have 4
  expect_nearest({{"tp", 6}}, 9, "1");
}

}  // namespace
}  // namespace sfsdp::parallel::tensor_parallel_test
