// SPDX-License-Identifier: BSD-3-Clause
// comm_suite.h, of what moves between pairs of ranks and in uneven parts.
#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/comm_suite.h"
#include "sfsdp/testing/comm_suite_data.h"

namespace sfsdp::testing {
namespace {

using comm::RankPair;
using comm::ReduceOp;
using ir::DType;
using Counts = std::vector<int64_t>;

constexpr std::byte kUntouched{0x5a};

// Where the data of a test lies: on the heap at odd places, or in a window. Taken once per test.
class Arena {
 public:
  explicit Arena(std::shared_ptr<GrowingMemory> window) : window_(std::move(window)) {}

  std::span<std::byte> take(size_t bytes) {
    if (!window_) {
      auto& memory = heap_.emplace_back(bytes + 3, kUntouched);
      return std::span(memory).subspan(3);
    }
    const size_t begin = std::exchange(used_, used_ + bytes + 7);
    window_->grow(static_cast<int64_t>(used_));
    const std::span<std::byte> span(window_->begin() + begin, bytes);
    std::ranges::fill(span, kUntouched);
    return span;
  }
  std::span<std::byte> take(const Bytes& data) {
    const auto span = take(data.size());
    std::ranges::copy(data, span.begin());
    return span;
  }
  void reset() {
    heap_.clear();
    used_ = 0;
  }

