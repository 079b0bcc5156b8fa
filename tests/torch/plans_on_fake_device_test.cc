// SPDX-License-Identifier: BSD-3-Clause
// Runs after all other tests but for one, as they run in the order of their files: the plans that they have compiled, on devices whose
// lanes run beside each other in orders that a seed draws.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/device/fake/fake_device.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/plans_of_suite_torch.h"

namespace sfsdp::testing {
namespace {

constexpr uint64_t kSchedules = 100;
// Elements that the ops of all plans make which are run: half a minute on two cores. The smallest plans come first.
constexpr int64_t kMostWork = 1'000'000;

// What a rank has after two steps.
struct Outcome {
  std::vector<at::Tensor> results;
  std::map<std::string, at::Tensor, std::less<>> state;
  plan::CopiedBytes copied;  // into buckets and out of them, in the last one
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();  // bytes, as numbers that are none equal nothing
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  return std::ranges::equal(a.results, b.results, [](const auto& x, const auto& y) { return same_bits(x, y); }) &&
         std::ranges::equal(a.state, b.state,
                            [](const auto& x, const auto& y) { return same_bits(x.second, y.second); });
}

// Other numbers for each seed. What an integer names is there in every table and loss of the suite: 0 or 1.
at::Tensor numbers_of(const ir::Type& type, double seed) {
  const at::ScalarType dtype = capture::scalar_type_of(type.dtype);
  const at::Tensor wave = at::arange(type.numel(), at::kDouble).add(seed).sin().view(type.shape());
  const at::Tensor made =
      (at::isFloatingType(dtype) || at::isComplexType(dtype) ? wave.mul(0.1) : wave.gt(0)).to(dtype);
  return type.strides.empty() ? made : at::empty_strided(type.shape(), type.strides, made.options()).copy_(made);
}

class Subject {
 public:
  explicit Subject(const std::string& text) : plan_(plan::parse_plan(text)), mesh_(plan_.graph.mesh) {
    for (const auto& op : plan_.graph.ops())
      if (op->is("constant")) {
        const auto index = static_cast<size_t>(op->attr<int64_t>("index"));
        if (constants_.size() <= index) constants_.resize(index + 1);
        constants_[index] = numbers_of(op->result()->type(), 0.5 + static_cast<double>(index));
      }
  }

  // Steps of all ranks, on devices that `make_device` makes.
  class Ranks {
   public:
    Ranks(const Subject& of, comm::CommWorld& world, const device::MakeDevice& make_device)
        : of_(of), rank_(world.rank()), memory_(std::make_shared<exec::RankMemory>(&world)) {
      exec::Groups groups;
      for (const auto& op : of.plan_.graph.ops()) {
        const auto axes = ir::axes_of(*op);
        if (!axes) continue;
        const std::string key = exec::axis_key(ir::Attr(*axes));
        std::vector<int> ranks;
        for (const int64_t r : of.mesh_.ranks_of_group(rank_, *axes)) ranks.push_back(static_cast<int>(r));
        if (ranks.size() > 1 && !groups.contains(key)) groups[key] = world.group(key, ranks);
      }
      executor_ = std::make_unique<exec::PlannedExecutor>(
          of.plan_, of.constants_, groups, exec::DataPosition{rank_, of.mesh_.world_size()}, rank_, exec::Rng::Counter,
          memory_, std::vector<const ir::Value*>{}, make_device);
    }

    Outcome run() {
      executor_->state = exec::state_in_place(of_.plan_, rank_, memory_);
      double seed = static_cast<double>(rank_);
      for (auto& [name, value] : executor_->state) {
        const auto type = ir::Type::tensor(capture::dtype_of(value.scalar_type()), value.sizes().vec());
        const at::Tensor numbers = numbers_of(type, seed += 0.37);
        value.copy_(name.ends_with("exp_avg_sq") ? numbers.square() : numbers);
      }
      Outcome outcome;
      for (int64_t step = 1; step <= 2; ++step)
        for (at::Tensor& result : executor_->run(batches(), {.lr = 1e-2, .step = step, .seed = 7}))
          outcome.results.push_back(std::move(result));
      for (const auto& [name, value] : executor_->state) outcome.state[name] = value.clone();
      outcome.copied = executor_->copied_bytes();
      return outcome;
    }

