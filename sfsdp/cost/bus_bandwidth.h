// SPDX-License-Identifier: BSD-3-Clause
// Bus bandwidth of one kind of collective over how many take part: nodes of a network, or ranks of a node. Published and
// measured figures of nccl-tests go in as they are printed.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

namespace sfsdp::cost {

// Bus bandwidth is the bytes that a ring passes over its slowest link in a second: S / t · (n-1)/n of an all_gather or a
// reduce_scatter of S bytes over n ranks, twice that of an all_reduce, S / t of a broadcast.
// Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
class BusBandwidth {
 public:
  struct Point {
    double members = 1;    // nodes, or ranks
    double bandwidth = 0;  // bytes/s
    bool operator==(const Point&) const = default;
  };

  BusBandwidth() = default;
  // throws: InternalError for members below 1 or not rising, bandwidths that are not positive
  explicit BusBandwidth(std::vector<Point> points);

  bool empty() const { return points_.empty(); }
  const std::vector<Point>& points() const { return points_; }
  bool has(double members) const;
  // Linear in log2 of the members between two points, the nearest point's beyond the ends. Needs a point.
  double at(double members) const;
  bool operator==(const BusBandwidth&) const = default;

 private:
  std::vector<Point> points_;
};

inline constexpr std::array<const char*, 4> kBusKinds = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
using BusBandwidths = std::map<std::string, BusBandwidth, std::less<>>;  // by kind of collective

}  // namespace sfsdp::cost