 private:
  std::shared_ptr<GrowingMemory> window_;
  size_t used_ = 0;
  std::vector<Bytes> heap_;
};

// What rank `from` has for rank `to`.
Bytes message(size_t from, size_t to, int64_t bytes) {
  return contribution(static_cast<int>(1000 * from + to), static_cast<size_t>(bytes));
}

void append(Bytes& data, const Bytes& more) { data.insert(data.end(), more.begin(), more.end()); }

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// How many bytes rank i has for rank j.
using CountOf = std::function<int64_t(size_t i, size_t j)>;

void check_all_to_alls(comm::Communicator& group, Arena& arena, const CountOf& count) {
  const auto n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  const int64_t part = count(0, 0);
  Bytes mine, equal, theirs, equal_theirs;
  Counts to, from;
  for (size_t r = 0; r < n; ++r) {
    to.push_back(count(me, r));
    from.push_back(count(r, me));
    append(mine, message(me, r, to.back()));
    append(theirs, message(r, me, from.back()));
    append(equal, message(me, r, part));
    append(equal_theirs, message(r, me, part));
  }
  auto in = arena.take(mine), out = arena.take(theirs.size());
  group.all_to_all_v(in, to, out, from, {"%tokens", "layers.0.experts"});
  check_equal(out, theirs, "all_to_all_v");
  check_equal(in, mine, "input of all_to_all_v");
  in = arena.take(equal), out = arena.take(equal_theirs.size());
  group.all_to_all(in, out, {"%heads", "layers.0"});
  check_equal(out, equal_theirs, "all_to_all");
}

void check_permutes(comm::Communicator& group, Arena& arena, int64_t bytes) {
  const int n = group.size(), me = group.rank();
  std::vector<RankPair> ring, ends = {{n - 1, 0}}, self = {{0, 0}};
  for (int r = 0; r < n; ++r) ring.push_back({r, (r + 1) % n});
  const std::vector<RankPair> swapped = n > 1 ? std::vector<RankPair>{{0, 1}, {1, 0}} : self;
  for (const auto& pairs : {ring, ends, swapped, self, std::vector<RankPair>{}}) {
    const auto in = arena.take(message(static_cast<size_t>(me), 77, bytes));
    const auto out = arena.take(static_cast<size_t>(bytes));
    Bytes expected(static_cast<size_t>(bytes), kUntouched);
    for (const RankPair& pair : pairs)
      if (pair.to == me) expected = message(static_cast<size_t>(pair.from), 77, bytes);
    group.permute(in, out, pairs, {"%kv", "layers.0"});
    check_equal(out, expected, "permute");
  }
}

void check_gathers(comm::Communicator& group, Arena& arena, const Counts& counts) {
  const auto n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  Bytes all;
  std::vector<size_t> begins;
  for (size_t r = 0; r < n; ++r) {
    begins.push_back(all.size());
    append(all, message(r, 1, counts[r]));
  }
  const Bytes mine = message(me, 1, counts[me]);
  auto out = arena.take(all.size());
  group.all_gather_v(arena.take(mine), out, counts, {"%rows", ""});
  check_equal(out, all, "all_gather_v");
  out = arena.take(all.size());
  auto own = out.subspan(begins[me], mine.size());
  std::ranges::copy(mine, own.begin());
  group.all_gather_v(own, out, counts, {"%rows", ""});
  check_equal(out, all, "all_gather_v in place");

  for (int root = 0; root < group.size(); ++root) {
    const bool is_root = root == group.rank();
    out = arena.take(is_root ? all.size() : 0);
    group.gather_v(arena.take(mine), out, counts, root, {"%rows", ""});
    if (is_root) check_equal(out, all, "gather_v");
    if (is_root) {
      own = out.subspan(begins[me], mine.size());
      std::ranges::fill(out, kUntouched);
      std::ranges::copy(mine, own.begin());
    }
    group.gather_v(is_root ? own : arena.take(mine), out, counts, root, {"%rows", ""});
    if (is_root) check_equal(out, all, "gather_v in place");

    const auto whole = is_root ? arena.take(all) : arena.take(0);
    const auto part = arena.take(mine.size());
    group.scatter_v(whole, part, counts, root, {"%rows", ""});
    check_equal(part, mine, "scatter_v");
    own = is_root ? whole.subspan(begins[me], mine.size()) : arena.take(mine.size());
    group.scatter_v(whole, own, counts, root, {"%rows", ""});
    check_equal(own, mine, "scatter_v in place");
    if (is_root) check_equal(whole, all, "input of scatter_v");
  }
}

// `counts`: of elements.
void check_reductions(comm::Communicator& group, Arena& arena, const Counts& counts) {
  const auto n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    const int64_t element = ir::size_in_bytes(dtype);
    Counts bytes;
    size_t begin = 0;
    for (size_t r = 0; r < n; ++r) {
      if (r == me) begin = static_cast<size_t>(sum(bytes));
      bytes.push_back(counts[r] * element);
    }
    const auto whole = static_cast<size_t>(sum(bytes)), own = static_cast<size_t>(bytes[me]);
    const auto in = arena.take(contribution(group.rank(), whole));
    const auto out = arena.take(own);
    const Bytes expected = expected_sum(ranks, whole, begin, own, dtype, ReduceOp::Sum);
    group.reduce_scatter_v(in, out, bytes, dtype, ReduceOp::Sum, {"%g", ""});
    check_equal(out, expected, "reduce_scatter_v");
    check_equal(in, contribution(group.rank(), whole), "input of reduce_scatter_v");
    group.reduce_scatter_v(in, in.subspan(begin, own), bytes, dtype, ReduceOp::Sum, {"%g", ""});
    check_equal(in.subspan(begin, own), expected, "reduce_scatter_v in place");
  }
  // By another formula than that of reduce.h: element i of rank r is (r + 1) (i + 3).
  Counts bytes;
  int64_t first = 0;
  for (size_t r = 0; r < n; ++r) {
    if (r == me) first = sum(bytes) / 8;
    bytes.push_back(counts[r] * 8);
  }
  std::vector<int64_t> mine(static_cast<size_t>(sum(bytes) / 8)), reduced(static_cast<size_t>(counts[me]));
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<int64_t>((me + 1) * (i + 3));
  group.reduce_scatter_v(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(reduced)), bytes, DType::i64,
                         ReduceOp::Sum, {"%g", ""});
  const auto weights = static_cast<int64_t>(n * (n + 1) / 2);
  for (size_t i = 0; i < reduced.size(); ++i)
    SFSDP_CHECK(reduced[i] == weights * (first + static_cast<int64_t>(i) + 3), "element ", i, ": ", reduced[i]);
}

void check_all(comm::Communicator& group, Arena& arena, const CountOf& count) {
  Counts counts;
  for (size_t r = 0; r < static_cast<size_t>(group.size()); ++r) counts.push_back(count(r, r));
  arena.reset();
  check_all_to_alls(group, arena, count);
  check_permutes(group, arena, count(0, 0));
  arena.reset();
  check_gathers(group, arena, counts);
  arena.reset();
  check_reductions(group, arena, counts);
}

// On the heap, in windows of all ranks, in windows of all but the last.
void check_everywhere(comm::CommWorld& world, const std::vector<CountOf>& patterns) {
  const auto group = world.group("ep", all_ranks(world));
  const auto window = world.make_window(int64_t{1} << 30);
  for (const int with_window : {0, world.world_size(), world.world_size() - 1}) {
    Arena arena(world.rank() < with_window ? window : nullptr);
    for (const CountOf& count : patterns) check_all(*group, arena, count);
  }
}

}  // namespace

void check_exchanges(comm::CommWorld& world) {
  const auto last = static_cast<size_t>(world.world_size()) - 1;
  check_everywhere(world, {
                              [](size_t, size_t) { return 0; },
                              [](size_t i, size_t j) { return static_cast<int64_t>(7 * i + 13 * j + 1); },
                              [=](size_t i, size_t) { return i == last ? 9001 : 0; },
                              [=](size_t, size_t j) { return j == last ? 4003 : 0; },
                              [](size_t i, size_t j) { return (i + j) % 2 == 0 ? 5000 : static_cast<int64_t>(j); },
                          });
}

