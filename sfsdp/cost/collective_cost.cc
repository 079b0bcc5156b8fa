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

// Bytes/s that a device passes on inside its node, and into the network, in a large collective of one kind.
struct Bandwidth {
  double node = 0, network = 0;
};

// A curve is of bus bandwidth: what a node, all of its devices together, passes on to the next. Without one, flows of
// several nodes meet in the switches between them.
Bandwidth bandwidth_of(std::string_view kind, const Layout& l, const Machine& machine) {
  const Link &node = machine.node, &network = machine.network;
  const auto devices = static_cast<double>(machine.devices_per_node);
  const auto in_node = node.bus.find(kind), outside = network.bus.find(kind);
  const bool has_nodes = outside != network.bus.end();
  Bandwidth b = {node.bandwidth, network.bandwidth / (1 + network.congestion * std::log2(l.nodes))};
  if (in_node != node.bus.end())
    b.node = in_node->second.at(l.in_node);
  else if (has_nodes && l.in_node == devices && outside->second.has(1))
    b.node = outside->second.at(1);
  if (has_nodes && l.nodes > 1) {
    b.network = outside->second.at(l.nodes) / devices;
    b.node = std::max(b.node, outside->second.at(l.nodes));  // what leaves a node has passed through it
  }
  return b;
}

// Hops inside a node and between nodes, and the share of the bytes that every device and every node passes on.
struct Route {
  double node_hops, network_hops, inside, outside;
};

CollectiveCost route_cost(const Route& route, double bytes, const Layout& l, const Bandwidth& bandwidth,
                          const Machine& machine) {
  CollectiveCost fastest{.latency = INFINITY};
  for (const Protocol& protocol : kProtocols) {
    const double base = (l.nodes > 1 ? machine.network : machine.node).base_latency * protocol.base;
    const double hops =
        (route.node_hops * machine.node.hop_latency + route.network_hops * machine.network.hop_latency) * protocol.hop;
    // A node passes its share on over the network links of all its ranks.
    const double inside = l.in_node > 1 ? route.inside * bytes / bandwidth.node : 0;
    const double outside = l.nodes > 1 ? route.outside * bytes / (l.in_node * bandwidth.network) : 0;
    const CollectiveCost cost{base + hops, inside / protocol.bandwidth, outside / protocol.bandwidth};
    if (cost.seconds() < fastest.seconds()) fastest = cost;
  }
  return fastest;
}

}  // namespace

CollectiveCost collective_cost(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  if (group.size <= 1) return {};
  const Layout l = layout_of(group, machine);
  const auto nodes = static_cast<int64_t>(l.nodes);
  if (const auto measured = measured_collective(machine.measured, kind, group.size, nodes)) {
    // The smallest message's time is latency; it shares no link with other collectives.
    const double seconds = measured->at(bytes), latency = std::min(seconds, measured->at(0));
    return {
        .latency = latency, .node = nodes == 1 ? seconds - latency : 0, .network = nodes > 1 ? seconds - latency : 0};
  }
  const Bandwidth bandwidth = bandwidth_of(kind, l, machine);
  const double n = l.ranks, k = l.nodes;
  // Around the ring every rank passes on all but one n-th, and so does every node: its rings leave it at different devices.
  const Route once = {n - k, k - 1, (n - 1) / n, (n - 1) / n};
  if (kind == "all_reduce") {  // a reduce_scatter and an all_gather in one, or a tree
    const Route ring = {2 * once.node_hops, 2 * once.network_hops, 2 * once.inside, 2 * once.outside};
    const Route tree = {2 * (l.in_node - 1), 2 * std::log2(k), 2 / kTreeBandwidth, 2 / kTreeBandwidth};
    const CollectiveCost by_ring = route_cost(ring, bytes, l, bandwidth, machine);
    const CollectiveCost by_tree = route_cost(tree, bytes, l, bandwidth, machine);
    return by_tree.seconds() < by_ring.seconds() ? by_tree : by_ring;
  }
  if (kind == "broadcast") return route_cost({n - k, k - 1, 1, 1}, bytes, l, bandwidth, machine);  // all of it
  // Straight to each of the others: what goes to ranks of other nodes leaves by the sender's own link.
  if (kind == "all_to_all" || kind == "all_to_all_v")
    return route_cost(
        {l.in_node > 1 ? 1.0 : 0.0, k > 1 ? 1.0 : 0.0, (l.in_node - 1) / n, l.in_node * (n - l.in_node) / n}, bytes, l,
        bandwidth, machine);
  // To one rank. Where the ranks are of several nodes, some pass it on over the network, each by its own link.
  if (kind == "permute")
    return route_cost({k > 1 ? 0.0 : 1.0, k > 1 ? 1.0 : 0.0, k > 1 ? 0.0 : 1.0, l.in_node}, bytes, l, bandwidth,
                      machine);
  SFSDP_CHECK(kind == "all_gather" || kind == "reduce_scatter", "collective ", kind);
  return route_cost(once, bytes, l, bandwidth, machine);
}

double collective_seconds(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  return collective_cost(kind, bytes, group, machine).seconds();
}

double overlap_slowdown(GroupShape group, const Machine& machine) {
  if (group.size <= 1) return 1;
  return 1 + (layout_of(group, machine).nodes > 1 ? machine.network : machine.node).overlap_slowdown;
}

}  // namespace sfsdp::cost
