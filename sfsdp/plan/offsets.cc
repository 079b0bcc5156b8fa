// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/offsets.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sfsdp/base/philox.h"

namespace sfsdp::plan {
namespace {

// Which of the buffers that fit is taken: the one with most of lifetime^life · bytes^size, those above a share of the
// peak before all others.
struct Order {
  int life, size;
  double large;  // share of the peak; 0: none comes first
};

// Each is the best of them for some model, batch and remat in docs/benchmarks.md; the first is optimal for
// nested lifetimes.
constexpr std::array<Order, 5> kOrders = {{{1, 0, 0}, {1, 1, 0}, {1, 0, 0.003}, {1, 2, 0}, {2, 1, 0}}};

// Those that LowestFit begins with, tried in turn until the arena is tight.
constexpr std::array<Order, 5> kFitOrders = {{{1, 2, 0}, {2, 3, 0}, {1, 1, 0}, {0, 1, 0}, {1, 3, 0}}};
// What each of these, and kNearPeak, kLargeShare and kBesideShare, changes stands in docs/benchmarks.md, "Constants of addresses".
constexpr int kTriesInVain = 25, kRoundsInVain = 8;
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargeShare =
    500;                             // a buffer above this part of the peak is large: smaller ones find room at the end
constexpr size_t kFew = 1000;        // buffers, of which all may be tried in other orders
constexpr double kNearPeak = 0.9;    // of more than that, so does what is alive with less than this share of the peak
constexpr int64_t kBesideShare = 4;  // what is above this part of a buffer may go before it in its stead
bool is_tight(int64_t arena, int64_t peak) { return static_cast<double>(arena) <= 1.001 * static_cast<double>(peak); }

// By products, which are rounded alike everywhere; std::pow is not.
double power(double base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }

class Skyline {
 public:
  // by_first: the buffers, in order of `first`
  Skyline(std::span<const Buffer> by_first, const Order& order, int64_t peak) : buffers_(by_first), order_(order) {
    int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
    for (const Buffer& b : by_first) {
      const auto life = static_cast<double>(b.last - b.first + 1), bytes = static_cast<double>(b.bytes);
      const bool large = order.large > 0 && bytes > order.large * static_cast<double>(peak);
      worth_.push_back({large, power(life, order.life) * power(bytes, order.size), b.bytes});
      most_bytes_ = std::max(most_bytes_, bytes);
      begin = std::min(begin, b.first);
      end = std::max(end, b.last);
    }
    stretches_.push_back({begin, end, 0});
    offsets_.resize(by_first.size());
    next_.resize(by_first.size() + 1);
    std::iota(next_.begin(), next_.end(), size_t{0});
  }

