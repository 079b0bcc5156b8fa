// SPDX-License-Identifier: BSD-3-Clause
// Transfers in flight and the links they share. Every rank has a link into its node and one into the network; a transfer
// alone keeps each busy for a part of its time; where those of a rank add up to more than the whole, all that pass that
// link slow down alike, and a transfer is as slow as its slowest rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/cost/collective_cost.h"

namespace sfsdp::sim {

class Links {
 public:
  explicit Links(size_t ranks) : in_flight_(ranks) {}

  // When a transfer will be over, if nothing else begins or ends before. `version`: of the latest such answer.
  struct Finish {
    size_t transfer = 0;
    uint32_t version = 0;
    double at = 0;
  };

  // ranks: must stay alive until the transfer is over. Returns its handle; `changed` gets a Finish of each transfer whose
  // end moves, this one included.
  size_t begin(std::span<const size_t> ranks, const cost::CollectiveCost& cost, double now,
               std::vector<Finish>& changed);
  bool is_current(const Finish& finish) const { return transfers_[finish.transfer].version == finish.version; }
  void end(size_t transfer, double now, std::vector<Finish>& changed);

 private:
  static constexpr size_t kLinks = 2;
  struct Transfer {
    std::span<const size_t> ranks;
    std::array<double, kLinks> share = {};  // of its time alone that it keeps a link busy
    double remaining = 0;                   // seconds, alone
    double speed = 0;                       // 1: as if alone
    double since = 0;                       // when `remaining` was true
    uint32_t version = 0;                   // counts on when the handle is used again
    uint64_t seen = 0;
  };

  double speed_of(const Transfer& transfer) const;
  // Those that pass a link of these ranks.
  void update(std::span<const size_t> ranks, double now, std::vector<Finish>& changed);

  std::vector<Transfer> transfers_;
  std::vector<size_t> free_;
  std::vector<std::vector<size_t>> in_flight_;  // by rank
  uint64_t walk_ = 0;
};

}  // namespace sfsdp::sim
