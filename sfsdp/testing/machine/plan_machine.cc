// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/plan_machine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/testing/interp/collectives.h"
#include "sfsdp/testing/machine/torn_kernel.h"

namespace sfsdp::plan::machine {
namespace {

using ir::Op, ir::Value;

constexpr size_t kMostFaults = 10;
constexpr size_t kPartsOfCollective = 3;

// A task of some ranks that has begun.
struct Active {
  size_t run = 0;              // its number in the program
  std::vector<int64_t> ranks;  // one, or the members of a collective's group
  std::unique_ptr<TornKernel> kernel = nullptr;
  size_t parts_left = 0;  // of a collective
};

class Machine {
 public:
  Machine(const Prepared& prepared, const std::vector<std::vector<Inputs>>& batches, const Options& options)
      : plan_(prepared.plan),
        batches_(batches),
        options_(options),
        mesh_(plan_.graph.mesh),
        program_(options.schedule % 2 == 0 ? prepared.drained : prepared.running_on),
        lanes_(plan_.lanes.size() + 2),
        priority_(static_cast<size_t>(mesh_.world_size()) * lanes_) {
    for (int64_t rank = 0; rank < mesh_.world_size(); ++rank) {
      const Memory* left = options.memory.empty() ? nullptr : &options.memory.at(static_cast<size_t>(rank));
      ranks_.emplace_back(prepared, rank, batches[0][static_cast<size_t>(rank)], options.other, options.seed, left);
      over_.emplace_back(program_.size());
      skipped_.emplace_back(program_.size());
      queue_.emplace_back(lanes_);
      for (size_t i = 0; i < program_.size(); ++i) queue_.back()[program_[i].lane].push_back(i);
      if (!left) load_state(rank);
    }
    std::iota(priority_.begin(), priority_.end(), size_t{0});
    outcome_.steps.resize(batches.size(), std::vector<RankResult>(ranks_.size()));
  }

  Outcome run() {
    while (outcome_.faults.size() < kMostFaults) {
      if (draw(16) == 0) shuffle_priorities();
      if (!advance_one()) break;
    }
    for (const auto& queues : queue_)
      for (const auto& lane : queues)
        if (!lane.empty() && outcome_.faults.empty())
          outcome_.faults.push_back(concat("no lane can go on: ", text_of(program_[lane.front()]),
                                           " waits for ever\n  expected edges that some order fulfils"));
    for (const Rank& rank : ranks_) outcome_.memory.push_back(rank.memory());
    return std::move(outcome_);
  }

 private:
  size_t draw(size_t n) { return philox4x32(options_.schedule, 0, drawn_++)[0] % n; }
  void shuffle_priorities() {
    for (size_t i = priority_.size(); i > 1; --i) std::swap(priority_[i - 1], priority_[draw(i)]);
  }

  std::string text_of(const TaskRun& run) const {
    if (run.ops.empty()) return run.kind == TaskRun::LoadBatch ? "the next batch" : "the end of a step";
    return ir::name_of(*run.ops[0]);
  }

  // ---- what can go on

  bool is_ready(int64_t rank, size_t lane) const {
    const auto& queue = queue_[static_cast<size_t>(rank)][lane];
    if (queue.empty() || busy(rank, lane)) return false;
    return std::ranges::all_of(program_[queue.front()].after, [&](size_t before) { return is_over(rank, before); });
  }
  // A trip that is not made is over once the task's run before it is.
  bool is_over(int64_t rank, size_t run) const {
    const auto r = static_cast<size_t>(rank);
    for (std::optional<size_t> at = run; at; at = program_[*at].before)
      if (skipped_[r][*at] == 0) return over_[r][*at] != 0;
    return true;
  }
  bool busy(int64_t rank, size_t lane) const {
    return std::ranges::any_of(active_, [&](const Active& a) {
      return program_[a.run].lane == lane && std::ranges::find(a.ranks, rank) != a.ranks.end();
    });
  }

  // The ranks that a task begins on: a collective's begin together, once all of them have come to it.
  std::vector<int64_t> group_of(int64_t rank, size_t lane) const {
    const size_t number = queue_[static_cast<size_t>(rank)][lane].front();
    if (program_[number].kind != TaskRun::Collective) return {rank};
    const std::vector<int64_t> ranks = mesh_.ranks_of_group(rank, *ir::axes_of(*program_[number].ops[0]));
    const bool all = std::ranges::all_of(ranks, [&](int64_t member) {
      return is_ready(member, lane) && queue_[static_cast<size_t>(member)][lane].front() == number;
    });
    return all ? ranks : std::vector<int64_t>{};
  }

