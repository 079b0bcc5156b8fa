// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace sfsdp::cost::collective_cost_test {
namespace {

// Seconds and bytes/s as small whole numbers; 8 devices a node.
Machine small_machine() {
  Machine m;
  m.devices_per_node = 8;
  m.node = {.bandwidth = 100, .base_latency = 5, .hop_latency = 2};
  m.network = {.bandwidth = 10, .base_latency = 50, .hop_latency = 7};
  return m;
}

TEST_CASE("collective cost: large ones are a ring of Simple, latency by hops, all links of a node to the network") {
  const Machine m = small_machine();
  CHECK(collective_seconds("all_gather", 8e5, {1, 1}, m) == 0);
  CHECK(collective_seconds("all_gather", 8e5, {8, 1}, m) == doctest::Approx(5 + 7 * 2 + 8e5 * 7 / 8.0 / 100));
  CHECK(collective_seconds("all_reduce", 8e5, {8, 1}, m) == doctest::Approx(5 + 14 * 2 + 2 * 8e5 * 7 / 8.0 / 100));
  // 4 nodes of 8: the network's 8 links together carry 31/32 of the bytes, as every link inside does
  CHECK(collective_seconds("reduce_scatter", 8e5, {32, 1}, m) ==
        doctest::Approx(50 + 28 * 2 + 3 * 7 + 8e5 * 31 / 32.0 / (8 * 10)));
  // one rank of each node: nothing passes inside
  CHECK(collective_seconds("all_gather", 8e5, {4, 8}, m) == doctest::Approx(50 + 3 * 7 + 8e5 * 0.75 / 10));
  // a broadcast passes all of the bytes from rank to rank
  CHECK(collective_seconds("broadcast", 8e5, {16, 1}, m) == doctest::Approx(50 + 14 * 2 + 7 + 8e5 / (8 * 10)));
}

TEST_CASE("collective cost: a curve of bus bandwidth is what nccl-tests would print, by kind and number of nodes") {
  Machine m = small_machine();
  m.network.congestion = 0.5;
  m.network.bus["all_gather"] = BusBandwidth({{2, 64}, {8, 32}});
  m.network.bus["all_reduce"] = BusBandwidth({{2, 160}});
  m.node.bus["all_reduce"] = BusBandwidth({{4, 100}, {8, 140}});
  const double bytes = 1e9;
  const auto bus = [&](const char* kind, GroupShape group, double passes) {
    const CollectiveCost cost = collective_cost(kind, bytes, group, m);
    const auto n = static_cast<double>(group.size);
    return passes * bytes * (n - 1) / n / cost.transfer();
  };
  CHECK(bus("all_gather", {16, 1}, 1) == doctest::Approx(64));
  CHECK(bus("all_gather", {32, 1}, 1) == doctest::Approx(48));
  CHECK(bus("all_gather", {512, 1}, 1) == doctest::Approx(32));
  CHECK(bus("all_reduce", {16, 1}, 2) == doctest::Approx(160));  // above the node's 100: its links keep up
  CHECK(bus("all_reduce", {8, 1}, 2) == doctest::Approx(140));
  CHECK(bus("all_reduce", {4, 1}, 2) == doctest::Approx(100));
  // one rank of each node has one of the node's 8 links to itself
  CHECK(bus("all_gather", {2, 8}, 1) == doctest::Approx(64 / 8.0));
  // without a curve as before: 8 links of 10, less for congestion
  CHECK(bus("reduce_scatter", {16, 1}, 1) == doctest::Approx(80 / 1.5));
  // a curve that begins with one node is that node's too
  m.network.bus["all_gather"] = BusBandwidth({{1, 77}, {2, 64}});
  CHECK(bus("all_gather", {8, 1}, 1) == doctest::Approx(77));
  CHECK(bus("all_gather", {4, 1}, 1) == doctest::Approx(100));  // not of half a node
}

TEST_CASE("collective cost: measured points hold for their numbers of ranks and nodes") {
  Machine m = small_machine();
  m.measured.collectives = {
      {"all_gather", 16, 100, 3, 2}, {"all_gather", 16, 1e6, 300, 2}, {"all_gather", 8, 100, 1, 1}};
  const CollectiveCost cost = collective_cost("all_gather", 1e6, {16, 1}, m);
  CHECK(cost.latency == 3);
  CHECK(cost.node == 0);
  CHECK(cost.network == 297);
  CHECK(collective_cost("all_gather", 200, {8, 1}, m).node == 1);             // 2 in all, 1 of it latency
  CHECK(collective_seconds("all_gather", 1e6, {16, 8}, m) > 1e6 / 10 * 0.9);  // 16 nodes: the formula
  CHECK(collective_seconds("reduce_scatter", 1e6, {16, 1}, m) == doctest::Approx(50 + 14 * 2 + 7 + 1e6 * 15 / 16 / 80));
}

TEST_CASE("collective cost: of an all_to_all the part of each rank goes straight to it") {
  const Machine m = small_machine();  // nodes of 8, 100 bytes a second inside, 10 between them for each device
  CHECK(collective_cost("all_to_all", 8e6, {8, 1}, m).node == doctest::Approx(8e6 * 7 / 8 / 100));
  CHECK(collective_cost("all_to_all", 8e6, {16, 1}, m).network == doctest::Approx(8e6 * 8 / 16 / 10));
  CHECK(collective_cost("all_to_all", 8e6, {4, 8}, m).network == doctest::Approx(8e6 * 3 / 4 / 10));
  CHECK(collective_cost("all_to_all", 8e6, {4, 8}, m).node == 0);
  CHECK(collective_seconds("all_to_all", 8e6, {1, 1}, m) == 0);
}

// All of the bytes, over one link: inside a node, or where some ranks' neighbours are in another one the network's.
TEST_CASE("collective cost: of a permute all goes to one rank, however many there are") {
  const Machine m = small_machine();
  for (const int64_t ranks : {2, 8}) {
    CHECK(collective_cost("permute", 8e6, {ranks, 1}, m).node == doctest::Approx(8e6 / 100));
    CHECK(collective_cost("permute", 8e6, {ranks, 1}, m).network == 0);
  }
  for (const GroupShape& group : {GroupShape{16, 1}, GroupShape{4, 8}}) {
    CHECK(collective_cost("permute", 8e6, group, m).network == doctest::Approx(8e6 / 10));
    CHECK(collective_cost("permute", 8e6, group, m).node == 0);
  }
  CHECK(collective_cost("permute", 8e6, {16, 1}, m).latency == collective_cost("permute", 8e6, {64, 1}, m).latency);
  CHECK(collective_seconds("permute", 8e6, {1, 1}, m) == 0);
}

TEST_CASE("collective cost: small ones take LL's latency and half of the bandwidth") {
  const Machine m = small_machine();
  CHECK(collective_seconds("all_gather", 8, {8, 1}, m) ==
        doctest::Approx(0.8 * 5 + 0.18 * 7 * 2 + 8 * 7 / 8.0 / (0.5 * 100)));
}

TEST_CASE("collective cost: a tree reduces over many nodes in fewer steps, a ring in fewer bytes") {
  const Machine m = small_machine();
  const GroupShape one_of_each_node = {64, 8};
  CHECK(collective_seconds("all_reduce", 1e-6, one_of_each_node, m) ==
        doctest::Approx(0.8 * 50 + 0.18 * 2 * 6 * 7));  // log2 of 64 nodes, up and down
  CHECK(collective_seconds("all_reduce", 1e9, one_of_each_node, m) ==
        doctest::Approx(2 * 1e9 * 63 / 64 / 10).epsilon(1e-5));
}

TEST_CASE("collective cost: congestion takes a share of the network per doubling of nodes") {
  Machine m = small_machine();
  m.network.congestion = 0.5;
  CHECK(collective_seconds("all_gather", 1e9, {8, 1}, m) ==
        collective_seconds("all_gather", 1e9, {8, 1}, small_machine()));
  CHECK(collective_seconds("all_gather", 1e9, {64, 1}, m) ==
        doctest::Approx(1e9 * 63 / 64 / (8 * 10 / (1 + 0.5 * 3))).epsilon(1e-5));
}

TEST_CASE("collective cost: more bytes and more ranks never cost less, and there is no jump between sizes") {
  Machine m = load_machine(testing::source_dir() + "/machines/dgx_h100.toml");
  m.node.bus.clear();  // 8 ranks that reduce in the switch are faster than 4 that do not
  m.network.bus.clear();
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"})
    for (const int64_t stride : {1, 2, 8}) {
      double fewer_ranks[100] = {};
      for (int64_t ranks = 1; ranks <= 1024; ranks = ranks < 20 ? ranks + 1 : 2 * ranks) {
        double before = 0;
        int size = 0;
        for (double bytes = 64; bytes < 16e9; bytes *= 1.3, ++size) {
          CAPTURE(kind);
          CAPTURE(stride);
          CAPTURE(ranks);
          CAPTURE(bytes);
          const double seconds = collective_seconds(kind, bytes, {ranks, stride}, m);
          CHECK(seconds >= before);
          // 1.3 times the bytes take at most 1.3 times as long: time is concave, bandwidth rises with the message
          if (before > 0) CHECK(seconds <= 1.3 * before * (1 + 1e-12));
          CHECK(seconds >= fewer_ranks[size]);
          CHECK(collective_seconds(kind, bytes * (1 + 1e-9), {ranks, stride}, m) ==
                doctest::Approx(seconds).epsilon(1e-8));
          before = fewer_ranks[size] = seconds;
        }
      }
    }
}

TEST_CASE("collective cost: what a kernel loses beside a collective is the link's") {
  Machine m = small_machine();
  m.node.overlap_slowdown = 0.1;
  m.network.overlap_slowdown = 0.05;
  CHECK(overlap_slowdown({1, 1}, m) == 1);
  CHECK(overlap_slowdown({8, 1}, m) == 1.1);
  CHECK(overlap_slowdown({16, 1}, m) == 1.05);
  CHECK(overlap_slowdown({2, 8}, m) == 1.05);
}

}  // namespace
}  // namespace sfsdp::cost::collective_cost_test
