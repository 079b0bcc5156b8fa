// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/piece.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/common_runs.h"

namespace sfsdp::train::checkpoint {

int64_t Piece::numel() const {
  int64_t product = 1;
  for (int64_t size : shape) product = ir::saturating_product(product, size);
  return product;
}

int64_t Piece::box_numel() const { return box.empty() ? numel() : plan::elements_of(box); }

plan::Box Piece::place() const {
  const Chunk range{begin, end - begin};
  return box.empty() ? plan::whole_box(shape, range) : plan::Box{box, range, block_shape};
}

std::span<std::byte> Piece::bytes() const {
  return {data, static_cast<size_t>((end - begin) * ir::size_in_bytes(dtype))};
}

std::vector<Piece> share_out(const std::vector<Piece>& pieces) {
  using Holders = std::pair<AxisList, int64_t>;
  std::map<Holders, int64_t> total, at;  // bytes: ranks that share one tensor share all of those
  for (const Piece& p : pieces) {
    SFSDP_CHECK(p.holders >= 1 && p.holder >= 0 && p.holder < p.holders && p.begin <= p.end, "piece of ", p.name);
    total[{p.along, p.holders}] += static_cast<int64_t>(p.bytes().size());
  }
  std::vector<Piece> mine;
  for (Piece p : pieces) {
    const Holders holders{p.along, p.holders};
    const int64_t bytes = total[holders], share = bytes / p.holders, rest = bytes % p.holders;
    const auto cut = [&](int64_t holder) { return holder * share + std::min(holder, rest); };
    const int64_t width = ir::size_in_bytes(p.dtype), first = at[holders], numel = p.end - p.begin;
    at[holders] += numel * width;
    // both cuts round down to an element, so that what one rank leaves the next one takes
    const auto element = [&](int64_t byte) { return std::clamp((byte - first) / width, int64_t{0}, numel); };
    const int64_t from = element(std::max(cut(p.holder), first)), to = element(std::max(cut(p.holder + 1), first));
    if (from == to && p.numel() > 0) continue;
    p.data = p.data ? p.data + from * width : nullptr;
    p.end = p.begin + to;
    p.begin += from;
    mine.push_back(std::move(p));
  }
  std::ranges::stable_sort(mine, std::greater<>(), [](const Piece& p) { return ir::size_in_bytes(p.dtype); });
  return mine;
}

}  // namespace sfsdp::train::checkpoint
