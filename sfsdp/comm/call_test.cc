// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/call.h"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace sfsdp::comm::call_test {
namespace {

const CallInfo kInfo = {"%x", "layers.0"};

TEST_CASE("call: a text says all that ranks must agree on") {
  const std::vector<int64_t> counts = {8, 0, 4};
  const std::array pairs = {RankPair{0, 1}, RankPair{2, 0}};
  CHECK(all_gather_call(8, 24, 3, kInfo).text() == "all_gather %x of 24 bytes");
  CHECK(reduce_scatter_call(24, 8, 3, ir::DType::f32, ReduceOp::Sum, kInfo).text() ==
        "reduce_scatter %x of 24 bytes, f32 sum");
  CHECK(all_reduce_call(8, ir::DType::bf16, ReduceOp::Max, kInfo).text() == "all_reduce %x of 8 bytes, bf16 max");
  CHECK(broadcast_call(8, 2, 3, kInfo).text() == "broadcast %x of 8 bytes from group rank 2");
  CHECK(barrier_call({"", ""}).text() == "barrier");
  CHECK(all_to_all_call(24, 24, 3, kInfo).text() == "all_to_all %x of 24 bytes");
  CHECK(all_to_all_v_call(counts, counts, 3, kInfo).text() == "all_to_all_v %x");
  CHECK(permute_call(8, pairs, 3, kInfo).text() == "permute %x of 8 bytes, 0 to 1, 2 to 0");
  CHECK(all_gather_v_call(counts, 3, kInfo).text() == "all_gather_v %x of 12 bytes, in parts of 8, 0, 4");
  CHECK(reduce_scatter_v_call(counts, 3, ir::DType::f32, ReduceOp::Sum, kInfo).text() ==
        "reduce_scatter_v %x of 12 bytes, f32 sum, in parts of 8, 0, 4");
  CHECK(gather_v_call(counts, 1, 3, kInfo).text() == "gather_v %x of 12 bytes to group rank 1, in parts of 8, 0, 4");
  CHECK(scatter_v_call(counts, 1, 3, kInfo).text() ==
        "scatter_v %x of 12 bytes from group rank 1, in parts of 8, 0, 4");
}

TEST_CASE("call: counts that differ far down a long list are other calls, with other texts") {
  std::vector<int64_t> counts(100, 4);
  std::set<std::string> texts;
  std::set<uint64_t> hashes;
  for (const size_t r : {0, 7, 8, 99}) {
    counts[r] += 4;
    const Call call = all_gather_v_call(counts, 100, kInfo);
    CHECK(call.text().size() < 150);
    texts.insert(call.text());
    hashes.insert(call.hash());
    counts[r] -= 4;
  }
  CHECK(texts.size() == 4);
  CHECK(hashes.size() == 4);
}

TEST_CASE("call: the parts of an exchange lie where the other rank expects them") {
  const std::vector<int64_t> to = {1, 2, 3}, from = {4, 2, 5};
  const Call call = all_to_all_v_call(to, from, 3, kInfo);
  CHECK(call.bytes() == 11);
  CHECK(call.sent(1, 2) == Range{3, 3});
  CHECK(call.received(2, 1) == Range{6, 5});
  CHECK(call.counts(3) == std::vector<int64_t>{1, 2, 3, 4, 2, 5});
  const Call gather = gather_v_call(from, 2, 3, kInfo);
  CHECK(gather.sent(1, 2) == Range{0, 2});
  CHECK(gather.sent(1, 0) == Range{});
  CHECK(gather.received(1, 2) == Range{4, 2});
  CHECK(gather.received(1, 0) == Range{});
}

TEST_CASE("call: counts that do not fit are said with both numbers, in global ranks") {
  const CallSite site = {"ep", {4, 6}, 0, 8};
  const std::vector<int64_t> a = {1, 2, 1, 9}, b = {8, 4, 2, 4};
  std::vector<std::span<const int64_t>> rows = {a, b};
  CHECK(counts_disagreement(site, rows)
            .starts_with("ranks disagree: rank 6 sends 8 bytes to rank 4, which expects 9 from it; "));
  const std::vector<int64_t> good = {9, 4, 2, 4};
  rows[1] = good;
  CHECK(counts_disagreement(site, rows).empty());
}

}  // namespace
}  // namespace sfsdp::comm::call_test
