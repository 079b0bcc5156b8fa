// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_cut.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "sfsdp/base/check.h"

namespace sfsdp::passes {
namespace {

// Maximum flow by shortest augmenting paths in layers (Dinic). Capacities are doubles: an augmentation takes one edge to
// exactly 0, so it ends as with integers.
class FlowNetwork {
 public:
  explicit FlowNetwork(size_t nodes) : edges_of_(nodes) {}

  void add_edge(size_t from, size_t to, double capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  // Nodes on the source's side of a minimum cut; the fewest, where several are minimal.
  std::vector<bool> source_side(size_t source, size_t sink) {
    while (find_layers(source), layer_[sink] >= 0) {
      next_.assign(edges_of_.size(), 0);
      while (push(source, sink, kEndless) > 0) {
      }
    }
    std::vector<bool> side;
    for (const int layer : layer_) side.push_back(layer >= 0);
    return side;
  }

  static constexpr double kEndless = std::numeric_limits<double>::infinity();

 private:
  struct Edge {
    size_t to;
    double left;
  };

  void find_layers(size_t source) {
    layer_.assign(edges_of_.size(), -1);
    layer_[source] = 0;
    std::queue<size_t> open({source});
    for (; !open.empty(); open.pop())
      for (const size_t e : edges_of_[open.front()])
        if (edges_[e].left > 0 && layer_[edges_[e].to] < 0) {
          layer_[edges_[e].to] = layer_[open.front()] + 1;
          open.push(edges_[e].to);
        }
  }

  double push(size_t node, size_t sink, double most) {
    if (node == sink) return most;
    for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
      const size_t e = edges_of_[node][i];
      if (edges_[e].left <= 0 || layer_[edges_[e].to] != layer_[node] + 1) continue;
      const double pushed = push(edges_[e].to, sink, std::min(most, edges_[e].left));
      if (pushed <= 0) continue;
      edges_[e].left -= pushed;
      edges_[e ^ 1].left += pushed;
      return pushed;
    }
    return 0;
  }

  std::vector<std::vector<size_t>> edges_of_;  // an edge and its reverse are neighbours: e and e ^ 1
  std::vector<Edge> edges_;
  std::vector<int> layer_;
  std::vector<size_t> next_;
};

class TradeOff {
 public:
  explicit TradeOff(const CutProblem& problem) : problem_(problem) {}

  std::vector<CutPoint> solve() {
    const size_t ops = problem_.ops.size();
    points_.push_back(priced(std::vector<bool>(ops, false)));
    std::vector<bool> all(ops, false);
    for (const auto& value : problem_.values)
      if (value.needed) all[static_cast<size_t>(value.op)] = true;
    for (size_t i = ops; i-- > 0;)
      if (all[i])
        for (const int read : problem_.ops[i].reads)
          all[static_cast<size_t>(problem_.values[static_cast<size_t>(read)].op)] = true;
    CutPoint last = priced(std::move(all));
    if (last.bytes == points_[0].bytes) return points_;
    refine(points_[0], last);
    points_.push_back(std::move(last));
    return points_;
  }

 private:
  CutPoint priced(std::vector<bool> again) const {
    CutPoint point{.again = std::move(again)};
    std::vector<bool> needed(problem_.values.size());
    for (size_t v = 0; v < needed.size(); ++v) needed[v] = problem_.values[v].needed;
    for (size_t i = 0; i < problem_.ops.size(); ++i) {
      if (!point.again[i]) continue;
      point.work += problem_.ops[i].work;
      for (const int read : problem_.ops[i].reads) needed[static_cast<size_t>(read)] = true;
    }
    for (size_t v = 0; v < needed.size(); ++v)
      if (needed[v] && !point.again[static_cast<size_t>(problem_.values[v].op)])
        point.bytes += problem_.values[v].bytes;
    return point;
  }

  // Corners between two: the line through both says at which rate they cost the same; what is cheaper there is a third.
  void refine(const CutPoint& more_bytes, const CutPoint& more_work) {
    const double rate =
        static_cast<double>(more_bytes.bytes - more_work.bytes) / static_cast<double>(more_work.work - more_bytes.work);
    const CutPoint between = priced(cheapest_at(rate));
    const auto cost = [rate](const CutPoint& p) {
      return static_cast<double>(p.bytes) + rate * static_cast<double>(p.work);
    };
    if (cost(between) >= cost(more_bytes) * (1 - 1e-9)) return;
    refine(more_bytes, between);
    points_.push_back(between);
    refine(between, more_work);
  }

  std::vector<bool> cheapest_at(double rate) const {
    const size_t ops = problem_.ops.size(), values = problem_.values.size();
    const size_t source = ops + values, sink = source + 1;
    FlowNetwork network(sink + 1);
    for (size_t i = 0; i < ops; ++i) {
      network.add_edge(i, sink, rate * static_cast<double>(problem_.ops[i].work));
      for (const int read : problem_.ops[i].reads)
        network.add_edge(i, ops + static_cast<size_t>(read), FlowNetwork::kEndless);
    }
    for (size_t v = 0; v < values; ++v) {
      const auto& value = problem_.values[v];
      network.add_edge(ops + v, static_cast<size_t>(value.op), static_cast<double>(value.bytes));
      if (value.needed) network.add_edge(source, ops + v, FlowNetwork::kEndless);
    }
    std::vector<bool> side = network.source_side(source, sink);
    side.resize(ops);
    return side;
  }

  const CutProblem& problem_;
  std::vector<CutPoint> points_;
};

}  // namespace

std::vector<CutPoint> trade_off(const CutProblem& problem) {
  std::vector<CutPoint> points = TradeOff(problem).solve();
  for (size_t k = 1; k < points.size(); ++k) {
    SFSDP_CHECK(points[k].bytes < points[k - 1].bytes && points[k].work > points[k - 1].work, "corner ", k, " of ",
                points.size(), " has ", points[k].bytes, " bytes and ", points[k].work, " of work");
    for (size_t i = 0; i < points[k].again.size(); ++i)
      SFSDP_CHECK(points[k].again[i] || !points[k - 1].again[i], "op ", i, " no longer runs again");
  }
  return points;
}

}  // namespace sfsdp::passes
