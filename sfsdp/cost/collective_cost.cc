// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/collective_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sfsdp/base/check.h"

namespace sfsdp::cost {
namespace {

// Shares of the Simple protocol's latencies and bandwidth. LL sends a flag with every 4 bytes, LL128 one with every 120:
// less bandwidth, and no waiting for a fence.
struct Protocol {
  double base, hop, bandwidth;
};
constexpr std::array<Protocol, 3> kProtocols = {{{0.8, 0.18, 0.5}, {1.65, 0.4, 0.92}, {1, 1, 1}}};
constexpr double kTreeBandwidth = 0.92;  // of a ring's

// How a group lies on the machine.
struct Layout {
  double ranks = 1, in_node = 1, nodes = 1;
};

Layout layout_of(GroupShape group, const Machine& machine) {
  const int64_t in_node = std::clamp(machine.devices_per_node / group.stride, int64_t{1}, group.size);
  const int64_t nodes = (group.size + in_node - 1) / in_node;
  return {static_cast<double>(group.size), static_cast<double>(in_node), static_cast<double>(nodes)};
}

// Flows of several nodes meet in the switches between them.
double network_bandwidth(const Layout& l, const Machine& machine) {
  return machine.network.bandwidth / (1 + machine.network.congestion * std::log2(l.nodes));
}

// Hops inside a node and between nodes, and the share of the bytes that every device and every node passes on.
struct Route {
  double node_hops, network_hops, inside, outside;
};

CollectiveCost route_cost(const Route& route, double bytes, const Layout& l, const Machine& machine) {
  CollectiveCost fastest{.latency = INFINITY};
  for (const Protocol& protocol : kProtocols) {
    const double base = (l.nodes > 1 ? machine.network : machine.node).base_latency * protocol.base;
    const double hops =
        (route.node_hops * machine.node.hop_latency + route.network_hops * machine.network.hop_latency) * protocol.hop;
    // A node passes its share on over the network links of all its ranks.
    const double inside = l.in_node > 1 ? route.inside * bytes / machine.node.bandwidth : 0;
    const double outside = l.nodes > 1 ? route.outside * bytes / (l.in_node * network_bandwidth(l, machine)) : 0;
    const CollectiveCost cost{base + hops, inside / protocol.bandwidth, outside / protocol.bandwidth};
    if (cost.seconds() < fastest.seconds()) fastest = cost;
  }
  return fastest;
}

}  // namespace

CollectiveCost collective_cost(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  if (group.size <= 1) return {};
  const Layout l = layout_of(group, machine);
  if (l.nodes == 1) {
    if (const auto seconds = measured_collective(machine.measured, kind, group.size, bytes)) {
      // The smallest message's time is latency; it shares no link with other collectives.
      const double latency = std::min(*seconds, measured_collective(machine.measured, kind, group.size, 0).value());
      return {.latency = latency, .node = *seconds - latency, .network = 0};
    }
  }
  const double n = l.ranks, k = l.nodes;
  const Route once = {n - k, k - 1, (n - 1) / n, (k - 1) / k};  // around the ring
  if (kind == "all_reduce") {                                   // a reduce_scatter and an all_gather in one, or a tree
    const Route ring = {2 * once.node_hops, 2 * once.network_hops, 2 * once.inside, 2 * once.outside};
    const Route tree = {2 * (l.in_node - 1), 2 * std::log2(k), 2 / kTreeBandwidth, 2 / kTreeBandwidth};
    const CollectiveCost by_ring = route_cost(ring, bytes, l, machine), by_tree = route_cost(tree, bytes, l, machine);
    return by_tree.seconds() < by_ring.seconds() ? by_tree : by_ring;
  }
  SFSDP_CHECK(kind == "all_gather" || kind == "reduce_scatter" || kind == "broadcast", "collective ", kind);
  return route_cost(once, bytes, l, machine);
}

double collective_seconds(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  return collective_cost(kind, bytes, group, machine).seconds();
}

double overlap_slowdown(GroupShape group, const Machine& machine) {
  if (group.size <= 1) return 1;
  return 1 + (layout_of(group, machine).nodes > 1 ? machine.network : machine.node).overlap_slowdown;
}

}  // namespace sfsdp::cost
