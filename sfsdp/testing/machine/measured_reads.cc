// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/measured_reads.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "sfsdp/base/philox.h"

namespace sfsdp::plan::machine {
namespace {

using ir::interp::Array;

bool is_same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

constexpr uint64_t kRounds = 24;  // a read across blocks is missed with probability (3/4)^24, for each of two changes
constexpr int64_t kMostElements = 24;  // that are changed one by one, of an operand

// By result and element, whether it changes.
using Moved = std::vector<std::vector<char>>;

class Probe {
 public:
  Probe(const std::vector<Array>& given, const RunOp& run) : operands(given), results(run(given)), run_(run) {
    for (const auto* arrays : {&results, &operands})
      for (const Array& array : *arrays)
        if (!largest || array.numel() > largest->numel()) largest = &array;
  }

  // What changes with the elements of an operand for which `is_changed` says so, or of all that are as large as the largest.
  template <class Is>
  Moved change(std::optional<size_t> operand, Is is_changed) const {
    Moved moved;
    for (const Array& result : results) moved.emplace_back(result.data.size());
    for (size_t kind = 0; kind < 3; ++kind) {
      std::vector<Array> changed = operands, after;
      for (size_t k = 0; k < operands.size(); ++k)
        for (size_t e = 0; e < changed[k].data.size(); ++e)
          if ((operand ? k == *operand : changed[k].numel() == largest->numel()) && is_changed(e))
            changed[k].data[e] = other_for(operands[k], e, kind);
      try {
        after = run_(std::move(changed));
      } catch (const std::exception&) {  // the op refuses the value
        continue;
      }
      for (size_t r = 0; r < results.size(); ++r)
        for (size_t i = 0; i < moved[r].size(); ++i)
          if (after[r].shape != results[r].shape || !is_same(after[r].data[i], results[r].data[i])) moved[r][i] = 1;
    }
    return moved;
  }

  const std::vector<Array>& operands;
  const std::vector<Array> results;
  const Array* largest = nullptr;  // of both

 private:
  // An index becomes another of the same tensor, which is in range.
  static double other_for(const Array& operand, size_t element, size_t kind) {
    const double x = operand.data[element];
    switch (operand.dtype) {
      case ir::DType::b1: return 1 - x;
      case ir::DType::i64:
      case ir::DType::i32:
      case ir::DType::i16:
      case ir::DType::i8:
      case ir::DType::u8: return kind == 0 ? std::ranges::min(operand.data) : std::ranges::max(operand.data);
      default: return kind == 0 ? std::numeric_limits<double>::quiet_NaN() : kind == 1 ? x + 96 : 3 - 2 * x;
    }
  }

  const RunOp& run_;
};

std::vector<int64_t> places_of(const std::vector<char>& moved) {
  std::vector<int64_t> places;
  for (size_t i = 0; i < moved.size(); ++i)
    if (moved[i] != 0) places.push_back(static_cast<int64_t>(i));
  return places;
}

// Some elements: the first ones, and of the first, the middle and the last one its neighbours along each dimension.
std::vector<size_t> elements_of(const Array& array) {
  const int64_t numel = array.numel();
  std::vector<size_t> elements;
  for (int64_t e = 0; e < std::min(numel, kMostElements); ++e) elements.push_back(static_cast<size_t>(e));
  for (const int64_t base : {int64_t{0}, numel / 2, numel - 1}) {
    int64_t stride = 1;
    for (size_t d = array.shape.size(); d-- > 0; stride *= array.shape[d])
      for (const int64_t other : {base, base + stride, base - stride})
        if (other >= 0 && other < numel) elements.push_back(static_cast<size_t>(other));
  }
  std::ranges::sort(elements);
  elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
  return elements;
}

// Whether one width of blocks is enough for all that an op reads.
class Blocks {
 public:
  Blocks(const Probe& probe, const std::vector<std::vector<Moved>>& single, int64_t width)
      : probe_(probe), single_(single), width_(width), numel_(probe.largest->numel()) {}

  std::optional<MeasuredReads> find() {
    MeasuredReads reads{.by_blocks = true, .width = width_, .over_blocks = std::vector<char>(probe_.results.size())};
    std::vector<char> across = find_across();
    for (size_t r = 0; r < probe_.results.size(); ++r) {
      const int64_t size = probe_.results[r].numel();
      if ((size == numel_ || has_number(size)) && across[r] == 0) continue;
      if (size == numel_ || !is_over_blocks(r)) return std::nullopt;
      reads.over_blocks[r] = 1;
    }
    for (size_t k = 0; k < probe_.operands.size(); ++k)
      for (size_t r = 0; r < probe_.results.size(); ++r)
        if (probe_.operands[k].numel() == numel_ && probe_.results[r].numel() == numel_ && !note_large(k, r))
          return std::nullopt;
    if (most_ > 2 && (most_ != width_ || has_pairs_)) return std::nullopt;
    if (has_pairs_ && width_ != last_dimension()) return std::nullopt;
    if (width_ > 1 && most_ <= 1 && !any_numbers()) return std::nullopt;
    for (size_t k = 0; k < probe_.operands.size(); ++k)
      for (size_t r = 0; r < probe_.results.size(); ++r)
        if (probe_.operands[k].numel() < numel_ && reads.over_blocks[r] == 0 && !can_read_small(k, r))
          return std::nullopt;
    return reads;
  }