  // One of the tasks that have begun or may begin: that of the first lane in the order of priorities, or any.
  bool advance_one() {
    struct Choice {
      size_t priority = 0;
      size_t active = 0;  // of active_; as many as there are: it begins
      int64_t rank = 0;
      size_t lane = 0;
    };
    std::vector<Choice> choices;
    const auto priority = [&](int64_t rank, size_t lane) {
      return priority_[static_cast<size_t>(rank) * lanes_ + lane];
    };
    for (size_t a = 0; a < active_.size(); ++a) {
      const size_t lane = program_[active_[a].run].lane;
      choices.push_back({priority(active_[a].ranks[0], lane), a, active_[a].ranks[0], lane});
    }
    for (int64_t rank = 0; rank < std::ssize(ranks_); ++rank)
      for (size_t lane = 0; lane < lanes_; ++lane)
        if (is_ready(rank, lane) && !group_of(rank, lane).empty())
          choices.push_back({priority(rank, lane), active_.size(), rank, lane});
    if (choices.empty()) return false;
    const Choice choice =
        draw(4) == 0 ? choices[draw(choices.size())] : *std::ranges::min_element(choices, {}, &Choice::priority);
    if (choice.active == active_.size())
      begin(choice.rank, choice.lane);
    else
      advance(choice.active);
    return true;
  }

  // ---- what a task does

  void begin(int64_t rank, size_t lane) {
    Active active{.run = queue_[static_cast<size_t>(rank)][lane].front(), .ranks = group_of(rank, lane)};
    const TaskRun& run = program_[active.run];
    for (const int64_t member : active.ranks)
      if (run.loop && over_[static_cast<size_t>(member)][*run.loop] == 0)
        outcome_.faults.push_back(concat("rank ", member, ": ", text_of(run), " begins before ",
                                         text_of(program_[*run.loop]), " has read the number of trips"));
    if (run.kind == TaskRun::Loop) read_trips(rank, active.run);
    if (run.kind == TaskRun::LoadBatch) load_batch(rank, run);
    if (run.kind == TaskRun::EndStep) end_step(rank, run);
    if (run.kind == TaskRun::Kernel)
      active.kernel = std::make_unique<TornKernel>(
          run, ranks_[static_cast<size_t>(rank)], [this](size_t n) { return draw(n); },
          options_.measured ? *options_.measured : measured_);
    if (run.kind == TaskRun::Collective) active.parts_left = kPartsOfCollective * active.ranks.size();
    active_.push_back(std::move(active));
    if (is_over(active_.back())) finish(active_.size() - 1);
  }

  static bool is_over(const Active& active) {
    return active.kernel ? active.kernel->is_over() : active.parts_left == 0;
  }

  void advance(size_t number) {
    Active& active = active_[number];
    if (active.kernel) {
      if (const std::string fault = active.kernel->step(); !fault.empty())
        outcome_.faults.push_back(concat("rank ", active.ranks[0], ": ", fault));
    } else {
      move_part(active);
    }
    if (is_over(active)) finish(number);
  }

  // One rank's result, a third of its elements, of what all members have in memory now.
  void move_part(Active& active) {
    --active.parts_left;
    const Op& op = *program_[active.run].ops[0];
    const size_t member = active.parts_left / kPartsOfCollective, part = active.parts_left % kPartsOfCollective;
    std::vector<std::vector<Array>> given(op.operands.size(), std::vector<Array>(ranks_.size()));
    std::vector<std::vector<const Array*>> operands(op.operands.size());
    for (size_t k = 0; k < operands.size(); ++k) {
      const Value& operand = *op.operands[k];
      std::ranges::fill(given[k], Array::zeros(operand.type().dtype, operand.type().shape()));
      for (const int64_t rank : active.ranks)
        given[k][static_cast<size_t>(rank)] = ranks_[static_cast<size_t>(rank)].load(operand);
      for (const Array& array : given[k]) operands[k].push_back(&array);
    }
    const int64_t rank = active.ranks[member];
    Array result = std::move(ir::interp::run_collective(mesh_, op, operands)[static_cast<size_t>(rank)]);
    for (double& x : result.data) x = ir::interp::round_to(op.result()->type().dtype, x);
    std::vector<char> which(result.data.size());
    for (size_t e = 0; e < which.size(); ++e) which[e] = e * kPartsOfCollective / which.size() == part ? 1 : 0;
    ranks_[static_cast<size_t>(rank)].store(*op.result(), result, which);
  }

