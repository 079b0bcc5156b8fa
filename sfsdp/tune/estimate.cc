// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/estimate.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <string_view>
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

using Change = std::pair<int64_t, int64_t>;  // of held bytes: the moment, and by how many

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
  std::vector<Change> changes;
  Places gathers, waits;
};

namespace {

// What the compute lane of a rank does, and what it waits for.
class Clock {
 public:
  double now() const { return now_; }
  double exposed() const { return exposed_; }

  // Kernels, which are slower while a collective runs beside them.
  void compute(double alone) {
    const double shared = std::max(0.0, busy_until_ - now_);
    now_ += alone * slowdown_ <= shared ? alone * slowdown_ : alone + shared * (1 - 1 / slowdown_);
  }
  // A collective on the lane of its communicator, which is busy until `lane`. Returns when it is done. All lanes slow kernels down
  // as one.
  double start(double& lane, double seconds, double slowdown) {
    lane = std::max(lane, now_) + seconds;
    busy_until_ = std::max(busy_until_, now_) + seconds;
    slowdown_ = slowdown;
    return lane;
  }
  void wait_for(double done) {
    exposed_ += std::max(0.0, done - now_);
    now_ = std::max(now_, done);
    busy_until_ = std::max(busy_until_, done);
  }
  void run(double seconds) { now_ += seconds; }  // beside no collective

 private:
  double now_ = 0, exposed_ = 0;
  double busy_until_ = 0, slowdown_ = 1;  // of any communicator
};

// Bytes of buckets in the last micro-batch, as changes by moment.
class HeldBytes {
 public:
  explicit HeldBytes(std::vector<Change>& changes) : changes_(changes) { changes_.clear(); }

  void clear() { changes_.clear(); }
  void hold(int64_t first, int64_t last, int64_t bytes) {
    if (last < first || bytes == 0) return;
    changes_.emplace_back(first, bytes);
    changes_.emplace_back(last + 1, -bytes);
  }
  void add(const std::vector<Change>& changes) { changes_.insert(changes_.end(), changes.begin(), changes.end()); }

  // The most of what is held and of what the profile says is alive anyway.
  int64_t peak(const StepProfile& profile) {
    const auto alive = [&](int64_t first, int64_t last) {
      return last < first ? 0 : profile.most_live(first / 2, last / 2);
    };
    std::ranges::sort(changes_);
    int64_t held = 0, most = 0, from = 0;
    for (size_t i = 0; i < changes_.size();) {
      const int64_t moment = changes_[i].first;
      most = std::max(most, held + alive(from, moment - 1));
      for (; i < changes_.size() && changes_[i].first == moment; ++i) held += changes_[i].second;
      from = moment;
    }
    return std::max(most, held + alive(from, last_moment(profile)));
  }

 private:
  std::vector<Change>& changes_;
};

}  // namespace

// One schedule on the clock: forward and backward of each micro-batch, then the update.
class Estimator::Run {
 public:
  Run(const StepProfile& profile, Scratch& scratch)
      : profile_(profile),
        buckets_(scratch.buckets),
        forward_(scratch.forward),
        backward_(scratch.backward),
        packs_(scratch.packs),
        reductions_(scratch.reductions),
        held_(scratch.changes),
        gathers_(scratch.gathers),
        waits_(scratch.waits) {
    sort_buckets();
  }

  std::vector<ScheduleEvent>* log = nullptr;  // takes what happens, where it is set

  Estimate estimate(bool with_memory) {
    for (int64_t m = 0; m < profile_.micro_batches; ++m) {
      at_ = profile_.body_begin;
      is_first_ = m == 0 && profile_.micro_batches > 1;
      is_last_ = m + 1 == profile_.micro_batches;
      held_.clear();
      if (log) log->clear();
      run_forward();
      run_backward();
    }
    run_update();
    Estimate out{.seconds = clock_.now(), .exposed = clock_.exposed()};
    if (with_memory) out.peak_bytes = profile_.state_bytes + peak();
    return out;
  }

 private:
  // Those that forward gathers, that backward gathers, and whose gradients are packed, each in the order in which that happens.
  void sort_buckets() {
    forward_.clear();
    backward_.clear();
    packs_.clear();
    for (Bucket& b : buckets_) {
      const bool is_gathered = b.kind->gathered > 0, is_kept = b.keep && b.fwd_first >= 0;
      if (is_gathered && b.fwd_first >= 0) forward_.push_back(&b);
      if (is_gathered && b.bwd_first >= 0 && !is_kept) backward_.push_back(&b);
      if (b.is_packed()) packs_.push_back(&b);
    }
    std::ranges::stable_sort(forward_, {}, &Bucket::fwd_first);
    std::ranges::stable_sort(backward_, {}, &Bucket::bwd_first);
    std::ranges::stable_sort(packs_, {}, &Bucket::gradient);
  }

