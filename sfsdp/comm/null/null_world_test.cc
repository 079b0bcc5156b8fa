// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/null/null_world.h"

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"

namespace sfsdp::comm::null_world_test {
namespace {

TEST_CASE("null: a rank of 1024 sees its own data in every place") {
  const auto world = make_null_world(1024, 3);
  std::vector<int> ranks(1024);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->group("dp_shard", ranks);
  CHECK(group->rank() == 3);
  CHECK(group->size() == 1024);

  const std::vector<float> in = {1, 2};
  std::vector<float> out(2048);
  group->all_gather(std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)), {"%w", ""});
  for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == in[i % 2]);

  std::iota(out.begin(), out.end(), 0.0F);
  std::vector<float> shard(2);
  group->reduce_scatter(std::as_bytes(std::span(out)), std::as_writable_bytes(std::span(shard)), ir::DType::f32,
                        ReduceOp::Sum, {"%g", ""});
  CHECK(shard == std::vector<float>{6, 7});
}

TEST_CASE("null: what others would send is this rank's own, cut or followed by zeros") {
  const auto world = make_null_world(3, 1);
  const auto group = world->group("ep", {0, 1, 2});
  const auto bytes = [](const std::string& text) {
    const auto view = std::as_bytes(std::span(text));
    return std::vector<std::byte>(view.begin(), view.end());
  };
  std::vector<std::byte> out(6, std::byte{'?'});
  const auto expect = [&](const std::string& text) { CHECK(out == bytes(text)); };
  using std::string_literals::operator""s;
  const std::vector<int64_t> counts = {1, 2, 3};
  group->all_to_all(bytes("aabbcc"), out, {"%t", ""});
  expect("bbbbbb");
  group->all_to_all_v(bytes("abbccc"), counts, out, counts, {"%t", ""});
  expect("bbbbb\0"s);
  group->all_gather_v(bytes("de"), out, counts, {"%t", ""});
  expect("ddede\0"s);
  group->gather_v(bytes("fg"), out, counts, 1, {"%t", ""});
  expect("ffgfg\0"s);
  const std::array pairs = {RankPair{0, 1}};
  group->permute(bytes("hijklm"), out, pairs, {"%t", ""});
  expect("hijklm");
  group->permute(bytes("aaaaaa"), out, std::span(pairs).first(0), {"%t", ""});
  expect("hijklm");
  out.resize(2);
  group->scatter_v(bytes("abbccc"), out, counts, 1, {"%t", ""});
  expect("bb");
  group->scatter_v({}, out, counts, 0, {"%t", ""});
  expect("\0\0"s);
  group->broadcast(out, 0, {"%t", ""});
  expect("\0\0"s);
}

TEST_CASE("null: abort ends later calls") {
  const auto world = make_null_world(2);
  const auto group = world->group("dp_shard", {0, 1});
  world->abort("enough");
  CHECK_THROWS_AS(group->barrier({"", ""}), CommError);
}

}  // namespace
}  // namespace sfsdp::comm::null_world_test