  void finish(size_t number) {
    for (const int64_t rank : active_[number].ranks) {
      over_[static_cast<size_t>(rank)][active_[number].run] = 1;
      queue_[static_cast<size_t>(rank)][program_[active_[number].run].lane].pop_front();
    }
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(number));
  }

  // What the rank does not make of the loop's trips leaves its lanes.
  void read_trips(int64_t rank, size_t number) {
    const Op& loop = *program_[number].ops[0];
    const double trips = ranks_[static_cast<size_t>(rank)].load(*loop.operands[0]).data[0];
    if (!(trips >= 0 && trips <= static_cast<double>(ir::most_trips(loop))))
      outcome_.faults.push_back(concat("rank ", rank, ": ", ir::name_of(loop), " is to make ", trips,
                                       " trips, at most ", ir::most_trips(loop)));
    const auto is_skipped = [&](size_t run) {
      return program_[run].loop == number && !(static_cast<double>(program_[run].trip) < trips);
    };
    for (size_t run = 0; run < program_.size(); ++run)
      if (is_skipped(run)) skipped_[static_cast<size_t>(rank)][run] = 1;
    for (auto& lane : queue_[static_cast<size_t>(rank)]) std::erase_if(lane, is_skipped);
  }

  // ---- the host

  const Array& given(const std::string& name, int64_t rank, int64_t step) const {
    const Inputs& inputs = batches_[static_cast<size_t>(step)][static_cast<size_t>(rank)];
    const auto found = inputs.find(name);
    if (found == inputs.end()) throw UserError(concat("no input ", name, " for rank ", rank));
    return found->second;
  }
  void load_state(int64_t rank) {
    for (const auto& op : plan_.graph.ops())
      if (op->is("param", "state"))
        ranks_[static_cast<size_t>(rank)].store(*op->result(), given(op->attr<std::string>("name"), rank, 0));
  }
  void load_batch(int64_t rank, const TaskRun& run) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    if (run.micro_batch == 0) own.store_step(std::ldexp(options_.lr, -static_cast<int>(run.step)), run.step + 1);
    own.store_micro_batch(run.micro_batch);
    for (const auto& op : plan_.graph.ops())
      if (op->is("input")) {
        const std::string name = ir::interp::input_key(op->attr<std::string>("name"), run.micro_batch);
        own.store(*op->result(), given(name, rank, run.step));
      }
  }
  void end_step(int64_t rank, const TaskRun& run) {
    RankResult& result = outcome_.steps[static_cast<size_t>(run.step)][static_cast<size_t>(rank)];
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    for (const Value* output : plan_.graph.outputs) result.outputs.push_back(own.load(*output));
    for (const ir::Carry& carry : plan_.graph.carries)
      result.carried.emplace(carry.current->producer()->attr<std::string>("name"), own.load(*carry.current));
  }

  const StepPlan& plan_;
  const std::vector<std::vector<Inputs>>& batches_;
  const Options& options_;
  const DeviceMesh mesh_;
  const std::vector<TaskRun>& program_;
  const size_t lanes_;
  std::deque<Rank> ranks_;
  std::vector<std::vector<char>> over_, skipped_;       // by rank and run
  std::vector<std::vector<std::deque<size_t>>> queue_;  // by rank and lane: runs that are not over
  std::vector<size_t> priority_;                        // by rank and lane
  std::vector<Active> active_;
  MeasuredOps measured_;
  uint64_t drawn_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome run(const StepPlan& plan, const std::vector<std::vector<Inputs>>& batches, const Options& options) {
  return Machine(Prepared(plan, std::ssize(batches)), batches, options).run();
}

Outcome run(const Prepared& prepared, const std::vector<std::vector<Inputs>>& batches, const Options& options) {
  return Machine(prepared, batches, options).run();
}

}  // namespace sfsdp::plan::machine
