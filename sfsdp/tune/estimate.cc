// SPDX-License-Identifier: BSD-3-Clause
// Times a schedule on a profile: what sim::simulate does with the graph that the passes make of it, for one rank and
// one communicator.
#include "sfsdp/tune/estimate.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "sfsdp/mesh/chunk.h"

namespace sfsdp::tune {

// The parameters of one unit and kind: what has one gather and one reduction.
struct Estimator::Bucket {
  const UnitChoice* unit = nullptr;
  bool keep = false;  // gathered once for forward and backward
  const KindProfile* kind = nullptr;
  size_t param = 0;  // the first, in the profile
  int64_t elements = 0, gradient_bytes = 0;
  int64_t fwd_first = -1, fwd_last = -1, bwd_first = -1, bwd_last = -1, gradient = -1;
  double cast = 0, gather = 0, pack = 0, sum = 0, reduce = 0, replicas = 0;  // seconds; sum: over micro-batches
  double sum_read = 0;  // of pack or sum: reading what earlier micro-batches have added up
  double gather_slowdown = 1, reduce_slowdown = 1, replicas_slowdown = 1;  // of kernels beside them
  double gather_done = 0, reduce_done = 0, replicas_done = 0;
  int64_t gather_begin = 0;  // position of its start, in the section at hand
  // What its gradients and their reduced shard hold, as changes of bytes by moment.
  const std::vector<std::pair<int64_t, int64_t>>* gradients = nullptr;
  int64_t shard = 0;  // bytes of the reduced shard

  bool has_reduction() const { return !kind->reduction.empty(); }
  bool is_packed() const { return gradient >= 0 && (has_reduction() || kind->replicas); }
  // Packed whole: added to the sum over micro-batches as it is copied (passes/fuse).
  bool is_added() const { return kind->adds_up && (kind->once || !has_reduction()) && is_packed(); }
  int64_t packed_bytes() const { return static_cast<int64_t>(static_cast<double>(elements) * kind->reduced); }
};

namespace {

// Memory is counted at four moments a position: the op itself, and after it a pack and the start of its reduction. The
// profile knows two: at the op, and after it.
constexpr int64_t kMoments = 4, kPack = 2, kStart = 3;

int64_t last_moment(const StepProfile& profile) { return (static_cast<int64_t>(profile.live[0].size()) - 1) * 2; }

int64_t lower(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

}  // namespace

// Which ops stand before or after which, as lists: of op i the first in `before` or `after`, then along `next`; -1 ends.
struct Places {
  std::vector<int> before, after, next;
  std::vector<bool> moved, at_end;
  void clear(size_t n) {
    before.assign(n, -1);
    after.assign(n, -1);
    next.assign(n, -1);
    moved.assign(n, false);
    at_end.assign(n, false);
  }
  // To be called from the last op to the first, so that lists are in order.
  void put(size_t op, const passes::Place& place) {
    moved[op] = place.where != passes::Place::Where::Stays;
    at_end[op] = place.where == passes::Place::Where::ToEnd;
    if (place.where != passes::Place::Where::Moves) return;
    int& head = (place.side == passes::Side::Before ? before : after)[place.target];
    next[op] = head;
    head = static_cast<int>(op);
  }
};

// Kept from schedule to schedule: allocating it anew took most of an estimate.
struct Estimator::Scratch {
  std::vector<Bucket> buckets;
  std::vector<Bucket*> forward, backward, packs, reductions;  // reductions: of the micro-batch at hand
  std::vector<std::pair<int64_t, int64_t>> changes;           // of held bytes, by moment
  Places gathers, waits;
};

// One schedule on the clock.
class Estimator::Run {
 public:
  Run(const StepProfile& profile, Scratch& scratch)
      : profile_(profile),
        buckets_(scratch.buckets),
        forward_(scratch.forward),
        backward_(scratch.backward),
        packs_(scratch.packs),
        reductions_(scratch.reductions),
        changes_(scratch.changes),
        gathers_(scratch.gathers),
        waits_(scratch.waits) {
    forward_.clear();
    backward_.clear();
    packs_.clear();
    changes_.clear();
    for (Bucket& b : buckets_) {
      if (b.kind->gathered > 0 && b.fwd_first >= 0) forward_.push_back(&b);
      const bool again = !b.keep || b.fwd_first < 0;
      if (b.kind->gathered > 0 && b.bwd_first >= 0 && again) backward_.push_back(&b);
      if (b.is_packed()) packs_.push_back(&b);
    }
    std::ranges::stable_sort(forward_, {}, &Bucket::fwd_first);
    std::ranges::stable_sort(backward_, {}, &Bucket::bwd_first);
    std::ranges::stable_sort(packs_, {}, &Bucket::gradient);
  }

