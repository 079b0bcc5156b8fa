// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/collective_cost.h"

#include <algorithm>

#include "sfsdp/base/check.h"

namespace sfsdp::cost {

CollectiveCost collective_cost(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  if (group.size <= 1) return {};
  const int64_t in_node = std::clamp(machine.devices_per_node / group.stride, int64_t{1}, group.size);
  const int64_t nodes = (group.size + in_node - 1) / in_node;
  const auto n = static_cast<double>(group.size), k = static_cast<double>(nodes), g = static_cast<double>(in_node);
  // Once around: every rank passes (n - 1)/n of the bytes on inside the node; a node passes (k - 1)/k of them on, over
  // the network links of its g ranks.
  double inside = in_node > 1 ? (n - 1) / n * bytes / machine.node.bandwidth : 0;
  double outside = nodes > 1 ? (k - 1) / k * bytes / (g * machine.network.bandwidth) : 0;
  double latency = nodes > 1 ? machine.network.base_latency : machine.node.base_latency;
  latency += (n - k) * machine.node.hop_latency + (k - 1) * machine.network.hop_latency;
  if (kind == "all_reduce") {  // a reduce_scatter and an all_gather in one
    inside *= 2;
    outside *= 2;
    latency += (n - k) * machine.node.hop_latency + (k - 1) * machine.network.hop_latency;
  } else {
    SFSDP_CHECK(kind == "all_gather" || kind == "reduce_scatter" || kind == "broadcast", "collective ", kind);
  }
  return {latency, inside, outside};
}

double collective_seconds(std::string_view kind, double bytes, GroupShape group, const Machine& machine) {
  return collective_cost(kind, bytes, group, machine).seconds();
}

}  // namespace sfsdp::cost