   private:
    std::vector<std::vector<at::Tensor>> batches() const {
      std::vector<std::vector<at::Tensor>> made(static_cast<size_t>(of_.plan_.graph.micro_batches));
      double seed = 100 + 10 * static_cast<double>(rank_);
      for (auto& batch : made)
        for (const auto& op : of_.plan_.graph.ops())
          if (op->is("input")) batch.push_back(numbers_of(op->result()->type(), seed += 1));
      return made;
    }

    const Subject& of_;
    int64_t rank_;
    std::shared_ptr<exec::RankMemory> memory_;
    std::unique_ptr<exec::PlannedExecutor> executor_;
  };

  // Random numbers in ATen's order, which other lanes do not keep.
  bool draws_in_order() const {
    return std::ranges::any_of(plan_.graph.ops(),
                               [](const auto& op) { return ir::draws(*op) && !op->has_attr("stream"); });
  }

  // What is wrong under any of the schedules, in words.   throws: UserError where an op does not take made-up numbers
  std::string difference(uint64_t schedules) const {
    std::string found;
    std::mutex mutex;
    const auto note = [&](const std::string& what) {
      const std::lock_guard lock(mutex);
      if (found.size() < 2000) found += what + "\n";
    };
    run_ranks(static_cast<int>(mesh_.world_size()), [&](comm::CommWorld& world) {
      const Outcome expected = Ranks(*this, world, {}).run();
      if (const plan::CopiedBytes said = plan::copied_bytes(plan_); expected.copied != said)
        note(concat("copies ", expected.copied.in, " and ", expected.copied.out, " bytes, planned ", said.in, " and ",
                    said.out));
      // One device after the other, on all ranks alike: each starts from the state that made-up numbers give.
      for (uint64_t schedule = 0; schedule < schedules; ++schedule) {
        const Outcome got = Ranks(*this, world, [&](size_t lanes, size_t events) {
                              return device::make_fake_device(
                                  lanes, events, {schedule, schedule == 3, [&](const auto& fault) { note(fault); }});
                            }).run();
        if (!same_bits(got, expected)) note(concat("schedule ", schedule, ", rank ", world.rank(), ": other numbers"));
      }
    });
    return found;
  }

 private:
  plan::StepPlan plan_;
  DeviceMesh mesh_;
  std::vector<at::Tensor> constants_;
};

TEST_CASE("plans of the suite: each that is small has the same bits on fake devices, under 100 schedules") {
  std::vector<SeenPlan> plans = plans_of_suite();
  std::ranges::stable_sort(plans, {}, &SeenPlan::work);
  std::map<std::string, int64_t> refused;  // by reason
  int64_t ran = 0, too_large = 0, work = 0;
  for (const SeenPlan& seen : plans) {
    if (seen.text.empty() || (!runs_all() && work + seen.work > kMostWork)) {
      ++too_large;
      continue;
    }
    CAPTURE(seen.test);
    CAPTURE(seen.text.substr(0, seen.text.find("\nfwd:")));
    work += seen.work;
    try {
      const Subject subject(seen.text);
      if (subject.draws_in_order()) {
        ++refused[concat("numbers are drawn in order in ", seen.test)];
        continue;
      }
      const std::string found = subject.difference(kSchedules);
      CHECK(found == "");
      ++ran;
    } catch (const UserError& error) {
      ++refused[concat(split(error.what(), '\n')[0], " in ", seen.test)];
    }
  }
  std::string lines;
  for (const auto& [reason, count] : refused) lines += concat("\n  ", count, ": ", reason);
  MESSAGE(kSchedules, " schedules of ", ran, " plans; ", too_large, " too large; not run:", lines);
  int64_t all_refused = 0;
  for (const auto& [reason, count] : refused) all_refused += count;
  CHECK(all_refused <= 1 + ran / 20);
}

}  // namespace
}  // namespace sfsdp::testing