  void note(ScheduleEvent::Kind kind, const Bucket& b) {
    if (log) log->push_back({kind, b.param});
  }

  // ---- compute

  void advance(int64_t to) {
    if (to <= at_) return;
    clock_.compute(profile_.seconds_between(at_, to));
    at_ = to;
  }

  // Collectives stand at this position, and may cut a kernel in two.
  void cut(int64_t position) {
    advance(position);
    if (cut_ != position) clock_.compute(profile_.cuts[static_cast<size_t>(position)]);
    cut_ = position;
  }

  // ---- gathers

  void run_forward() {
    place_gathers(forward_, true);
    for (size_t i = 0; i < forward_.size(); ++i) {
      cut(forward_[i]->fwd_first);
      run_gather(forward_, i);
    }
    advance(profile_.backward_begin);
    for (Bucket* b : forward_) hold_gathered(*b, b->keep ? std::max(b->fwd_last, b->bwd_last) : b->fwd_last);
  }

  // Before or after the wait of which gather each one starts.
  void place_gathers(const std::vector<Bucket*>& gathers, bool forward) {
    gathers_.clear(gathers.size());
    const auto bytes = [&](size_t k) { return gathered_bytes(*gathers[k]); };
    for (size_t i = gathers.size(); i-- > 0;) {
      const passes::UnitSchedule& order = gathers[i]->unit->order;
      const int64_t depth = forward ? order.forward_depth : order.backward_depth;
      gathers_.put(i, passes::gather_place(i, depth, forward ? order.forward : order.backward,
                                           profile_.max_gather_bytes, bytes));
    }
  }

  // Where bucket i is read: its wait, and the starts that stand around it.
  void run_gather(const std::vector<Bucket*>& gathers, size_t i) {
    const auto start_all = [&](int first) {
      for (int k = first; k >= 0; k = gathers_.next[static_cast<size_t>(k)])
        start_gather(*gathers[static_cast<size_t>(k)]);
    };
    if (!gathers_.moved[i]) start_gather(*gathers[i]);
    start_all(gathers_.before[i]);
    clock_.wait_for(gathers[i]->gather_done);
    note(ScheduleEvent::Kind::WaitForGather, *gathers[i]);
    start_all(gathers_.after[i]);
  }

  void start_gather(Bucket& b) {
    note(ScheduleEvent::Kind::StartGather, b);
    clock_.compute(b.cast);
    b.gather_done = clock_.start(lane_, b.gather, b.gather_slowdown);
    b.gather_begin = at_ * kMoments;
  }

  void hold_gathered(const Bucket& b, int64_t last) { held_.hold(b.gather_begin, kMoments * last, gathered_bytes(b)); }

  static int64_t gathered_bytes(const Bucket& b) {
    return static_cast<int64_t>(static_cast<double>(b.elements) * b.kind->gathered);
  }

  // ---- reductions

  // Gathers where parameters are read; where a unit's last gradient is made, its pack and the start of its reduction, and the
  // waits that stand around that start.
  void run_backward() {
    place_gathers(backward_, false);
    if (!backward_.empty() && passes::starts_with_backward(0, backward_[0]->unit->order.backward_depth)) {
      gathers_.moved[0] = true;
      start_gather(*backward_[0]);
    }
    place_waits();
    next_gather_ = 0;
    size_t next = 0;  // reduction
    for (Bucket* b : packs_) {
      gather_up_to(b->gradient);
      cut(b->gradient + 1);
      if (next < reductions_.size() && reductions_[next] == b)
        pack_and_reduce(next++);
      else
        pack_alone(*b);
    }
    gather_up_to(std::numeric_limits<int64_t>::max());
    advance(profile_.body_end);
    for (size_t i = 0; i < reductions_.size(); ++i)
      if (waits_.at_end[i]) finish(*reductions_[i], at_ * kMoments - 1);
    for (Bucket* b : backward_) hold_gathered(*b, b->bwd_last);
  }

  // What this micro-batch reduces, and before or after the start of which reduction each one is waited for.
  void place_waits() {
    reductions_.clear();
    for (Bucket* b : packs_)
      if (b->has_reduction() && (is_last_ || !b->kind->once)) reductions_.push_back(b);
    const size_t n = reductions_.size();
    waits_.clear(n);
    for (size_t i = n; i-- > 0;) {
      const passes::UnitSchedule& order = reductions_[i]->unit->order;
      waits_.put(i, passes::wait_place(i, n, order.sink_depth, order.sink));
    }
  }