 private:
  bool has_number(int64_t size) const { return size * width_ == numel_; }
  bool any_numbers() const {
    return std::ranges::any_of(probe_.results, [&](const Array& result) { return has_number(result.numel()); });
  }
  int64_t last_dimension() const {
    const auto& shape = probe_.largest->shape;
    const auto last = std::find_if(shape.rbegin(), shape.rend(), [](int64_t size) { return size > 1; });
    return last == shape.rend() ? 1 : *last;
  }
  static bool is_drawn(uint64_t round, int64_t block) {
    return (philox4x32(17, round, static_cast<uint64_t>(block))[0] & 1) != 0;
  }

  // By result: whether something changes in a block though nothing of the block has been changed, in what is as large as the
  // largest or has a number for each block.
  std::vector<char> find_across() const {
    std::vector<char> across(probe_.results.size());
    for (uint64_t round = 0; round < kRounds; ++round) {
      const Moved moved =
          probe_.change({}, [&](size_t e) { return is_drawn(round, static_cast<int64_t>(e) / width_); });
      for (size_t r = 0; r < moved.size(); ++r)
        for (const int64_t i : places_of(moved[r]))
          if (!is_drawn(round, probe_.results[r].numel() == numel_ ? i / width_ : i)) across[r] = 1;
    }
    return across;
  }
  // Whether a smaller result is made of elements at its own places in each part of the largest that is as large as it.
  bool is_over_blocks(size_t r) const {
    const int64_t size = probe_.results[r].numel();
    for (uint64_t round = 0; round < (size > 1 ? kRounds : 0); ++round) {
      const Moved moved = probe_.change({}, [&](size_t e) { return is_drawn(round, static_cast<int64_t>(e) % size); });
      for (const int64_t i : places_of(moved[r]))
        if (!is_drawn(round, i)) return false;
    }
    return true;
  }
  // What each element is read for: its own place, that and another one, or its block. An op that reads pairs of one operand
  // reads no block of another, as attention would.
  bool note_large(size_t k, size_t r) {
    size_t most = 0;
    for (const Moved& moved : single_[k]) most = std::max(most, places_of(moved[r]).size());
    const std::vector<size_t> elements = elements_of(probe_.operands[k]);
    for (size_t i = 0; i < elements.size(); ++i) {
      const std::vector<char>& moved = single_[k][i][r];
      if (std::ranges::find(moved, char{1}) != moved.end() && moved[elements[i]] == 0) return false;
    }
    if (most == 2 && width_ > 2) has_pairs_ = true;
    if (most > 2 && static_cast<int64_t>(most) != width_) return false;
    most_ = std::max(most_, static_cast<int64_t>(most));
    return true;
  }
  // Each element of the result is made of one of the operand, of all of them, or of those of a pair. Integers choose what is read, or
  // say what is drawn: a product has none.
  bool can_read_small(size_t k, size_t r) const {
    if (!ir::is_floating(probe_.operands[k].dtype)) return true;
    std::vector<std::vector<int64_t>> read;
    for (const Moved& moved : single_[k])
      if (auto places = places_of(moved[r]); !places.empty()) read.push_back(std::move(places));
    const bool all =
        std::ranges::all_of(read, [&](const auto& places) { return std::ssize(places) == probe_.results[r].numel(); });
    for (size_t a = 0; !all && a < read.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        std::vector<int64_t> both;
        std::ranges::set_intersection(read[a], read[b], std::back_inserter(both));
        if (!both.empty() && !(has_pairs_ && read[a] == read[b])) return false;
      }
    return true;
  }

  const Probe& probe_;
  const std::vector<std::vector<Moved>>& single_;  // by operand and one of elements_of()
  const int64_t width_, numel_;
  int64_t most_ = 0;        // places that one element is read for
  bool has_pairs_ = false;  // it reads pairs of an operand
};

}  // namespace

std::vector<Array> made_up(std::vector<Array> operands) {
  uint64_t number = 0;
  for (Array& operand : operands)
    if (ir::is_floating(operand.dtype))
      for (double& x : operand.data)
        x = ir::interp::round_to(operand.dtype, 0.25 + philox4x32(5, 0, number++)[0] * 0x1p-33);
  return operands;
}

// From one element to all, by the last dimensions of the largest tensor.
MeasuredReads measure_reads(const std::vector<Array>& like, const RunOp& run) {
  const std::vector<Array> operands = made_up(like);
  const Probe probe(operands, run);
  MeasuredReads none{.by_blocks = false, .width = 1, .over_blocks = std::vector<char>(probe.results.size())};
  if (!probe.largest || probe.largest->numel() == 0) return none;
  std::vector<std::vector<Moved>> single(operands.size());
  for (size_t k = 0; k < operands.size(); ++k)
    for (const size_t element : elements_of(operands[k]))
      single[k].push_back(probe.change(k, [=](size_t e) { return e == element; }));
  std::vector<int64_t> widths = {1};
  for (size_t d = probe.largest->shape.size(); d-- > 0;)
    if (probe.largest->shape[d] > 1) widths.push_back(widths.back() * probe.largest->shape[d]);
  for (const int64_t width : widths)
    if (auto reads = Blocks(probe, single, width).find()) return *reads;
  return none;
}

}  // namespace sfsdp::plan::machine
