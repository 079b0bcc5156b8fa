// SPDX-License-Identifier: BSD-3-Clause
// What the blocks of a compiled model send.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::testing {

// Collectives that are alike, of one block.
struct Sent {
  bool backward = false;
  std::string kind;   // "all_gather"
  std::string axes;   // "tp", or "dp_shard, cp", outer first
  int64_t bytes = 0;  // that leave one rank, in one of them
  int64_t times = 1;  // of a micro-batch; of what the last one alone sends, of a step
};

// By block, "" for what stands in none; by direction, kind, axes and bytes.
using SentByBlock = std::map<std::string, std::vector<Sent>>;

// Bytes that leave one rank of n in a collective over a tensor, which as many reach: of an all_gather or a reduce_scatter (n-1)/n of the
// whole tensor, whether parts go round or straight to each rank; of an all_reduce twice that, as of both in turn; of an all_to_all (n-1)/n of
// what the rank has, and so of an all_to_all_v, whose rows are taken to be shared out evenly; of a permute all of it.
// What the ranks do not divide is rounded up.
int64_t bytes_sent(const ir::Graph& graph, const ir::Op& op);

// What forward, loss and backward send over any axes; norms and updates after them are none of it.
SentByBlock sent_by_block(const ir::Graph& graph);

// "2 fwd all_gather over tp, 4096 bytes each", a line for each, sorted: lists in any order, of which some may be alike, are compared by it.
std::string to_string(const std::vector<Sent>& sent);

// The collectives over the axis alone that a micro-batch makes, by block: "2 bwd all_reduce, 2 fwd all_reduce".
std::map<std::string, std::string> collectives_by_block(const ir::Graph& graph, std::string_view axis);

}  // namespace sfsdp::testing
