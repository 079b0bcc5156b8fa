// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/same_texts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/thread/run_ranks.h"

namespace sfsdp::comm::same_texts_test {
namespace {

// Counts what a rank is sent of other ranks' data.
class CountingGroup final : public Communicator {
 public:
  CountingGroup(std::shared_ptr<Communicator> group, size_t& bytes) : group_(std::move(group)), bytes_(bytes) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  void abort(const std::string& reason) override { group_->abort(reason); }

 protected:
  void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    SFSDP_CHECK(call.kind() == CallKind::AllGather || call.kind() == CallKind::Broadcast, "not counted: ", call.text());
    if (call.kind() == CallKind::AllGather || call.root() != rank())
      bytes_ += out.size() - (call.kind() == CallKind::AllGather ? in.size() : 0);
    group_->run(call, in, out);
  }

 private:
  std::shared_ptr<Communicator> group_;
  size_t& bytes_;
};

struct CountingWorld final : CommWorld {
  CountingWorld(CommWorld& counted, size_t& received) : world(counted), bytes(received) {}
  int rank() const override { return world.rank(); }
  int world_size() const override { return world.world_size(); }
  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<CountingGroup>(world.group(name, ranks), bytes);
  }
  void set_timeout_ms(int64_t timeout_ms) override { world.set_timeout_ms(timeout_ms); }
  std::string_view transport() const override { return world.transport(); }
  void abort(const std::string& reason) override { world.abort(reason); }

  CommWorld& world;
  size_t& bytes;
};

// What each rank is told; "" where all is well.
std::vector<std::string> compare(const std::vector<std::string>& plans, const std::vector<std::string>& programs) {
  std::vector<std::string> said(plans.size());
  testing::run_ranks(static_cast<int>(plans.size()), [&](CommWorld& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const auto explain = [](const std::string& ours, const std::string& theirs) { return ours + " / " + theirs; };
    const RankText texts[] = {{"plans", plans[rank], "expected one plan"},
                              {"programs", programs[rank], "expected one program", explain}};
    try {
      expect_same_texts(world, texts);
    } catch (const UserError& error) {
      said[rank] = error.what();
    }
  });
  return said;
}

TEST_CASE("ranks with the same texts go on, and can compare again") {
  CHECK(compare({"a\nb", "a\nb", "a\nb"}, {"", "", ""}) == std::vector<std::string>(3));
}

TEST_CASE("the first text that differs is told on all ranks: who, where, meaning, advice") {
  const std::string plans =
      "rank 0 and rank 2 have different plans; first difference, line 2:\n    b\n    c\n  expected one plan";
  CHECK(compare({"a\nb", "a\nb", "a\nc"}, {"x", "y", "x"}) == std::vector<std::string>(3, plans));
  const std::string programs =
      "rank 0 and rank 1 have different programs; first difference, line 2:\n    (nothing)\n    y\n  x / x\ny\n"
      "  expected one program";
  CHECK(compare({"a", "a"}, {"x", "x\ny"}) == std::vector<std::string>(2, programs));
}

TEST_CASE("a program of a megabyte that differs on one of 16 ranks goes to that rank alone") {
  constexpr size_t kText = 1 << 20;
  std::vector<size_t> bytes(16);
  testing::run_ranks(16, [&](CommWorld& world) {
    const auto rank = static_cast<size_t>(world.rank());
    CountingWorld counting(world, bytes[rank]);
    std::string program(kText, 'x');
    for (size_t i = 0; i < kText; i += 64) program[i] = '\n';
    if (rank == 11) program.back() = 'y';
    const RankText text = {"programs", program, "expected one program"};
    CHECK_THROWS_AS(expect_same_texts(counting, {&text, 1}), UserError);
  });
  for (size_t r = 0; r < bytes.size(); ++r) CHECK(bytes[r] <= (r == 11 ? kText : 0) + 1000);
}

TEST_CASE("a hash is compared without its text, which is asked for where hashes differ") {
  std::vector<std::string> said(3);
  testing::run_ranks(3, [&](CommWorld& world) {
    size_t bytes = 0;
    CountingWorld counting(world, bytes);
    expect_same_hash(counting, 5, []() -> std::vector<RankText> { throw InternalError("nobody needs a text"); });
    CHECK(bytes == 2 * 16);
    const uint64_t hash = world.rank() == 2 ? 6 : 5;
    const auto texts = [&] {
      return std::vector<RankText>{{"plans", "one", "expected one plan"},
                                   {"programs", concat("program ", hash), "expected one program"}};
    };
    try {
      expect_same_hash(counting, hash, texts);
    } catch (const UserError& error) {
      said[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  CHECK(said == std::vector<std::string>(3,
                                         "rank 0 and rank 2 have different programs; first difference, line 1:\n"
                                         "    program 5\n    program 6\n  expected one program"));
}

TEST_CASE("numbers go with the hash; the first that differs is told on all ranks with both values") {
  testing::run_ranks(3, [](CommWorld& world) {
    const double lr = world.rank() == 2 ? std::nextafter(0.1, 1.0) : 0.1;
    const RankNumber alike[] = {{"step", 7}, {"lr", 0.1}}, other[] = {{"step", 7}, {"lr", lr}};
    expect_same_hash(world, 5, nullptr, alike);
    CHECK_THROWS_WITH_AS(expect_same_hash(world, 5, nullptr, other),
                         "rank 0 and rank 2 have different lr: 0.1 and 0.10000000000000002"
                         "\n  expected the same on all ranks",
                         UserError);
    expect_same_hash(world, 5, nullptr, alike);  // and the group is still of use
  });
}

TEST_CASE("a number of a group is compared among its ranks alone") {
  testing::run_ranks(4, [](CommWorld& world) {
    const int64_t pair = world.rank() / 2, own = world.rank();
    const RankNumber alike[] = {{"samples", 10 + pair, pair}}, other[] = {{"samples", 10 + own, pair, "expected two"}};
    expect_same_hash(world, 5, nullptr, alike);
    CHECK_THROWS_WITH_AS(expect_same_hash(world, 5, nullptr, other),
                         "rank 0 and rank 1 have different samples: 10 and 11\n  expected two", UserError);
  });
}

TEST_CASE("whole numbers are compared as such: those above 2^53 too") {
  testing::run_ranks(2, [](CommWorld& world) {
    const RankNumber step[] = {{"step", (int64_t{1} << 60) + world.rank()}};
    CHECK_THROWS_WITH_AS(expect_same_hash(world, 5, nullptr, step),
                         "rank 0 and rank 1 have different step: 1152921504606846976 and 1152921504606846977"
                         "\n  expected the same on all ranks",
                         UserError);
  });
}

TEST_CASE("a rank that cannot go on says why on all ranks") {
  testing::run_ranks(3, [](CommWorld& world) {
    const std::string failure = world.rank() == 1 ? "its batch is empty" : "";
    CHECK_THROWS_WITH_AS(expect_same_hash(world, world.rank() == 1 ? 0 : 7, nullptr, {}, failure),
                         "rank 1 cannot go on: its batch is empty", UserError);
    expect_same_hash(world, 7, nullptr);  // and the group is still of use
  });
}

}  // namespace
}  // namespace sfsdp::comm::same_texts_test