  void gather_up_to(int64_t position) {
    for (; next_gather_ < backward_.size() && backward_[next_gather_]->bwd_first <= position; ++next_gather_) {
      cut(backward_[next_gather_]->bwd_first);
      run_gather(backward_, next_gather_);
    }
  }

  // Waits that stand before the start come before the pack, whose buffer is then that of the reduction before; but after a sum over
  // micro-batches, which is reduced itself.
  void pack_and_reduce(size_t i) {
    Bucket& b = *reductions_[i];
    const int64_t packed_at = b.gradient * kMoments + kPack;
    if (!b.kind->once) finish_all(waits_.before[i], packed_at - 1);
    pack(b);
    if (b.kind->once) {
      sum_up_whole(b);
      finish_all(waits_.before[i], packed_at);
    }
    b.reduce_done = clock_.start(lane_, b.reduce, b.reduce_slowdown);
    note(ScheduleEvent::Kind::StartReduction, b);
    finish_all(waits_.after[i], packed_at + 1);
    if (!waits_.moved[i]) finish(b, packed_at + 1);
  }

  // In a micro-batch that does not reduce it, or of a bucket that replicas alone reduce.
  void pack_alone(Bucket& b) {
    pack(b);
    if (b.kind->once || !b.has_reduction()) sum_up_whole(b);
    if (!b.has_reduction()) reduce_over_replicas(b);
  }

  void pack(const Bucket& b) { clock_.compute(b.pack - (is_first_ && b.is_added() ? b.sum_read : 0)); }

  void sum_up_whole(const Bucket& b) {
    add_up(b);
    const int64_t packed_at = b.gradient * kMoments + kPack;
    if (b.kind->once && !b.is_added()) held_.hold(packed_at, packed_at, b.packed_bytes());
  }

  // Over micro-batches, where packing does not do it on its way.
  void add_up(const Bucket& b) {
    if (!b.is_added()) clock_.compute(b.sum - (is_first_ ? b.sum_read : 0));
  }

  //   until: the last moment of what is sent
  void finish(Bucket& b, int64_t until) {
    clock_.wait_for(b.reduce_done);
    note(ScheduleEvent::Kind::WaitForReduction, b);
    if (!b.kind->once) {
      add_up(b);
      const int64_t start = b.gradient * kMoments + kStart, last = std::max(start, until);
      held_.hold(b.gradient * kMoments + kPack, last, b.packed_bytes());
      if (profile_.micro_batches > 1) held_.hold(start, last, b.shard);  // to be added to the sum
    }
    reduce_over_replicas(b);
  }

  void finish_all(int first, int64_t until) {
    for (int k = first; k >= 0; k = waits_.next[static_cast<size_t>(k)])
      finish(*reductions_[static_cast<size_t>(k)], until);
  }

  void reduce_over_replicas(Bucket& b) {
    if (!b.kind->replicas || !is_last_) return;
    b.replicas_done = clock_.start(replica_lane_, b.replicas, b.replicas_slowdown);
    held_.hold(at_ * kMoments, last_moment(profile_), b.shard);
  }

  // ---- the rest

  // Kernels of the update; the bytes of those that each bucket has are in tail_seconds.
  void run_update() {
    for (const Bucket* b : packs_) clock_.wait_for(b->replicas_done);
    clock_.run(profile_.tail_seconds);
    for (const Bucket& b : buckets_) clock_.run(static_cast<double>(b.kind->tail_kernels) * profile_.machine.launch);
  }

  int64_t peak() {
    int64_t clipped = 0;  // the largest gradient, which the update reads
    for (const Bucket& b : buckets_) {
      if (b.gradients) held_.add(*b.gradients);
      clipped = std::max(clipped, b.shard);
    }
    held_.hold(profile_.body_end * kMoments, last_moment(profile_), clipped);
    return held_.peak(profile_);
  }

  const StepProfile& profile_;
  std::vector<Bucket>& buckets_;
  std::vector<Bucket*>&forward_, &backward_, &packs_, &reductions_;
  HeldBytes held_;
  Places &gathers_, &waits_;
  Clock clock_;
  double lane_ = 0, replica_lane_ = 0;     // until when the communicators of shards and of replicas are busy
  int64_t at_ = 0, cut_ = -1;              // position; the last one at which collectives stood
  size_t next_gather_ = 0;                 // of backward_
  bool is_first_ = true, is_last_ = true;  // micro-batch; the only one is no first, as there is no sum
};

Estimator::Estimator(const StepProfile& profile) : profile_(profile), scratch_(std::make_unique<Scratch>()) {}
Estimator::~Estimator() = default;

