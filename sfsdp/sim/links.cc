// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/links.h"

#include <algorithm>

namespace sfsdp::sim {

double Links::speed_of(const Transfer& transfer) const {
  double busiest = 1;
  for (const size_t rank : transfer.ranks) {
    if (in_flight_[rank].size() < 2) continue;
    std::array<double, kLinks> load = {};
    for (const size_t other : in_flight_[rank])
      for (size_t link = 0; link < kLinks; ++link) load[link] += transfers_[other].share[link];
    for (size_t link = 0; link < kLinks; ++link)
      if (transfer.share[link] > 0) busiest = std::max(busiest, load[link]);
  }
  return 1 / busiest;
}

void Links::update(std::span<const size_t> ranks, double now, std::vector<Finish>& changed) {
  ++walk_;
  for (const size_t rank : ranks)
    for (const size_t index : in_flight_[rank]) {
      Transfer& t = transfers_[index];
      if (t.seen == walk_) continue;
      t.seen = walk_;
      const double speed = speed_of(t);
      if (speed == t.speed) continue;
      t.remaining = std::max(0.0, t.remaining - t.speed * (now - t.since));
      t.since = now;
      t.speed = speed;
      changed.push_back({index, ++t.version, now + t.remaining / speed});
    }
}

size_t Links::begin(std::span<const size_t> ranks, const cost::CollectiveCost& cost, double now,
                    std::vector<Finish>& changed) {
  if (free_.empty()) {
    free_.push_back(transfers_.size());
    transfers_.emplace_back();
  }
  const size_t index = free_.back();
  free_.pop_back();
  Transfer& t = transfers_[index];
  t.ranks = ranks;
  t.remaining = cost.transfer();
  t.share = {};
  if (t.remaining > 0) t.share = {cost.node / t.remaining, cost.network / t.remaining};
  t.speed = 0;
  t.since = now;
  for (const size_t rank : ranks) in_flight_[rank].push_back(index);
  update(ranks, now, changed);
  return index;
}

void Links::end(size_t transfer, double now, std::vector<Finish>& changed) {
  Transfer& t = transfers_[transfer];
  ++t.version;
  for (const size_t rank : t.ranks) std::erase(in_flight_[rank], transfer);
  free_.push_back(transfer);
  update(t.ranks, now, changed);
}

}  // namespace sfsdp::sim
