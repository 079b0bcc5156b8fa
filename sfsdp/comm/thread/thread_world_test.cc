// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/thread/thread_world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/comm_suite.h"

namespace sfsdp::comm::thread_world_test {
namespace {

using testing::comm_error_of;
using testing::Mismatch;
using testing::run_ranks;

std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST_CASE("thread: every collective has the bits of sums in rank order") {
  for (const int n : {1, 2, 3, 4, 8}) run_ranks(n, testing::check_collectives);
  run_ranks(3, testing::check_large);
}

TEST_CASE("thread: data may lie anywhere") { run_ranks(3, testing::check_windows); }

TEST_CASE("thread: every exchange brings each rank its parts") {
  for (const int n : {1, 2, 3, 4}) run_ranks(n, testing::check_exchanges);
  run_ranks(3, testing::check_large_exchanges);
}

TEST_CASE("thread: groups are used by threads of their own") {
  for (const int n : {2, 4}) run_ranks(n, testing::check_two_threads);
}

TEST_CASE("thread: 128 ranks reduce together") {
  run_ranks(128, [](CommWorld& world) {
    const auto group = world.group("dp_shard", first_ranks(128));
    std::vector<int64_t> data(300, world.rank());
    group->all_reduce(std::as_writable_bytes(std::span(data)), ir::DType::i64, ReduceOp::Sum, {"%n", ""});
    for (const int64_t x : data) SFSDP_CHECK(x == 128 * 127 / 2, "got ", x);
  });
}

TEST_CASE("thread: groups of some ranks work side by side") {
  for (const int n : {2, 4, 8}) run_ranks(n, testing::check_groups);
}

TEST_CASE("thread: ranks that disagree about a call are named on every rank") {
  for (const auto mismatch : {Mismatch::Kind, Mismatch::Bytes, Mismatch::DType, Mismatch::Op, Mismatch::Name})
    for (const int n : {2, 3, 8}) run_ranks(n, [=](CommWorld& world) { testing::check_mismatch(world, mismatch); });
}

TEST_CASE("thread: ranks that disagree about an exchange are named on every rank") {
  for (const int n : {2, 3, 4}) run_ranks(n, testing::check_exchange_mismatches);
}

TEST_CASE("thread: a rank that does not come is named after the timeout") {
  for (const int n : {2, 3, 8}) run_ranks(n, testing::check_late_peer);
}

TEST_CASE("thread: who waits for a rank that has left does not wait for the timeout") {
  run_ranks(3, [](CommWorld& world) {
    const auto group = world.group("dp_shard", first_ranks(3));
    group->barrier({"", ""});
    if (world.rank() == 1) return;
    const auto error = comm_error_of([&] { group->barrier({"%b", ""}); });
    SFSDP_CHECK(error.find("no answer from rank 1 in ") != std::string::npos, error);
    SFSDP_CHECK(error.find("it has closed its communicators; it finished sequence 1") != std::string::npos, error);
  });
}

TEST_CASE("thread: a rank's own error is what run_ranks throws, not its peers'") {
  const auto body = [](CommWorld& world) {
    const auto group = world.group("dp_shard", first_ranks(4));
    if (world.rank() == 2) throw std::runtime_error("rank 2 has a reason");
    group->barrier({"", ""});
  };
  CHECK_THROWS_WITH_AS(run_ranks(4, body), "rank 2 has a reason", std::runtime_error);
}

TEST_CASE("thread: abort ends waiting calls with the reason, also in groups made later") {
  run_ranks(2, [](CommWorld& world) {
    const auto group = world.group("dp_shard", {0, 1});
    if (world.rank() == 0) return world.abort("loss is nan");
    for (const char* name : {"dp_shard", "tp"}) {
      const auto error = comm_error_of([&] { world.group(name, {0, 1})->barrier({"", ""}); });
      SFSDP_CHECK(error.find("rank 0 aborted: loss is nan") != std::string::npos, error);
    }
    CHECK_THROWS_AS(group->barrier({"", ""}), AbortedError);
  });
}

TEST_CASE("thread: a rank that gives up leaves its memory to those who still read it") {
  // The root of a broadcast copies nothing, so it is the first to wait for the others, and does not wait long. Where they
  // are late even for the call, or done before it gives up, it is tried again.
  constexpr size_t kBytes = 64 << 20;
  const std::vector<char> sent(kBytes, 'a'), untouched(kBytes, 'b');
  std::atomic<int> torn = 0;
  std::atomic<bool> gave_up_while_read = false;
  for (int attempt = 0; attempt < 20 && !gave_up_while_read; ++attempt)
    run_ranks(4, [&](CommWorld& world) {
      const auto group = world.group("dp_shard", first_ranks(4));
      std::vector<char> data(kBytes, world.rank() == 0 ? 'a' : 'b');
      bool gave_up = false;
      group->barrier({"", ""});
      if (world.rank() == 0) world.set_timeout_ms(3);
      try {
        group->broadcast(std::as_writable_bytes(std::span(data)), 0, {"%w", ""});
      } catch (const CommError&) {
        gave_up = true;
      }
      if (world.rank() == 0) {
        std::ranges::fill(data, 'c');  // what freed memory may hold next
        return;
      }
      if (data != sent && data != untouched) ++torn;
      if (gave_up && data == sent) gave_up_while_read = true;
    });
  CHECK(torn == 0);
}

TEST_CASE("thread: what a rank keeps for itself in an all_to_all_v is compared too, by all ranks") {
  run_ranks(2, [](CommWorld& world) {
    const auto group = world.group("dp_shard", {0, 1});
    std::array<int64_t, 2> from = {2, 2};
    if (world.rank() == 1) from[1] = 1;
    const std::vector<std::byte> in(4);
    std::vector<std::byte> out(static_cast<size_t>(from[0] + from[1]));
    CHECK_THROWS_WITH_AS(group->all_to_all_v(in, std::array<int64_t, 2>{2, 2}, out, from, {"%rows", ""}),
                         doctest::Contains("rank 1 sends 2 bytes to rank 1, which expects 1 from it"), CommError);
  });
}

TEST_CASE("thread: sizes that do not fit are refused before any rank waits") {
  run_ranks(2, [](CommWorld& world) {
    const auto group = world.group("dp_shard", {0, 1});
    std::vector<std::byte> three(3), four(4);
    CHECK_THROWS_AS(group->all_gather(three, four, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->reduce_scatter(four, three, ir::DType::f32, ReduceOp::Sum, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_reduce(three, ir::DType::f32, ReduceOp::Sum, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_reduce(four, ir::DType::u8, ReduceOp::Sum, {"", ""}), UserError);
    std::vector<std::byte> other(4);
    const std::array<int64_t, 2> fits = {2, 2}, short_by_one = {2, 1}, negative = {5, -1};
    CHECK_THROWS_AS(group->all_to_all(three, three, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_to_all(four, four, {"", ""}), InternalError);  // in place
    CHECK_THROWS_AS(group->all_to_all_v(four, fits, other, short_by_one, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_to_all_v(four, negative, other, negative, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_gather_v(three, four, fits, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->all_gather_v(four, other, std::span(fits).first(1), {"", ""}), InternalError);
    CHECK_THROWS_AS(group->reduce_scatter_v(four, three, fits, ir::DType::f32, ReduceOp::Sum, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->gather_v(three, four, fits, 2, {"", ""}), InternalError);
    CHECK_THROWS_AS(group->scatter_v(four, four, fits, 0, {"", ""}), InternalError);
    const auto part = [&](size_t begin) { return std::span(four).subspan(begin, 2); };
    const auto other_part = static_cast<size_t>(2 - 2 * world.rank());
    for (const size_t begin : {size_t{1}, other_part}) {  // over the output, but not its own part of it
      CHECK_THROWS_AS(group->all_gather(part(begin), four, {"", ""}), InternalError);
      CHECK_THROWS_AS(group->all_gather_v(part(begin), four, fits, {"", ""}), InternalError);
    }
    std::vector<std::byte> eight(8);
    CHECK_THROWS_AS(
        group->reduce_scatter(eight, std::span(eight).subspan(2, 4), ir::DType::f32, ReduceOp::Sum, {"", ""}),
        InternalError);
    for (const std::array<RankPair, 2> pairs :
         {std::array{RankPair{0, 1}, RankPair{0, 0}}, std::array{RankPair{0, 1}, RankPair{1, 1}},
          std::array{RankPair{0, 1}, RankPair{1, 2}}})
      CHECK_THROWS_AS(group->permute(four, other, pairs, {"", ""}), InternalError);
    const Call described = all_gather_call(2, 4, 2, {"%w", ""});
    CHECK_THROWS_AS(group->run(described, three, four), InternalError);
    CHECK_THROWS_AS(group->run(all_gather_call(2, 6, 3, {"%w", ""}), std::span(four).first(2), other), InternalError);
    group->barrier({"", ""});
  });
}

}  // namespace
}  // namespace sfsdp::comm::thread_world_test