  std::vector<ScheduleEvent>* log = nullptr;  // takes what happens, where it is set

  Estimate estimate(bool with_memory) {
    for (int64_t m = 0; m < profile_.micro_batches; ++m) {
      at_ = profile_.body_begin;
      first_ = m == 0 && profile_.micro_batches > 1;
      last_ = m + 1 == profile_.micro_batches;
      changes_.clear();
      if (log) log->clear();
      run_forward();
      run_backward();
    }
    for (const Bucket* b : packs_) wait_for(b->replicas_done);
    now_ += profile_.tail_seconds;
    for (const Bucket& b : buckets_) now_ += tail_of(b);
    Estimate out;
    out.seconds = now_;
    out.exposed = exposed_;
    if (with_memory) out.peak_bytes = profile_.state_bytes + peak();
    return out;
  }

 private:
  // The bytes of these kernels are in tail_seconds.
  double tail_of(const Bucket& b) const { return static_cast<double>(b.kind->tail_kernels) * profile_.machine.launch; }

  void add_up(const Bucket& b) {
    if (!b.is_added()) compute(b.sum - (first_ ? b.sum_read : 0));
  }

  void advance(int64_t to) {
    if (to <= at_) return;
    compute(profile_.seconds_between(at_, to));
    at_ = to;
  }
  // Collectives stand at this position.
  void cut(int64_t position) {
    advance(position);
    if (cut_ != position) compute(profile_.cuts[static_cast<size_t>(position)]);
    cut_ = position;
  }
  // Kernels are slower while a collective runs beside them.
  void compute(double alone) {
    const double shared = std::max(0.0, busy_ - now_);
    now_ += alone * slowdown_ <= shared ? alone * slowdown_ : alone + shared * (1 - 1 / slowdown_);
  }
  // Returns when it is done. A communicator is a lane; those that are busy slow kernels down as one.
  double start(double& lane, double seconds, double slowdown) {
    lane = std::max(lane, now_) + seconds;
    busy_ = std::max(busy_, now_) + seconds;
    slowdown_ = slowdown;
    return lane;
  }
  void note(ScheduleEvent::Kind kind, const Bucket& b) {
    if (log) log->push_back({kind, b.param});
  }
  void start_gather(Bucket& b) {
    note(ScheduleEvent::Kind::StartGather, b);
    compute(b.cast);
    b.gather_done = start(lane_, b.gather, b.gather_slowdown);
    b.gather_begin = at_ * kMoments;
  }
  void wait_for(double done) {
    exposed_ += std::max(0.0, done - now_);
    now_ = std::max(now_, done);
    busy_ = std::max(busy_, done);
  }
  void start_replicas(Bucket& b) {
    if (!b.kind->replicas || !last_) return;
    b.replicas_done = start(replica_lane_, b.replicas, b.replicas_slowdown);
    hold(at_ * kMoments, end_, b.shard);
  }

