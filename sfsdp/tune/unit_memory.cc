// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/unit_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sfsdp/mesh/chunk.h"

namespace sfsdp::tune {
namespace {

int64_t lower(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// The parameters of one unit and kind: what has one gather and one reduction. Positions as in ParamProfile.
struct Bucket {
  const KindProfile* kind = nullptr;
  passes::UnitSchedule order;
  bool keep = false;  // gathered once for forward and backward
  int64_t elements = 0;
  int64_t fwd_first = -1, fwd_last = -1, bwd_first = -1, bwd_last = -1, gradient = -1;

  int64_t bytes(double per_element) const { return static_cast<int64_t>(static_cast<double>(elements) * per_element); }
  int64_t gathered() const { return bytes(kind->gathered); }
  int64_t packed() const { return bytes(kind->reduced); }
  int64_t shard() const { return packed() / kind->ranks; }
  bool has_reduction() const { return !kind->reduction.empty(); }
  bool is_packed() const { return gradient >= 0 && (has_reduction() || kind->replicas); }
};

// Bytes by entry of StepProfile::live, in the last micro-batch; filled by fill(), then added up by peak().
class HeldBytes {
 public:
  HeldBytes(const StepProfile& profile, const Schedule& schedule)
      : profile_(profile), changes_(profile.live.size() + 1), last_(std::ssize(profile.live) - 1) {
    for (const UnitChoice& unit : schedule) add_unit(unit);
  }

  void fill() {
    hold_gathers(true);
    hold_gathers(false);
    hold_reductions();
    int64_t clipped = 0;  // the largest gradient, which the update reads
    for (const Bucket& b : buckets_) clipped = std::max(clipped, b.is_packed() ? b.shard() : 0);
    hold(2 * profile_.body_end, last_, clipped);
  }

  int64_t peak() const {
    int64_t held = 0, most = 0;
    for (size_t i = 0; i < profile_.live.size(); ++i) {
      held += changes_[i];
      most = std::max(most, held + profile_.live[i]);
    }
    return most;
  }

 private:
  // Entry 2 p is position p, 2 p + 1 what follows it.
  void hold(int64_t first, int64_t last, int64_t bytes) {
    if (last < first) return;
    changes_[static_cast<size_t>(first)] += bytes;
    changes_[static_cast<size_t>(std::min(last, last_)) + 1] -= bytes;
  }

  void add_unit(const UnitChoice& unit) {
    const size_t first = buckets_.size();
    const bool keep =
        unit.keep || (std::cmp_greater_equal(profile_.kept, unit.first) && std::cmp_less(profile_.kept, unit.end));
    for (size_t i = unit.first; i < unit.end; ++i) {
      const ParamProfile& p = profile_.params[i];
      const KindProfile* kind = &profile_.kinds[p.kind];
      auto b = std::find_if(buckets_.begin() + static_cast<std::ptrdiff_t>(first), buckets_.end(),
                            [&](const Bucket& other) { return other.kind == kind; });
      if (b == buckets_.end()) b = buckets_.insert(b, {.kind = kind, .order = unit.order, .keep = keep});
      b->elements += p.elements;
      b->fwd_first = lower(b->fwd_first, p.fwd_first);
      b->bwd_first = lower(b->bwd_first, p.bwd_first);
      b->fwd_last = std::max(b->fwd_last, p.fwd_last);
      b->bwd_last = std::max(b->bwd_last, p.bwd_last);
      b->gradient = std::max(b->gradient, p.gradient);
    }
    for (auto b = buckets_.begin() + static_cast<std::ptrdiff_t>(first); b != buckets_.end(); ++b)
      b->elements = round_up(b->elements, b->kind->ranks * b->kind->alignment);
    // Each gradient from when it is made until it is packed.
    for (size_t i = unit.first; i < unit.end; ++i)
      for (size_t k = first; k < buckets_.size(); ++k)
        if (const ParamProfile& p = profile_.params[i];
            p.gradient >= 0 && &profile_.kinds[p.kind] == buckets_[k].kind && buckets_[k].is_packed())
          hold(2 * p.gradient_made, 2 * buckets_[k].gradient + 1, p.gradient_bytes);
  }

  // From the read of the unit that it starts before, until its own last read.
  void hold_gathers(bool forward) {
    const auto read = [&](const Bucket& b) { return forward ? b.fwd_first : b.bwd_first; };
    std::vector<const Bucket*> gathers;
    for (const Bucket& b : buckets_)
      if (b.kind->gathered > 0 && read(b) >= 0 && (forward || !b.keep || b.fwd_first < 0)) gathers.push_back(&b);
    std::ranges::stable_sort(gathers, {}, [&](const Bucket* b) { return read(*b); });
    const auto bytes = [&](size_t k) { return gathers[k]->gathered(); };
    for (size_t i = 0; i < gathers.size(); ++i) {
      const Bucket& b = *gathers[i];
      const int64_t depth = forward ? b.order.forward_depth : b.order.backward_depth;
      const passes::Place place = passes::gather_place(i, depth, forward ? b.order.forward : b.order.backward,
                                                       profile_.max_gather_bytes, bytes);
      int64_t begin = place.where == passes::Place::Where::Moves ? read(*gathers[place.target]) : read(b);
      if (!forward && passes::starts_with_backward(i, depth)) begin = profile_.backward_begin;
      const int64_t last = !forward ? b.bwd_last : b.keep ? std::max(b.fwd_last, b.bwd_last) : b.fwd_last;
      hold(2 * begin, 2 * last, b.gathered());
    }
  }

  // What is packed until its reduction is waited for; the shard from its start, when the gradients are packed and gone, until the
  // update, or from the first micro-batch on.
  void hold_reductions() {
    std::vector<const Bucket*> reductions;
    for (const Bucket& b : buckets_) {
      if (!b.is_packed()) continue;
      if (!b.has_reduction()) hold(2 * b.gradient + 2, last_, b.shard());  // reduced over replicas alone
      hold(sums_shards(b) ? 0 : 2 * b.gradient + 2, b.kind->replicas ? 2 * profile_.body_end : last_, b.shard());
      if (b.kind->once) hold(0, 2 * profile_.body_end, b.packed());
      if (b.has_reduction()) reductions.push_back(&b);
    }
    std::ranges::stable_sort(reductions, {}, &Bucket::gradient);
    for (size_t i = 0; i < reductions.size(); ++i) {
      const Bucket& b = *reductions[i];
      const passes::Place wait = passes::wait_place(i, reductions.size(), b.order.sink_depth, b.order.sink);
      int64_t until = 2 * b.gradient + 1;
      if (wait.where == passes::Place::Where::ToEnd) until = 2 * profile_.body_end - 1;
      if (wait.where == passes::Place::Where::Moves)
        until = 2 * reductions[wait.target]->gradient + (wait.side == passes::Side::After ? 1 : 0);
      if (!b.kind->once) hold(2 * b.gradient + 1, until, b.packed());
      if (sums_shards(b)) hold(2 * b.gradient + 2, until, b.shard());  // to be added to the sum
      if (b.kind->replicas) hold(until + 1, last_, b.shard());
    }
  }

  bool sums_shards(const Bucket& b) const { return profile_.micro_batches > 1 && !b.kind->once; }

  const StepProfile& profile_;
  std::vector<int64_t> changes_;  // by entry: of what is held, against the entry before
  int64_t last_;                  // entry
  std::vector<Bucket> buckets_;
};

}  // namespace

int64_t peak_of_units(const StepProfile& profile, const Schedule& schedule) {
  HeldBytes held(profile, schedule);
  held.fill();
  return profile.state_bytes + held.peak();
}

void keep_what_fits(const StepProfile& profile, Schedule& schedule, int64_t budget) {
  for (size_t u = schedule.size(); u-- > 0;) {
    schedule[u].keep = true;
    if (peak_of_units(profile, schedule) <= budget) continue;
    schedule[u].keep = false;
    break;
  }
}

}  // namespace sfsdp::tune
