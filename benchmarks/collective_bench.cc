// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/collective_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sfsdp/base/growing_memory.h"

namespace {

using namespace sfsdp;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 9;

struct Times {
  double median, least, most;  // seconds
};

// What the slowest rank takes, each round.
Times measure(comm::Communicator& group, int calls, const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    group.barrier({"%begin", ""});
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    double mine = std::chrono::duration<double>(Clock::now() - begin).count() / calls;
    group.all_reduce(std::as_writable_bytes(std::span(&mine, 1)), ir::DType::f64, comm::ReduceOp::Max, {"%time", ""});
    if (round > 0) seconds.push_back(mine);  // the first one touches pages
  }
  std::ranges::sort(seconds);
  return {seconds[kRounds / 2], seconds.front(), seconds.back()};
}

void print_latency(int rank, const char* what, const Times& t) {
  if (rank == 0) std::printf("  %-34s %8.1f us  (%.1f to %.1f)\n", what, 1e6 * t.median, 1e6 * t.least, 1e6 * t.most);
}

void print_rate(int rank, const char* what, size_t mib, const Times& t, double moved_bytes) {
  if (rank != 0) return;
  std::printf("  %-30s %3zu MiB %8.2f ms  (%.2f to %.2f), %5.1f GB/s\n", what, mib, 1e3 * t.median, 1e3 * t.least,
              1e3 * t.most, 1e-9 * moved_bytes / t.median);
  std::fflush(stdout);
}

void measure_large(comm::Communicator& group, GrowingMemory& memory, const char* where, size_t mib) {
  const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  const size_t bytes = (mib << 20) / (64 * n) * (64 * n), chunk = bytes / n;
  memory.grow(static_cast<int64_t>(2 * bytes));
  const std::span whole(memory.begin(), bytes), other(memory.begin() + bytes, bytes);
  const auto b = static_cast<double>(bytes), c = static_cast<double>(chunk);
  const auto name = [&](const char* what) { return std::string(what) + where; };
  const auto own = whole.subspan(me * chunk, chunk);
  print_rate(group.rank(), name("all_gather, ").c_str(), mib,
             measure(group, 3,
                     [&] {
                       group.all_gather(own, other, {"%w", ""});
                     }),
             2 * b);
  print_rate(group.rank(), name("reduce_scatter, ").c_str(), mib,
             measure(group, 3,
                     [&] {
                       group.reduce_scatter(whole, other.first(chunk), ir::DType::f32, comm::ReduceOp::Sum, {"%g", ""});
                     }),
             b + c);
  print_rate(group.rank(), name("all_reduce, ").c_str(), mib,
             measure(group, 3,
                     [&] {
                       group.all_reduce(whole, ir::DType::f32, comm::ReduceOp::Sum, {"%n", ""});
                     }),
             2 * b + 2 * (b - c));
}

}  // namespace

void measure_collectives(comm::CommWorld& world) {
  const auto group = world.all_ranks("bench");
  const int rank = world.rank();
  if (rank == 0) std::printf("%d ranks, %d rounds\n", world.world_size(), kRounds);
  double number = 0;
  print_latency(rank, "barrier", measure(*group, 1000, [&] { group->barrier({"%b", ""}); }));
  print_latency(rank, "all_reduce of 8 bytes", measure(*group, 1000, [&] {
                  group->all_reduce(std::as_writable_bytes(std::span(&number, 1)), ir::DType::f64, comm::ReduceOp::Sum,
                                    {"%n", ""});
                }));
  constexpr int64_t kAddresses = int64_t{1} << 30;
  GrowingMemory elsewhere(GrowingMemory::Kind::Private, kAddresses);
  const auto window = world.make_window(kAddresses);
  for (const size_t mib : {1, 16, 64}) {
    elsewhere.grow(static_cast<int64_t>(2 * mib << 20));
    std::byte* begin = elsewhere.begin();
    print_rate(rank, "copy", mib, measure(*group, 3, [&] { std::memcpy(begin + (mib << 20), begin, mib << 20); }),
               2 * static_cast<double>(mib << 20));
    if (window) measure_large(*group, *window, "in windows", mib);
    measure_large(*group, elsewhere, "elsewhere", mib);
  }
}