  // Bytes of the arena; gives up where that would be `bound` or more.
  int64_t place(int64_t bound) {
    int64_t arena = 0;
    for (size_t placed = 0; placed < buffers_.size();) {
      const auto lowest = std::ranges::min_element(stretches_, {}, &Stretch::height);
      const size_t chosen = best_within(*lowest);
      if (chosen == buffers_.size()) {
        raise(lowest);
        continue;
      }
      offsets_[chosen] = lowest->height;
      next_[chosen] = chosen + 1;
      arena = std::max(arena, lowest->height + buffers_[chosen].bytes);
      if (arena >= bound) return bound;
      put(lowest, buffers_[chosen]);
      ++placed;
    }
    return arena;
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  struct Stretch {
    int64_t first, last;  // positions
    int64_t height;       // the lowest address that is free in all of them
  };
  using Place = std::list<Stretch>::iterator;
  struct Worth {
    bool large;
    double product;
    int64_t bytes;
    bool operator<(const Worth& other) const {
      return std::tie(large, product, bytes) < std::tie(other.large, other.product, other.bytes);
    }
  };

  // The first buffer from i on that is not placed yet.
  size_t unplaced(size_t i) {
    while (next_[i] != i) i = next_[i] = next_[next_[i]];
    return i;
  }

  size_t best_within(const Stretch& stretch) {
    size_t best = buffers_.size();
    const auto from = std::ranges::lower_bound(buffers_, stretch.first, {}, &Buffer::first);
    for (size_t i = unplaced(static_cast<size_t>(from - buffers_.begin())); i < buffers_.size(); i = unplaced(i + 1)) {
      if (buffers_[i].first > stretch.last) break;
      if (best < buffers_.size() && is_beyond(worth_[best], stretch.last - buffers_[i].first + 1)) break;
      if (buffers_[i].last > stretch.last) continue;
      if (best == buffers_.size() || worth_[best] < worth_[i]) best = i;
    }
    return best;
  }

  // Whether no buffer that lives so long at most is worth as much.
  bool is_beyond(const Worth& best, int64_t life) const {
    return best.large == (order_.large > 0) &&
           best.product > power(static_cast<double>(life), order_.life) * power(most_bytes_, order_.size);
  }

  void raise(Place lowest) {
    int64_t height = std::numeric_limits<int64_t>::max();
    if (lowest != stretches_.begin()) height = std::prev(lowest)->height;
    if (std::next(lowest) != stretches_.end()) height = std::min(height, std::next(lowest)->height);
    lowest->height = height;
    merge(lowest);
  }

  void put(Place place, const Buffer& b) {
    if (place->first < b.first) stretches_.insert(place, {place->first, b.first - 1, place->height});
    if (b.last < place->last) stretches_.insert(std::next(place), {b.last + 1, place->last, place->height});
    *place = {b.first, b.last, place->height + b.bytes};
    merge(place);
  }

  // With neighbours of the same height.
  void merge(Place place) {
    const Place next = std::next(place);
    if (next != stretches_.end() && next->height == place->height) {
      place->last = next->last;
      stretches_.erase(next);
    }
    if (place != stretches_.begin() && std::prev(place)->height == place->height) {
      place->first = std::prev(place)->first;
      stretches_.erase(std::prev(place));
    }
  }

  std::span<const Buffer> buffers_;
  const Order order_;
  double most_bytes_ = 0;  // of a buffer
  std::vector<Worth> worth_;
  std::list<Stretch> stretches_;  // side by side, all of time
  std::vector<int64_t> offsets_;
  std::vector<size_t> next_;  // by buffer: itself until it is placed, then one after it
};

// By buffer: the most bytes that are alive at once while it is.
std::vector<int64_t> pressures(std::span<const Buffer> by_first) {
  int64_t end = 0;
  for (const Buffer& b : by_first) end = std::max(end, b.last + 2);
  std::vector<int64_t> live(static_cast<size_t>(end));
  for (const Buffer& b : by_first) {
    live[static_cast<size_t>(b.first)] += b.bytes;
    live[static_cast<size_t>(b.last) + 1] -= b.bytes;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  std::vector<int64_t> pressures;
  for (const Buffer& b : by_first)
    pressures.push_back(*std::max_element(live.begin() + b.first, live.begin() + b.last + 1));
  return pressures;
}

// Each buffer of an order at the lowest address where it overlaps none of those before it. The order of the large buffers
// that are alive near the peak is searched: some of what ends up on top, or of what lies beside it, goes earlier, and a change
// that makes the arena larger is taken back. Once from the order as it is, and once from the best of rounds in which all that
// ends up on top goes to the front: either is better by several per cent for some model. All other buffers find room between
// those.
class LowestFit {
 public:
  LowestFit(std::span<const Buffer> buffers, int64_t peak) : buffers_(buffers), peak_(peak) {
    offsets_.resize(buffers.size());
    for (const Buffer& b : buffers) end_ = std::max(end_, b.last + 1);
    const std::vector<int64_t> pressure = pressures(buffers);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const bool large = buffers[i].bytes > peak / kLargeShare;
      const bool hot =
          buffers.size() < kFew || static_cast<double>(pressure[i]) >= kNearPeak * static_cast<double>(peak);
      (!large ? small_ : hot ? hot_ : cold_).push_back(i);
    }
  }

  // Begins with those that are worth most.
  void begin_with(const Order& order) {
    const auto worth = [&](size_t i) {
      const auto life = static_cast<double>(buffers_[i].last - buffers_[i].first + 1);
      return power(life, order.life) * power(static_cast<double>(buffers_[i].bytes), order.size);
    };
    for (auto* part : {&hot_, &cold_, &small_}) std::ranges::stable_sort(*part, std::greater(), worth);
  }
  // Begins as another way has placed them, the lowest first.
  void begin_with(const std::vector<int64_t>& offsets) {
    for (auto* part : {&hot_, &cold_, &small_})
      std::ranges::stable_sort(*part, {}, [&](size_t i) { return offsets[i]; });
  }

  // Bytes of the arena; gives up where that would be `bound` or more.
  int64_t place(int64_t bound) {
    if (search() >= bound) return bound;
    std::vector<size_t> order = hot_;
    order.insert(order.end(), cold_.begin(), cold_.end());
    // What lives in several spans first: then the others need to be looked up in their span alone.
    std::ranges::stable_partition(small_, [&](size_t i) { return is_wide(buffers_[i]); });
    order.insert(order.end(), small_.begin(), small_.end());
    return place(order, bound);
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  struct Placed {
    int64_t begin, end;  // addresses
    int64_t first, last;
  };
  using ByAddress = std::vector<Placed>;

  static void insert(ByAddress& placed, const Placed& p) {
    placed.insert(std::ranges::upper_bound(placed, p.begin, {}, &Placed::begin), p);
  }

  // Leaves the best order in hot_: bytes of the arena of these alone.
  int64_t search() {
    const std::vector<size_t> start = hot_;
    move_tops_to_front();
    const int64_t after_rounds = improve();
    if (after_rounds <= peak_) return after_rounds;
    std::vector<size_t> best = std::exchange(hot_, start);
    const int64_t from_start = improve();
    if (from_start >= after_rounds) hot_ = std::move(best);
    return std::min(from_start, after_rounds);
  }

  // Leaves the best order of the rounds in hot_.
  void move_tops_to_front() {
    int64_t arena = kUnbounded;
    std::vector<size_t> trial = hot_;
    for (int in_vain = 0; in_vain < kRoundsInVain && arena > peak_; ++in_vain) {
      const int64_t tried = place(trial, kUnbounded);
      if (tried < arena) {
        arena = tried;
        hot_ = trial;
        in_vain = 0;
      }
      std::ranges::stable_partition(trial, [&](size_t i) { return offsets_[i] + buffers_[i].bytes == tried; });
    }
  }

  // Searches from hot_, and leaves the best order in it: bytes of the arena of these alone.
  int64_t improve() {
    int64_t arena = place(hot_, kUnbounded);
    std::vector<int64_t> offsets = offsets_;
    std::vector<size_t> trial;
    uint64_t drawn = 0;
    const auto random = [&](size_t n) { return philox4x32(0, 0, drawn++)[0] % n; };
    const auto beside = [&](size_t on_top) {  // alive with it, and not much smaller
      const Buffer& top = buffers_[hot_[on_top]];
      std::vector<size_t> places;
      for (size_t k = 0; k < hot_.size(); ++k)
        if (const Buffer& b = buffers_[hot_[k]];
            b.first <= top.last && top.first <= b.last && b.bytes > top.bytes / kBesideShare)
          places.push_back(k);
      return places[random(places.size())];
    };
    for (int in_vain = 0; in_vain < kTriesInVain && arena > peak_; ++in_vain) {
      std::vector<size_t> places;  // on top
      for (size_t k = 0; k < hot_.size(); ++k)
        if (offsets[hot_[k]] + buffers_[hot_[k]].bytes == arena) places.push_back(k);
      trial = hot_;
      if (random(3) == 0) {
        std::ranges::stable_partition(trial, [&](size_t i) { return offsets[i] + buffers_[i].bytes == arena; });
      } else {
        const size_t from = random(3) == 0 ? beside(places[random(places.size())]) : places[random(places.size())];
        const size_t to = from == 0 || random(2) == 0 ? 0 : random(from);
        const auto at = [&](size_t k) { return trial.begin() + static_cast<std::ptrdiff_t>(k); };
        std::rotate(at(to), at(from), at(from + 1));
      }
      const int64_t tried = place(trial, arena + 1);
      if (tried > arena) continue;
      if (tried < arena) in_vain = 0;
      arena = tried;
      hot_ = trial;
      offsets = offsets_;
    }
    return arena;
  }

  // Which of the parts into which the step is cut.
  size_t span_of(int64_t position) const { return static_cast<size_t>(position * int64_t{kSpans} / end_); }
  bool is_wide(const Buffer& b) const { return span_of(b.first) != span_of(b.last); }

  // As place(bound), of this order.
  int64_t place(const std::vector<size_t>& order, int64_t bound) {
    all_.clear();
    for (ByAddress& span : in_span_) span.clear();
    size_t wide = order.size();  // those before it look into all_
    while (wide > 0 && !is_wide(buffers_[order[wide - 1]])) --wide;
    int64_t arena = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t i = order[k];
      const Buffer& b = buffers_[i];
      const size_t from = span_of(b.first), to = span_of(b.last);
      int64_t begin = 0;
      for (const Placed& other : is_wide(b) ? all_ : in_span_[from]) {
        if (other.last < b.first || other.first > b.last) continue;
        if (other.begin - begin >= b.bytes) break;
        begin = std::max(begin, other.end);
      }
      offsets_[i] = begin;
      const Placed placed = {begin, begin + b.bytes, b.first, b.last};
      if (k < wide) insert(all_, placed);
      for (size_t span = from; span <= to; ++span) insert(in_span_[span], placed);
      arena = std::max(arena, placed.end);
      if (arena >= bound) return bound;
    }
    return arena;
  }

  static constexpr int kSpans = 64;
  std::span<const Buffer> buffers_;
  int64_t peak_, end_ = 1;
  std::vector<size_t> hot_, cold_, small_;  // large ones near the peak, other large ones, the rest
  std::vector<int64_t> offsets_;
  ByAddress all_;                          // that are placed
  std::array<ByAddress, kSpans> in_span_;  // of them, what is alive in one; most buffers live in one alone
};

}  // namespace

Peak live_peak(std::span<const Buffer> buffers) {
  std::map<int64_t, int64_t> changes;  // of live bytes, by position
  for (const Buffer& b : buffers) {
    changes[b.first] += b.bytes;
    changes[b.last + 1] -= b.bytes;
  }
  Peak peak;
  int64_t live = 0;
  for (const auto& [position, change] : changes) {
    live += change;
    if (live > peak.bytes) peak = {live, position};
  }
  return peak;
}

int64_t assign_offsets(std::span<Buffer> buffers, int64_t enough) {
  if (buffers.empty()) return 0;
  const int64_t peak = live_peak(buffers).bytes;
  enough = std::max(enough, peak);
  std::vector<size_t> index(buffers.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = i;
  std::ranges::stable_sort(index, {}, [&](size_t i) { return buffers[i].first; });
  std::vector<Buffer> by_first;
  for (const size_t i : index) by_first.push_back(buffers[i]);

  int64_t smallest = kUnbounded;
  for (const Order& order : kOrders) {
    Skyline skyline(by_first, order, peak);
    const int64_t arena = skyline.place(smallest);
    if (arena == smallest) continue;
    smallest = arena;
    for (size_t k = 0; k < index.size(); ++k) buffers[index[k]].offset = skyline.offsets()[k];
    if (smallest <= enough) break;
  }
  // Slower, and better where large buffers overlap in time like tiles, as those that are sent do.
  std::optional<LowestFit> unordered;
  const auto try_from = [&](const auto& beginning) {
    if (smallest <= enough || is_tight(smallest, peak)) return;
    if (!unordered) unordered.emplace(by_first, peak);
    LowestFit fit = *unordered;
    fit.begin_with(beginning);
    const int64_t arena = fit.place(smallest);
    if (arena >= smallest) return;
    smallest = arena;
    for (size_t k = 0; k < index.size(); ++k) buffers[index[k]].offset = fit.offsets()[k];
  };
  std::vector<int64_t> placed;
  for (const size_t i : index) placed.push_back(buffers[i].offset);
  try_from(placed);
  for (const Order& order : kFitOrders) try_from(order);
  return smallest;
}

}  // namespace sfsdp::plan