  void place(const std::vector<Bucket*>& gathers, bool forward) {
    gathers_.clear(gathers.size());
    const auto bytes = [&](size_t k) { return gathered_bytes(*gathers[k]); };
    for (size_t i = gathers.size(); i-- > 0;) {
      const passes::UnitSchedule& order = gathers[i]->unit->order;
      const int64_t depth = forward ? order.forward_depth : order.backward_depth;
      gathers_.put(i, passes::gather_place(i, depth, forward ? order.forward : order.backward,
                                           profile_.max_gather_bytes, bytes));
    }
  }
  void run_gather(const std::vector<Bucket*>& gathers, size_t i) {
    if (!gathers_.moved[i]) start_gather(*gathers[i]);
    for (int k = gathers_.before[i]; k >= 0; k = gathers_.next[static_cast<size_t>(k)])
      start_gather(*gathers[static_cast<size_t>(k)]);
    wait_for(gathers[i]->gather_done);
    note(ScheduleEvent::Kind::WaitForGather, *gathers[i]);
    for (int k = gathers_.after[i]; k >= 0; k = gathers_.next[static_cast<size_t>(k)])
      start_gather(*gathers[static_cast<size_t>(k)]);
  }

  void run_forward() {
    place(forward_, true);
    for (size_t i = 0; i < forward_.size(); ++i) {
      cut(forward_[i]->fwd_first);
      run_gather(forward_, i);
    }
    advance(profile_.backward_begin);
    for (Bucket* b : forward_)
      hold(b->gather_begin, kMoments * (b->keep ? std::max(b->fwd_last, b->bwd_last) : b->fwd_last),
           gathered_bytes(*b));
  }

  void run_backward() {
    place(backward_, false);
    if (!backward_.empty() && passes::starts_with_backward(0, backward_[0]->unit->order.backward_depth)) {
      gathers_.moved[0] = true;
      start_gather(*backward_[0]);
    }
    size_t next = 0;
    reductions_.clear();
    for (Bucket* b : packs_)
      if (b->has_reduction() && (last_ || !b->kind->once)) reductions_.push_back(b);
    const size_t n = reductions_.size();
    waits_.clear(n);
    for (size_t i = n; i-- > 0;) {
      const passes::UnitSchedule& order = reductions_[i]->unit->order;
      waits_.put(i, passes::wait_place(i, n, order.sink_depth, order.sink));
    }
    const auto gathers_up_to = [&](int64_t position) {
      for (; next < backward_.size() && backward_[next]->bwd_first <= position; ++next) {
        cut(backward_[next]->bwd_first);
        run_gather(backward_, next);
      }
    };
    const auto finish = [&](Bucket* b, int64_t until) {  // until: the last moment of what is sent
      wait_for(b->reduce_done);
      note(ScheduleEvent::Kind::WaitForReduction, *b);
      if (!b->kind->once) {
        add_up(*b);
        const int64_t start = b->gradient * kMoments + kStart;
        hold(b->gradient * kMoments + kPack, std::max(start, until), b->packed_bytes());
        if (profile_.micro_batches > 1) hold(start, std::max(start, until), b->shard);  // to be added to the sum
      }
      start_replicas(*b);
    };
    const auto finish_all = [&](int first, int64_t until) {
      for (int k = first; k >= 0; k = waits_.next[static_cast<size_t>(k)])
        finish(reductions_[static_cast<size_t>(k)], until);
    };
    size_t i = 0;
    for (Bucket* const packed : packs_) {
      Bucket& b = *packed;
      gathers_up_to(b.gradient);
      cut(b.gradient + 1);
      const bool reduces = i < n && reductions_[i] == packed;
      const int64_t packed_at = b.gradient * kMoments + kPack;
      if (reduces && !b.kind->once) finish_all(waits_.before[i], packed_at - 1);
      compute(b.pack - (first_ && b.is_added() ? b.sum_read : 0));
      if (b.kind->once || !b.has_reduction()) add_up(b);
      if (b.kind->once && !b.is_added()) hold(packed_at, packed_at, b.packed_bytes());
      if (!reduces) {
        if (!b.has_reduction()) start_replicas(b);
        continue;
      }
      if (b.kind->once) finish_all(waits_.before[i], packed_at);
      b.reduce_done = start(lane_, b.reduce, b.reduce_slowdown);
      note(ScheduleEvent::Kind::StartReduction, b);
      finish_all(waits_.after[i], packed_at + 1);
      if (!waits_.moved[i]) finish(&b, packed_at + 1);
      ++i;
    }
    gathers_up_to(std::numeric_limits<int64_t>::max());
    advance(profile_.body_end);
    for (size_t k = 0; k < n; ++k)
      if (waits_.at_end[k]) finish(reductions_[k], at_ * kMoments - 1);
    for (Bucket* b : backward_) hold(b->gather_begin, kMoments * b->bwd_last, gathered_bytes(*b));
  }

