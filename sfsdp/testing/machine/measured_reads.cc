// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/measured_reads.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <numeric>
#include <utility>

namespace sfsdp::plan::machine {
namespace {

using ir::interp::Array;

// An element of an operand, and one of a result that changes with it.
struct Link {
  int64_t from = 0, to = 0;
};
// By operand, then result: sorted by `to`, without repetitions.
using Links = std::vector<std::vector<std::vector<Link>>>;

bool is_same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// What an element is changed to: of indexes others of the same tensor, which are in range.
std::vector<double> others_for(const Array& operand, size_t element) {
  const double x = operand.data[element];
  switch (operand.dtype) {
    case ir::DType::b1: return {1 - x};
    case ir::DType::i64:
    case ir::DType::i32:
    case ir::DType::i16:
    case ir::DType::i8:
    case ir::DType::u8: return {std::ranges::min(operand.data), std::ranges::max(operand.data)};
    default: return {std::numeric_limits<double>::quiet_NaN(), x + 96, 3 - 2 * x};
  }
}

Links find_links(const std::vector<Array>& operands, const std::vector<Array>& before, const RunOp& run) {
  Links links(operands.size(), std::vector<std::vector<Link>>(before.size()));
  for (size_t k = 0; k < operands.size(); ++k)
    for (size_t e = 0; e < operands[k].data.size(); ++e) {
      std::vector<std::vector<char>> moved;
      for (const Array& result : before) moved.emplace_back(result.data.size());
      for (const double other : others_for(operands[k], e)) {
        if (is_same(other, operands[k].data[e])) continue;
        std::vector<Array> changed = operands, after;
        changed[k].data[e] = other;
        try {
          after = run(std::move(changed));
        } catch (const std::exception&) {  // the op refuses the value
          continue;
        }
        for (size_t r = 0; r < before.size(); ++r)
          for (size_t i = 0; i < moved[r].size(); ++i)
            if (after[r].shape != before[r].shape || !is_same(after[r].data[i], before[r].data[i])) moved[r][i] = 1;
      }
      for (size_t r = 0; r < moved.size(); ++r)
        for (size_t i = 0; i < moved[r].size(); ++i)
          if (moved[r][i] != 0) links[k][r].push_back({static_cast<int64_t>(e), static_cast<int64_t>(i)});
    }
  for (auto& of_operand : links)
    for (auto& of_result : of_operand) std::ranges::stable_sort(of_result, {}, &Link::to);
  return links;
}

// Places that are made of each other, by number: each belongs to a class.
class Classes {
 public:
  explicit Classes(int64_t numel) : next_(static_cast<size_t>(numel)) {
    std::iota(next_.begin(), next_.end(), int64_t{0});
  }
  int64_t of(int64_t place) const {
    while (next_[static_cast<size_t>(place)] != place) place = next_[static_cast<size_t>(place)];
    return place;
  }
  void join(int64_t a, int64_t b) { next_[static_cast<size_t>(of(a))] = of(b); }
  std::vector<int64_t> sizes() const {  // of those that have members, the others 0
    std::vector<int64_t> sizes(next_.size());
    for (int64_t place = 0; place < std::ssize(next_); ++place) ++sizes[static_cast<size_t>(of(place))];
    return sizes;
  }

 private:
  std::vector<int64_t> next_;  // another one of its class, or itself
};

// Whether one width of blocks is enough for all that an op reads.
class Blocks {
 public:
  Blocks(int64_t numel, int64_t width) : numel_(numel), width_(width), pairs_(numel) {}

