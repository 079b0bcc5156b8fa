// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/comm_suite.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/comm_suite_data.h"

namespace sfsdp::testing {
namespace {

using comm::ReduceOp;
using ir::DType;

constexpr std::array kDTypes = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32};
constexpr std::array kOps = {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min};
constexpr std::array<size_t, 4> kCounts = {0, 1, 7, 1000};

void check_moves(comm::Communicator& group, const std::vector<int>& ranks, size_t bytes) {
  const int me = ranks[static_cast<size_t>(group.rank())];
  const Bytes mine = contribution(me, bytes);
  Bytes all(bytes * ranks.size()), expected;
  for (const int r : ranks) {
    const Bytes theirs = contribution(r, bytes);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  group.all_gather(mine, all, {"%w.full", "layers.0"});
  check_equal(all, expected, "all_gather");

  // in place: a rank's part lies in the output already
  Bytes in_place(bytes * ranks.size());
  const auto own = std::span(in_place).subspan(static_cast<size_t>(group.rank()) * bytes, bytes);
  std::copy(mine.begin(), mine.end(), own.begin());
  group.all_gather(own, in_place, {"%w.full", "layers.1"});
  check_equal(in_place, expected, "all_gather in place");

  for (int root = 0; root < group.size(); ++root) {
    Bytes data = mine;
    group.broadcast(data, root, {"%seed", ""});
    check_equal(data, contribution(ranks[static_cast<size_t>(root)], bytes), "broadcast");
  }
  group.barrier({"", ""});
}

void check_sums(comm::Communicator& group, const std::vector<int>& ranks, size_t count, DType dtype, ReduceOp op) {
  const auto me = static_cast<size_t>(group.rank());
  const size_t chunk = count * static_cast<size_t>(ir::size_in_bytes(dtype)), whole = chunk * ranks.size();
  const std::string what = concat(ir::to_string(dtype), " of ", count);

  const Bytes in = contribution(ranks[me], whole);
  Bytes out(chunk);
  group.reduce_scatter(in, out, dtype, op, {"%w.grad", "layers.0"});
  check_equal(out, expected_sum(ranks, whole, me * chunk, chunk, dtype, op), "reduce_scatter " + what);
  check_equal(in, contribution(ranks[me], whole), "input of reduce_scatter " + what);

  Bytes data = contribution(ranks[me], chunk);
  group.all_reduce(data, dtype, op, {"%norm", ""});
  check_equal(data, expected_sum(ranks, chunk, 0, chunk, dtype, op), "all_reduce " + what);
}

}  // namespace

void check_collectives(comm::CommWorld& world) {
  const auto ranks = all_ranks(world);
  const auto group = world.group("world", ranks);
  SFSDP_CHECK(group->rank() == world.rank() && group->size() == world.world_size(), "group of all");
  for (const size_t count : kCounts) {
    check_moves(*group, ranks, count);
    for (const DType dtype : kDTypes)
      for (const ReduceOp op : kOps) check_sums(*group, ranks, count, dtype, op);
  }
}

void check_large(comm::CommWorld& world) {
  const auto ranks = all_ranks(world);
  const auto group = world.group("world", ranks);
  constexpr size_t kElements = 1'500'001;  // 6 MB of f32, no multiple of anything
  check_moves(*group, ranks, kElements);
  check_sums(*group, ranks, kElements, DType::f32, ReduceOp::Sum);
  check_sums(*group, ranks, kElements, DType::bf16, ReduceOp::Sum);
}

void check_windows(comm::CommWorld& world) {
  const auto ranks = all_ranks(world);
  const auto group = world.group("world", ranks);
  const size_t n = ranks.size(), me = static_cast<size_t>(group->rank());
  const auto window = world.make_window(int64_t{1} << 30);
  Bytes elsewhere;
  for (const size_t with_window : {n, n - 1, size_t{0}})
    for (const size_t count : {1000, 10'007, 300'000}) {
      // Ranks use other places of their windows; what the last test left lies around the data.
      const size_t chunk = 4 * count, whole = n * chunk, begin = 64 * me + 16 * with_window;
      std::byte* place = nullptr;
      if (window && me < with_window) {
        window->grow(static_cast<int64_t>(begin + 2 * whole + chunk));
        place = window->begin() + begin;
      } else {
        elsewhere.resize(2 * whole + chunk);
        place = elsewhere.data();
      }
      const std::span<std::byte> in(place, whole), out(place + whole, chunk), all(place + whole + chunk, whole);
      const Bytes mine = contribution(ranks[me], whole);
      const std::string what = concat(" of ", count, ", windows of ", with_window, " ranks");
      std::ranges::copy(mine, in.begin());
      for (const DType dtype : {DType::f32, DType::bf16}) {
        group->reduce_scatter(in, out, dtype, ReduceOp::Sum, {"%g.rs", ""});
        check_equal(out, expected_sum(ranks, whole, me * chunk, chunk, dtype, ReduceOp::Sum), "reduce_scatter" + what);
      }
      check_equal(in, mine, "input of reduce_scatter" + what);
      Bytes expected;
      for (const int r : ranks) {
        const Bytes part = slice(contribution(r, whole), 0, chunk);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      group->all_gather(in.first(chunk), all, {"%w.full", ""});
      check_equal(all, expected, "all_gather" + what);
      const auto own = all.subspan(me * chunk, chunk);
      std::ranges::fill(all, std::byte{7});
      std::ranges::copy(in.first(chunk), own.begin());
      group->all_gather(own, all, {"%w.full", ""});
      check_equal(all, expected, "all_gather in place" + what);
      group->all_reduce(in, DType::f32, ReduceOp::Sum, {"%n", ""});
      check_equal(in, expected_sum(ranks, whole, 0, whole, DType::f32, ReduceOp::Sum), "all_reduce" + what);
      std::ranges::copy(mine, in.begin());
      group->broadcast(in, static_cast<int>(n) - 1, {"%b", ""});
      check_equal(in, contribution(ranks[n - 1], whole), "broadcast" + what);
    }
}

void check_groups(comm::CommWorld& world) {
  SFSDP_CHECK(world.world_size() % 2 == 0, world.world_size(), " ranks");
  std::vector<int> shard, replicate;  // neighbours, in reverse; every second rank
  const int pair = world.rank() / 2 * 2;
  shard = {pair + 1, pair};
  for (int r = world.rank() % 2; r < world.world_size(); r += 2) replicate.push_back(r);
  const auto shard_group = world.group("dp_shard", shard);
  const auto replicate_group = world.group("dp_replicate", replicate);
  SFSDP_CHECK(shard_group->name() == "dp_shard" && shard_group->rank() == 1 - world.rank() % 2,
              "rank in reversed group");
  for (int repeat = 0; repeat < 3; ++repeat) {
    check_moves(*shard_group, shard, 100);
    check_sums(*replicate_group, replicate, 100, DType::f32, ReduceOp::Sum);
    check_sums(*shard_group, shard, 100, DType::bf16, ReduceOp::Sum);
  }
  SFSDP_CHECK(world.group("dp_shard", shard) == shard_group, "a group is made once");
}

std::string comm_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  throw InternalError("expected a CommError, got none");
}

void check_mismatch(comm::CommWorld& world, Mismatch mismatch) {
  const auto group = world.group("dp_shard", all_ranks(world));
  group->barrier({"%before", ""});
  const int last = world.world_size() - 1;
  const bool other = world.rank() == last;
  Bytes data(other && mismatch == Mismatch::Bytes ? 128 : 64);
  const auto error = comm_error_of([&] {
    if (other && mismatch == Mismatch::Kind) return group->broadcast(data, 0, {"%n", ""});
    group->all_reduce(data, other && mismatch == Mismatch::DType ? DType::bf16 : DType::f32,
                      other && mismatch == Mismatch::Op ? ReduceOp::Max : ReduceOp::Sum,
                      {other && mismatch == Mismatch::Name ? "%m" : "%n", ""});
  });
  const auto expect = [&](const std::string& part) {
    SFSDP_CHECK(error.find(part) != std::string::npos, "expected ", part, " in: ", error);
  };
  expect(concat("CommError on rank ", world.rank(), " of ", world.world_size(), ": "));
  expect("over dp_shard, sequence 2, ");
  expect("ranks disagree: rank 0 calls all_reduce %n of 64 bytes, f32 sum, ");
  expect(concat("rank ", last, " calls "));
}

void check_late_mismatch(comm::CommWorld& world, uint64_t same) {
  const int last = world.world_size() - 1;
  const comm::CallInfo info = {world.rank() == last ? "%m" : "%n", ""};
  Bytes data(64);
  const auto check = [&](const std::string& name, const std::function<void(comm::Communicator&)>& call,
                         const std::vector<std::string>& parts) {
    const auto group = world.group(name, all_ranks(world));
    for (uint64_t i = 0; i < same; ++i) group->barrier({"%before", ""});
    const std::string error = comm_error_of([&] { call(*group); });
    for (const std::string& part : parts)
      SFSDP_CHECK(error.find(part) != std::string::npos, "expected ", part, " in: ", error);
  };
  check("dp_shard", [&](comm::Communicator& group) { group.all_reduce(data, DType::f32, ReduceOp::Sum, info); },
        {concat(", sequence ", same + 1, ", "), "ranks disagree: rank ", " calls all_reduce %n of 64 bytes, f32 sum, ",
         concat("rank ", last, " calls all_reduce %m of 64 bytes, f32 sum; every rank")});
  check("dp_replicate",
        [&](comm::Communicator& group) {
          group.broadcast(data, 0, info);
          group.barrier({"%after", ""});  // where a root finds out that has sent and gone on
        },
        {"ranks disagree: rank "});
}

void check_late_peer(comm::CommWorld& world) {
  const int last = world.world_size() - 1;
  const auto elsewhere = world.group("late", all_ranks(world));
  const std::vector<int64_t> counts(static_cast<size_t>(world.world_size()), 1);
  Bytes data(64), in(counts.size()), out(counts.size());
  const comm::CallInfo info = {"%w.rs", "layers.3"};
  const auto check = [&](const std::string& name, const std::string& words,
                         const std::function<void(comm::Communicator&)>& call) {
    const auto group = world.group(name, all_ranks(world));
    for (int i = 0; i < 2; ++i) group->barrier({"%ok", ""});
    if (world.rank() != last) {
      world.set_timeout_ms(200);
      const auto error = comm_error_of([&] { call(*group); });
      const std::string expected = concat("CommError on rank ", world.rank(), " of ", world.world_size(), ": ", words,
                                          " bytes at layers.3\n  no answer from rank ", last, " in ");
      SFSDP_CHECK(error.starts_with(expected), "expected ", expected, " ..., got ", error);
      SFSDP_CHECK(error.find("; it finished sequence 2, all others 2; read rank ") != std::string::npos, error);
      world.set_timeout_ms(60000);
    }
    elsewhere->barrier({"%late", ""});  // where the late one waits until the others have given up
  };
  check("dp_shard", "all_reduce %w.rs over dp_shard, sequence 3, 64",
        [&](comm::Communicator& group) { group.all_reduce(data, DType::f32, ReduceOp::Sum, info); });
  check("ep", concat("all_to_all_v %w.rs over ep, sequence 3, ", counts.size()),
        [&](comm::Communicator& group) { group.all_to_all_v(in, counts, out, counts, info); });
}

}  // namespace sfsdp::testing