void check_large_exchanges(comm::CommWorld& world) {
  check_everywhere(world, {
                              [](size_t i, size_t j) { return 700'001 + static_cast<int64_t>(100'000 * i + j); },
                              [](size_t i, size_t j) { return (i + j) % 2 == 0 ? 2'500'003 : 0; },
                          });
}

void check_exchange_mismatches(comm::CommWorld& world) {
  const int n = world.world_size(), last = n - 1;
  const bool other = world.rank() == last;
  const auto check = [&](const std::string& name, const std::function<void(comm::Communicator&)>& call,
                         const std::string& first, const std::string& second) {
    const auto group = world.group(name, all_ranks(world));
    const auto error = comm_error_of([&] { call(*group); });
    for (const std::string& part :
         {concat("CommError on rank ", world.rank(), " of ", n, ": "), concat("over ", name, ", sequence 1, "),
          std::string("ranks disagree: "), first, second})
      SFSDP_CHECK(error.find(part) != std::string::npos, "expected ", part, " in: ", error);
    SFSDP_CHECK(comm_error_of([&] {
                  group->barrier({"", ""});
                }).find("ranks disagree") != std::string::npos,
                "a group is not usable after an error");
  };
  const auto ranks = static_cast<size_t>(n), me = static_cast<size_t>(world.rank());
  const Bytes eight(8), whole(8 * ranks);
  Bytes out(8), all(8 * ranks);
  check(
      "kinds",
      [&](comm::Communicator& group) {
        if (other) return group.permute(whole, all, {}, {"%x", ""});
        group.all_to_all(whole, all, {"%x", ""});
      },
      concat("rank 0 calls all_to_all %x of ", 8 * n, " bytes, "),
      concat("rank ", last, " calls permute %x of ", 8 * n, " bytes, no pair"));
  check(
      "pairs",
      [&](comm::Communicator& group) {
        const std::array pairs = {RankPair{0, other ? 1 : 0}};
        group.permute(eight, out, pairs, {"%x", ""});
      },
      "rank 0 calls permute %x of 8 bytes, 0 to 0, ", concat("rank ", last, " calls permute %x of 8 bytes, 0 to 1"));
  Counts counts(ranks, 0);
  counts[other ? 1 : 0] = 8;
  check(
      "counts",
      [&](comm::Communicator& group) {
        group.all_gather_v(std::span(eight).first(static_cast<size_t>(counts[me])), out, counts, {"%x", ""});
      },
      "rank 0 calls all_gather_v %x of 8 bytes, in parts of 8, 0", "all_gather_v %x of 8 bytes, in parts of 0, 8");
  const Counts equal(ranks, 8);
  check(
      "roots",
      [&](comm::Communicator& group) {
        const int root = other ? 1 : 0;
        group.scatter_v(world.rank() == root ? std::span(whole) : std::span(whole).first(0), out, equal, root,
                        {"%x", ""});
      },
      concat("rank 0 calls scatter_v %x of ", 8 * n, " bytes from group rank 0"), "from group rank 1");
  check(
      "tokens",
      [&](comm::Communicator& group) {
        Counts from = equal;
        if (other) from[0] = 6;
        Bytes received(static_cast<size_t>(sum(from)), kUntouched);
        const Bytes before = received;
        try {
          group.all_to_all_v(whole, equal, received, from, {"%x", ""});
        } catch (const CommError&) {
          check_equal(received, before, "output of all_to_all_v that has failed");
          throw;
        }
      },
      concat("rank 0 sends 8 bytes to rank ", last, ", "), "which expects 6 from it");
}

void check_two_threads(comm::CommWorld& world) {
  std::vector<int> ranks = all_ranks(world), reversed = ranks;
  std::ranges::reverse(reversed);
  const std::array groups = {world.group("tp", ranks), world.group("ep", reversed)};
  std::array<std::exception_ptr, 2> failures;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      try {
        Arena arena(nullptr);
        for (size_t round = 0; round < 20; ++round) {
          const size_t base = 100 * t + 1'000 * round;  // below and above what goes by slots, messages and pieces
          check_all(*groups[t], arena, [&](size_t i, size_t j) { return static_cast<int64_t>(base + 3 * i + 5 * j); });
          groups[t]->barrier({"%round", ""});
        }
      } catch (...) {
        failures[t] = std::current_exception();
        world.abort("a thread of the test has failed");  // the other one, and the peers, do not wait
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace sfsdp::testing