  // Tensors as large as the largest: each place that reads any reads its own. All that it reads is one element, two that read
  // each other, or the whole block; an op that reads pairs of one operand reads no block of another, as attention would.
  bool add_large(const std::vector<Link>& links) {
    Classes classes(numel_);
    std::vector<char> any(static_cast<size_t>(numel_)), own = any;
    for (const auto& [from, to] : links) {
      if (from / width_ != to / width_) return false;
      any[static_cast<size_t>(to)] = 1;
      if (from == to) own[static_cast<size_t>(to)] = 1;
      classes.join(from, to);
    }
    const std::vector<int64_t> sizes = classes.sizes();
    const int64_t most = sizes.empty() ? 0 : std::ranges::max(sizes);
    if (any != own || !std::ranges::all_of(sizes, [&](int64_t n) { return n <= 1 || n == most; })) return false;
    if (most == width_ && most > 1) reads_whole_ = true;
    if (most == 2 && width_ > 2) {
      reads_pairs_ = true;
      for (const auto& [from, to] : links) pairs_.join(from, to);
    }
    return (most <= 2 || most == width_) && !(reads_whole_ && reads_pairs_);
  }
  // An operand of `size` elements, fewer than the largest, that a result reads which has blocks or a number for each.
  bool can_read_small(const std::vector<Link>& links, int64_t size, int64_t result_size) {
    if (has_number(size) && std::ranges::all_of(links, [&](const Link& link) {
          return link.from == (result_size == numel_ ? link.to / width_ : link.to);
        }))
      return true;
    for (auto at = links.begin(); at != links.end();) {
      const auto end = std::find_if(at, links.end(), [&](const Link& link) { return link.to != at->to; });
      const bool one_or_all = end - at == 1 || end - at == size;
      const bool pair =
          result_size == numel_ && std::all_of(at, end, [&](const Link& link) {
            return std::ranges::any_of(partners(link.to), [&](int64_t place) { return place % size == link.from; });
          });
      if (!one_or_all && !pair) return false;
      at = end;
    }
    return true;
  }
  // A result with a number for each block, of an operand as large as the largest.
  bool is_number_of(const std::vector<Link>& links) const {
    return std::ranges::all_of(links, [&](const Link& link) { return link.from / width_ == link.to; });
  }
  bool has_number(int64_t size) const { return size * width_ == numel_; }

 private:
  // The place itself, and the other one of its pair.
  std::vector<int64_t> partners(int64_t place) const {
    std::vector<int64_t> found;
    const int64_t begin = place / width_ * width_;
    for (int64_t other = begin; other < begin + width_; ++other)
      if (pairs_.of(other) == pairs_.of(place)) found.push_back(other);
    return found;
  }

  const int64_t numel_, width_;
  Classes pairs_;
  bool reads_whole_ = false, reads_pairs_ = false;
};

// A result that is smaller than the largest, and has no number for each block.
bool is_over_blocks(const std::vector<Array>& operands, const Links& links, size_t r, int64_t numel, int64_t size) {
  for (size_t k = 0; k < operands.size(); ++k)
    if (operands[k].numel() == numel)
      for (const auto& [from, to] : links[k][r])
        if (from % size != to) return false;
  return true;
}

// Where a result may be numbers of blocks as well as a sum over them, the first is taken.
bool try_width(const std::vector<Array>& operands, const std::vector<Array>& results, const Links& links, int64_t numel,
               MeasuredReads& reads) {
  Blocks blocks(numel, reads.width);
  reads.over_blocks.assign(results.size(), 0);
  for (size_t r = 0; r < results.size(); ++r)
    for (size_t k = 0; k < operands.size(); ++k)
      if (results[r].numel() == numel && operands[k].numel() == numel && !blocks.add_large(links[k][r])) return false;
  for (size_t r = 0; r < results.size(); ++r) {
    const int64_t size = results[r].numel();
    bool in_blocks = size == numel || blocks.has_number(size);
    for (size_t k = 0; in_blocks && k < operands.size(); ++k)
      in_blocks = operands[k].numel() == numel ? size == numel || blocks.is_number_of(links[k][r])
                                               : blocks.can_read_small(links[k][r], operands[k].numel(), size);
    if (in_blocks) continue;
    if (size == numel || !is_over_blocks(operands, links, r, numel, size)) return false;
    reads.over_blocks[r] = 1;
  }
  return true;
}

}  // namespace

// From one element to all, by the last dimensions of the largest tensor.
MeasuredReads measure_reads(const std::vector<Array>& operands, const RunOp& run) {
  const std::vector<Array> results = run(operands);
  const Links links = find_links(operands, results, run);
  const Array* largest = nullptr;
  for (const auto* arrays : {&results, &operands})
    for (const Array& array : *arrays)
      if (!largest || array.numel() > largest->numel()) largest = &array;
  MeasuredReads reads;
  if (!largest) return reads;
  std::vector<int64_t> widths = {1};
  for (size_t d = largest->shape.size(); d-- > 0;) widths.push_back(widths.back() * largest->shape[d]);
  for (const int64_t width : widths) {
    reads.width = width;
    reads.by_blocks = width > 0 && try_width(operands, results, links, largest->numel(), reads);
    if (reads.by_blocks) return reads;
  }
  return {.by_blocks = false, .width = 1, .over_blocks = std::vector<char>(results.size())};
}

}  // namespace sfsdp::plan::machine