  static int64_t gathered_bytes(const Bucket& b) {
    return static_cast<int64_t>(static_cast<double>(b.elements) * b.kind->gathered);
  }

  void hold(int64_t first, int64_t last, int64_t bytes) {
    if (last < first || bytes == 0) return;
    changes_.emplace_back(first, bytes);
    changes_.emplace_back(last + 1, -bytes);
  }

  // Most bytes alive: what the profile says is alive anyway, and what the buckets hold. Of the last micro-batch.
  int64_t peak() {
    int64_t largest = 0;  // clipped gradient, which the update reads
    for (const Bucket& b : buckets_) {
      if (b.gradients) changes_.insert(changes_.end(), b.gradients->begin(), b.gradients->end());
      largest = std::max(largest, b.shard);
    }
    hold(profile_.body_end * kMoments, end_, largest);
    std::ranges::sort(changes_);
    int64_t held = 0, most = 0, from = 0;
    for (size_t i = 0; i < changes_.size();) {
      const int64_t position = changes_[i].first;
      most = std::max(most, held + most_live(from, position - 1));
      for (; i < changes_.size() && changes_[i].first == position; ++i) held += changes_[i].second;
      from = position;
    }
    return std::max(most, held + most_live(from, end_));
  }
  int64_t most_live(int64_t first, int64_t last) const {  // of moments
    return last < first ? 0 : profile_.most_live(first / 2, last / 2);
  }

