// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/calibrate_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/step/step.h"
#include "sfsdp/tools/timed_tasks.h"

namespace sfsdp::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// By place of a kernel or a collective: its seconds in the first micro-batch and, of all others, in one. Nan: it does not run there.
struct Times {
  std::vector<double> first, later;
};

class PlanRun {
 public:
  PlanRun(const train::CompiledJob& job, comm::CommWorld* world)
      : step_(job.program, world), batches_(ordinary_batches(job)), executor_(step_.executor(batches_[0])) {
    const ir::Graph& graph = executor_->graph();
    const cost::Kernels kernels = cost::kernels_of(graph);
    std::map<int, size_t> place_of_kernel;
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const ir::Op* op = graph.ops()[i].get();
      if (ir::is_collective(*op)) {
        places_[op] = ops_.size();
        ops_.push_back({op});
      } else if (kernels.of[i] >= 0) {
        const auto [found, fresh] = place_of_kernel.try_emplace(kernels.of[i], ops_.size());
        if (fresh) ops_.push_back(kernels.ops[static_cast<size_t>(kernels.of[i])]);
        places_[op] = found->second;
      }
    }
  }

  // Whole seconds of a step.
  double run() {
    const auto begin = Clock::now();
    step_(batches_);
    return seconds_since(begin);
  }

  Times run_with_clock() {
    Times times{std::vector<double>(ops_.size(), std::nan("")), std::vector<double>(ops_.size(), std::nan(""))};
    std::vector<int64_t> runs(ops_.size(), 0);
    size_t last_place = ops_.size();
    auto last = Clock::now();
    executor_->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>&) {
      const auto found = places_.find(&op);
      if (found == places_.end()) {
        last = Clock::now();  // a view
        return;
      }
      const size_t place = found->second;
      const double seconds = seconds_since(last);
      // The first of a task's ops is told of once the task is over.
      if (place != last_place || ops_[place][0] == &op) ++runs[place];
      std::vector<double>& of = runs[place] == 1 ? times.first : times.later;
      of[place] = (std::isnan(of[place]) ? 0 : of[place]) + seconds;
      last_place = place;
      last = Clock::now();
    };
    step_(batches_);
    executor_->on_op = nullptr;
    for (size_t place = 0; place < ops_.size(); ++place)
      if (runs[place] > 1) times.later[place] /= static_cast<double>(runs[place] - 1);
    return times;
  }

  const std::vector<std::vector<const ir::Op*>>& ops() const { return ops_; }
  const ir::Graph& graph() const { return executor_->graph(); }

 private:
  Step step_;
  std::vector<Batch> batches_;
  std::shared_ptr<exec::Executor> executor_;
  std::vector<std::vector<const ir::Op*>> ops_;  // by place
  std::map<const ir::Op*, size_t> places_;
};

// What all ranks have measured: the mean, or of collectives the least.
double of_ranks(double mine, bool least, comm::Communicator* group) {
  if (!group) return mine;
  double value = least ? -mine : mine;
  group->all_reduce({reinterpret_cast<std::byte*>(&value), sizeof value}, ir::DType::f64,
                    least ? comm::ReduceOp::Max : comm::ReduceOp::Sum, {"calibrate", ""});
  return least ? -value : value / static_cast<double>(group->size());
}

// Median over steps of what ranks have measured together, nan where it does not run.
double median_of(const std::vector<Times>& steps, std::vector<double> Times::*part, size_t place, bool least,
                 comm::Communicator* group) {
  std::vector<double> values;
  for (const Times& times : steps)
    if (const double mine = (times.*part)[place]; !std::isnan(mine)) values.push_back(of_ranks(mine, least, group));
  return values.empty() ? std::nan("") : median(values);
}

}  // namespace

std::vector<Batch> ordinary_batches(const train::CompiledJob& job) {
  Batch batch;
  for (const at::Tensor& t : job.example)
    batch.push_back(at::arange(t.numel(), at::kLong).remainder(job.model.vocab_size).view(t.sizes()));
  return std::vector<Batch>(static_cast<size_t>(job.program->options().micro_batches), batch);
}

PlanTimes time_plan(const train::CompiledJob& job, comm::CommWorld* world, comm::Communicator* group, double seconds) {
  PlanRun run(job, world);
  run.run();  // fetches code, touches memory
  const double one = largest_of(run.run(), group);
  const auto rounds = static_cast<int64_t>(std::clamp(seconds / (2 * one), 3.0, 100.0));
  std::vector<double> whole;
  std::vector<Times> steps;
  for (int64_t round = 0; round < rounds; ++round) {
    whole.push_back(largest_of(run.run(), group));
    steps.push_back(run.run_with_clock());
  }
  PlanTimes found;
  found.step_seconds = median(whole);
  // Where several places of the plan have one signature, their mean: what a sum over the plan takes.
  std::map<std::string, std::pair<double, int64_t>> first, later;
  std::map<std::pair<std::string, double>, std::pair<double, int64_t>> collectives;
  std::map<std::pair<std::string, double>, int64_t> ranks;
  const auto add = [](std::pair<double, int64_t>& sum, double value) { sum.first += value, ++sum.second; };
  for (size_t place = 0; place < run.ops().size(); ++place) {
    const ir::Op& op = *run.ops()[place][0];
    const bool is_collective = ir::is_collective(op);
    const double in_first = median_of(steps, &Times::first, place, is_collective, group);
    const double in_later = median_of(steps, &Times::later, place, is_collective, group);
    if (std::isnan(in_first)) continue;
    const double usual = std::isnan(in_later) ? in_first : in_later;
    if (is_collective) {
      const auto bytes = static_cast<double>(ir::collective_bytes(op));
      const std::pair key(std::string(ir::collective_kind(op)), bytes);
      ranks[key] = ir::axis_size(run.graph(), *ir::axes_of(op)).value_or(1);
      if (ranks[key] > 1) add(collectives[key], usual);
      continue;
    }
    const std::string key = cost::ops_of(run.ops()[place]);
    add(first[key], in_first);
    add(later[key], usual);
  }
  for (const auto& [key, sum] : later) {
    const auto& [in_first, count] = first.at(key);
    found.kernels.push_back({.ops = key,
                             .seconds = sum.first / static_cast<double>(sum.second),
                             .first = in_first / static_cast<double>(count)});
  }
  for (const auto& [key, sum] : collectives)
    found.collectives.push_back({.kind = key.first,
                                 .ranks = ranks.at(key),
                                 .bytes = key.second,
                                 .seconds = sum.first / static_cast<double>(sum.second)});
  return found;
}

}  // namespace sfsdp::tools