// The buckets of a unit, which depend on its parameters alone: most units of two schedules are the same.
const std::vector<Estimator::Bucket>& Estimator::buckets_of(size_t first, size_t end) {
  const auto [place, fresh] = known_.try_emplace(first * (profile_.params.size() + 1) + end);
  std::vector<Bucket>& buckets = place->second;
  if (!fresh) return buckets;
  for (size_t i = first; i < end; ++i) add_param(buckets, i);
  for (Bucket& b : buckets) {
    price(b);
    if (b.is_packed()) hold_gradients(b, first, end);
  }
  return buckets;
}

// To the bucket of its kind.
void Estimator::add_param(std::vector<Bucket>& buckets, size_t i) const {
  const ParamProfile& p = profile_.params[i];
  const KindProfile* kind = &profile_.kinds[p.kind];
  auto found = std::ranges::find(buckets, kind, &Bucket::kind);
  if (found == buckets.end()) {
    buckets.emplace_back().kind = kind;
    buckets.back().param = i;
    found = std::prev(buckets.end());
  }
  Bucket& b = *found;
  b.elements += p.elements;
  b.gradient_bytes += p.gradient_bytes;
  b.fwd_first = lower(b.fwd_first, p.fwd_first);
  b.bwd_first = lower(b.bwd_first, p.bwd_first);
  b.fwd_last = std::max(b.fwd_last, p.fwd_last);
  b.bwd_last = std::max(b.bwd_last, p.bwd_last);
  b.gradient = std::max(b.gradient, p.gradient);
}

// What a bucket's gradients hold whatever the schedule: each as it is made, until it is packed; the reduced shard until the update, or
// until the reduction over replicas is done; a whole sum over micro-batches all the time.
void Estimator::hold_gradients(Bucket& b, size_t first, size_t end) {
  std::vector<Change>& changes = gradient_changes_.emplace_back();
  b.gradients = &changes;
  const auto hold = [&](int64_t from, int64_t to, int64_t bytes) {
    changes.emplace_back(from, bytes);
    changes.emplace_back(to + 1, -bytes);
  };
  const int64_t own = b.elements / b.kind->ranks;
  b.shard = static_cast<int64_t>(static_cast<double>(own) * b.kind->reduced);
  const int64_t last = b.kind->replicas ? profile_.body_end * kMoments : last_moment(profile_);
  const bool sums_shards = profile_.micro_batches > 1 && !b.kind->once;  // from the first micro-batch on
  hold(sums_shards ? 0 : b.gradient * kMoments + kStart, last, b.shard);
  if (b.kind->once) hold(0, profile_.body_end * kMoments, b.packed_bytes());
  for (size_t i = first; i < end; ++i)
    if (const ParamProfile& p = profile_.params[i]; p.gradient >= 0 && &profile_.kinds[p.kind] == b.kind)
      hold(p.gradient_made * kMoments, b.gradient * kMoments + kPack, p.gradient_bytes);
}

double Estimator::memory_seconds(double bytes) const {
  return profile_.machine.launch + bytes / (profile_.machine.memory_bandwidth * profile_.machine.memory_efficiency);
}

// Seconds of what a bucket brings with it.
void Estimator::price(Bucket& b) const {
  const KindProfile& k = *b.kind;
  const auto collective = [&](std::string_view kind, double bytes, cost::GroupShape group) {
    return cost::collective_seconds(kind, bytes, group, profile_.machine);
  };
  b.elements = round_up(b.elements, k.ranks * k.alignment);
  const auto whole = static_cast<double>(b.elements), shard = whole / static_cast<double>(k.ranks);
  const bool is_reduced = b.has_reduction();
  if (k.casts) b.cast = memory_seconds(shard * (k.stored + k.gathered));
  if (k.gathered > 0) b.gather = collective("all_gather", whole * k.gathered, k.gather_group);
  if (is_reduced) b.reduce = collective(k.reduction, whole * k.reduced, k.reduce_group);
  if (k.replicas) b.replicas = collective("all_reduce", (is_reduced ? shard : whole) * k.reduced, k.replica_group);
  b.gather_slowdown = cost::overlap_slowdown(k.gather_group, profile_.machine);
  b.reduce_slowdown = cost::overlap_slowdown(k.reduce_group, profile_.machine);
  b.replicas_slowdown = cost::overlap_slowdown(k.replica_group, profile_.machine);
  const double sum_bytes = k.adds_up ? k.reduced * (k.once || !is_reduced ? whole : shard) : 0;
  b.sum_read = memory_seconds(sum_bytes) - memory_seconds(0);
  if (k.adds_up && !b.is_added()) b.sum = memory_seconds(3 * sum_bytes);  // reads both, writes one
  // Added as it is packed, a bucket's sum is read too.
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