  const StepProfile& profile_;
  std::vector<Bucket>& buckets_;
  std::vector<Bucket*>&forward_, &backward_, &packs_, &reductions_;
  std::vector<std::pair<int64_t, int64_t>>& changes_;
  Places &gathers_, &waits_;
  double now_ = 0, slowdown_ = 1, exposed_ = 0;
  double lane_ = 0, replica_lane_ = 0, busy_ = 0;  // until when: the shards' communicator, the replicas', any
  int64_t at_ = 0, cut_ = -1;
  const int64_t end_ = last_moment(profile_);
  bool first_ = true, last_ = true;  // micro-batch
};

Estimator::Estimator(const StepProfile& profile) : profile_(profile), scratch_(std::make_unique<Scratch>()) {}
Estimator::~Estimator() = default;

// The buckets of a unit, which depend on its parameters alone: most units of two schedules are the same.
const std::vector<Estimator::Bucket>& Estimator::buckets_of(size_t first, size_t end) {
  const auto [place, fresh] = known_.try_emplace(first * (profile_.params.size() + 1) + end);
  std::vector<Bucket>& buckets = place->second;
  if (!fresh) return buckets;
  for (size_t i = first; i < end; ++i) {
    const ParamProfile& p = profile_.params[i];
    const KindProfile* kind = &profile_.kinds[p.kind];
    size_t at = 0;
    while (at < buckets.size() && buckets[at].kind != kind) ++at;
    if (at == buckets.size()) {
      buckets.emplace_back().kind = kind;
      buckets.back().param = i;
    }
    Bucket& b = buckets[at];
    b.elements += p.elements;
    b.gradient_bytes += p.gradient_bytes;
    b.fwd_first = lower(b.fwd_first, p.fwd_first);
    b.bwd_first = lower(b.bwd_first, p.bwd_first);
    b.fwd_last = std::max(b.fwd_last, p.fwd_last);
    b.bwd_last = std::max(b.bwd_last, p.bwd_last);
    b.gradient = std::max(b.gradient, p.gradient);
  }
  for (Bucket& b : buckets) {
    price(b);
    if (!b.is_packed()) continue;
    auto& changes = gradient_changes_.emplace_back();
    b.gradients = &changes;
    const auto hold = [&](int64_t from, int64_t to, int64_t bytes) {
      changes.emplace_back(from, bytes);
      changes.emplace_back(to + 1, -bytes);
    };
    const int64_t elements = b.elements / b.kind->ranks;
    b.shard = static_cast<int64_t>(static_cast<double>(elements) * b.kind->reduced);
    const int64_t last = b.kind->replicas ? profile_.body_end * kMoments : last_moment(profile_);
    // Until the update, or the reduction over replicas is done; what micro-batches add to, from the first one on.
    const bool sums_up = profile_.micro_batches > 1 && !b.kind->once;
    hold(sums_up ? 0 : b.gradient * kMoments + kStart, last, b.shard);
    if (b.kind->once) hold(0, profile_.body_end * kMoments, b.packed_bytes());
    for (size_t i = first; i < end; ++i)
      if (const ParamProfile& p = profile_.params[i]; p.gradient >= 0 && &profile_.kinds[p.kind] == b.kind)
        hold(p.gradient_made * kMoments, b.gradient * kMoments + kPack, p.gradient_bytes);
  }
  return buckets;
}

double Estimator::memory_seconds(double bytes) const {
  return profile_.machine.launch + bytes / (profile_.machine.memory_bandwidth * profile_.machine.memory_efficiency);
}

void Estimator::price(Bucket& b) const {
  const KindProfile& k = *b.kind;
  b.elements = round_up(b.elements, k.ranks * k.alignment);
  const auto n = static_cast<double>(b.elements), mine = n / static_cast<double>(k.ranks);
  if (k.gathered > 0)
    b.gather = cost::collective_seconds("all_gather", n * k.gathered, k.gather_group, profile_.machine);
  b.gather_slowdown = cost::overlap_slowdown(k.gather_group, profile_.machine);
  b.reduce_slowdown = cost::overlap_slowdown(k.reduce_group, profile_.machine);
  b.replicas_slowdown = cost::overlap_slowdown(k.replica_group, profile_.machine);
  if (k.casts) b.cast = memory_seconds(mine * (k.stored + k.gathered));
  if (!k.reduction.empty()) {
    b.reduce = cost::collective_seconds(k.reduction, n * k.reduced, k.reduce_group, profile_.machine);
  }
  if (k.replicas) {
    const double whole = k.reduction.empty() ? n : mine;
    b.replicas = cost::collective_seconds("all_reduce", whole * k.reduced, k.replica_group, profile_.machine);
  }
  const double sum_bytes = k.adds_up ? k.reduced * (k.once || k.reduction.empty() ? n : mine) : 0;
  b.sum_read = memory_seconds(sum_bytes) - memory_seconds(0);
  if (k.adds_up && !b.is_added()) b.sum = memory_seconds(3 * sum_bytes);
  if (b.is_packed())
    b.pack = memory_seconds(static_cast<double>(b.gradient_bytes + (b.is_added() ? 2 : 1) * b.packed_bytes()));
}

void Estimator::fill(const Schedule& schedule) {
  scratch_->buckets.clear();
  for (const UnitChoice& unit : schedule) {
    const bool keep =
        unit.keep || (std::cmp_greater_equal(profile_.kept, unit.first) && std::cmp_less(profile_.kept, unit.end));
    for (const Bucket& known : buckets_of(unit.first, unit.end)) {
      Bucket& b = scratch_->buckets.emplace_back(known);
      b.unit = &unit;
      b.keep = keep;
    }
  }
}

Estimate Estimator::estimate(const Schedule& schedule) {
  fill(schedule);
  return Run(profile_, *scratch_).estimate(true);
}

double Estimator::seconds(const Schedule& schedule) {
  fill(schedule);
  return Run(profile_, *scratch_).estimate(false).seconds;
}

std::vector<ScheduleEvent> Estimator::events(const Schedule& schedule) {
  fill(schedule);
  Run run(profile_, *scratch_);
  std::vector<ScheduleEvent> log;
  run.log = &log;
  run.estimate(false);
  return log;
}

Estimate estimate(const StepProfile& profile, const Schedule& schedule) {
  return Estimator(profile).estimate(schedule);
}

}  // namespace sfsdp::tune
