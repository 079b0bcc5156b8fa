// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/block_collectives.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::testing::block_collectives_test {
namespace {

// What leaves one of four ranks of [4, 8] floats, 128 bytes: 96 of a gather or a scatter, twice that of a sum.
constexpr const char* kAllKinds = R"(
  graph mesh [dp_shard=2, tp=4] view local
    %x = input name=x : f32[4, 8]
    %s = input name=s : f32[2]
    %index = input name=index : i64[16]
    %ends = input name=ends : i32[4]
  fwd:
    %part = reduce_scatter %x axis=tp dim=0 : f32[1, 8] at layers.0.wo
    %whole = all_gather %part axis=tp dim=0 : f32[4, 8] at layers.0.wq
    %next = all_gather %part axis=tp dim=0 : f32[4, 8] at layers.0.w1
    %over = all_gather %part axis=[dp_shard, tp] dim=0 : f32[8, 8] at layers.1
  loss:
    %sum = all_reduce %s axis=tp : f32[2]
  bwd:
    %added = all_reduce %x axis=tp : f32[4, 8] at layers.1.wo
    %moved = all_to_all %x axis=tp join=1 split=0 : f32[1, 32] at layers.1
    %passed.start = permute.start %x axis=tp shift=1 : async f32[4, 8] at layers.1
    %passed = wait %passed.start : f32[4, 8] at layers.1
    %rows = all_to_all_v %x, %index, %ends axis=tp rows=16 to=rows : f32[16, 8] at layers.1
  clip:
    %norm = all_reduce %s axis=tp : f32[2] at layers.1
    return %sum
)";

TEST_CASE("block_collectives: by block what one rank sends, of each kind, by hand") {
  const ir::Graph graph = ir::parse_or_throw(dedent(kAllKinds));
  const SentByBlock sent = sent_by_block(graph);
  REQUIRE(sent.size() == 3);
  CHECK(to_string(sent.at("")) == "1 fwd all_reduce over tp, 12 bytes each\n");
  CHECK(to_string(sent.at("layers.0")) ==
        "2 fwd all_gather over tp, 96 bytes each\n1 fwd reduce_scatter over tp, 96 bytes each\n");
  // Each rank has 4 of the 16 rows in all_to_all_v, and sends 3.
  CHECK(to_string(sent.at("layers.1")) ==
        "1 bwd all_reduce over tp, 192 bytes each\n1 bwd all_to_all over tp, 96 bytes each\n"
        "1 bwd all_to_all_v over tp, 96 bytes each\n1 bwd permute over tp, 128 bytes each\n"
        "1 fwd all_gather over dp_shard, tp, 224 bytes each\n");
  CHECK(collectives_by_block(graph, "tp") ==
        std::map<std::string, std::string>{
            {"", "1 fwd all_reduce"},
            {"layers.0", "2 fwd all_gather, 1 fwd reduce_scatter"},
            {"layers.1", "1 bwd all_reduce, 1 bwd all_to_all, 1 bwd all_to_all_v, 1 bwd permute"}});
}

TEST_CASE("block_collectives: lists are compared whatever their order, and alike lines are one") {
  const Sent one = {false, "all_gather", "tp", 96, 1}, two = {true, "permute", "tp", 8, 2};
  Sent less = one;
  less.times = -1;
  CHECK(to_string({one, two, one}) == to_string({two, {false, "all_gather", "tp", 96, 2}}));
  CHECK(to_string({one, two, less}) == to_string({two}));
  CHECK(to_string({one}) != to_string({{false, "all_gather", "tp", 95, 1}}));
}

}  // namespace
}  // namespace sfsdp::testing::block_collectives_test
