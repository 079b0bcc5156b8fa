// SPDX-License-Identifier: BSD-3-Clause
// Runs after all other tests but for one, as they run in the order of their files: the plans that they have compiled, on devices whose
// lanes run beside each other in orders that a seed draws.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/device/fake/fake_device.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/plan_runs_torch.h"
#include "sfsdp/testing/plans_of_suite_torch.h"

namespace sfsdp::testing {
namespace plans_on_fake_device_test {

constexpr uint64_t kSchedules = 100;
// Elements that the ops of the largest plan make which is run, and how many are: every so many of those that are as small, by
// their size. Half a minute on two cores.
constexpr int64_t kMostWork = 15'000;
constexpr int64_t kMostPlans = 100;

class Subject {
 public:
  explicit Subject(const std::string& text) : plan_(plan::parse_plan(text)), mesh_(plan_.graph.mesh) {
    for (const auto& op : plan_.graph.ops())
      if (op->is("constant")) {
        const auto index = static_cast<size_t>(op->attr<int64_t>("index"));
        if (constants_.size() <= index) constants_.resize(index + 1);
        constants_[index] = made_up(op->result()->type(), 0.5 + static_cast<double>(index));
      }
  }

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
      const auto run = [&](const device::MakeDevice& make_device) {
        return run_plan(
            plan_, constants_, world, [&](int64_t /*step*/) { return batches(world.rank()); }, make_device);
      };
      const RankOutcome expected = run({});
      if (const plan::CopiedBytes said = plan::copied_bytes(plan_); expected.copied != said)
        note(concat("copies ", expected.copied.in, " and ", expected.copied.out, " bytes, planned ", said.in, " and ",
                    said.out));
      // One device after the other, on all ranks alike: each starts from the state that made-up numbers give.
      for (uint64_t schedule = 0; schedule < schedules; ++schedule) {
        const RankOutcome got = run([&](size_t lanes, size_t events) {
          return device::make_fake_device(lanes, events,
                                          {schedule, schedule == 3, [&](const auto& fault) { note(fault); }});
        });
        if (!same_bits(got, expected)) note(concat("schedule ", schedule, ", rank ", world.rank(), ": other numbers"));
      }
    });
    return found;
  }

 private:
  std::vector<std::vector<at::Tensor>> batches(int64_t rank) const {
    std::vector<std::vector<at::Tensor>> made(static_cast<size_t>(plan_.graph.micro_batches));
    double seed = 100 + 10 * static_cast<double>(rank);
    for (auto& batch : made)
      for (const auto& op : plan_.graph.ops())
        if (op->is("input")) batch.push_back(made_up(op->result()->type(), seed += 1));
    return made;
  }

  plan::StepPlan plan_;
  DeviceMesh mesh_;
  std::vector<at::Tensor> constants_;
};

TEST_CASE("plans of the suite: each that is small has the same bits on fake devices, under 100 schedules") {
  std::vector<SeenPlan> plans = plans_of_suite();
  std::ranges::stable_sort(plans, {}, &SeenPlan::work);
  const int64_t small =
      std::ranges::count_if(plans, [](const SeenPlan& seen) { return !seen.text.empty() && seen.work <= kMostWork; });
  std::map<std::string, int64_t> refused;  // by reason
  int64_t ran = 0, number = 0;
  for (const SeenPlan& seen : plans) {
    if (seen.text.empty() || (!runs_all() && seen.work > kMostWork)) continue;
    // the k-th of n where k * most / n reaches a further whole number
    const int64_t k = number++;
    if (!runs_all() && small > kMostPlans && k * kMostPlans / small == (k + 1) * kMostPlans / small) continue;
    CAPTURE(seen.test);
    CAPTURE(seen.text.substr(0, seen.text.find("\nfwd:")));
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
  MESSAGE(kSchedules, " schedules of ", ran, " plans of ", plans.size(), ", the largest of ", kMostWork,
          " elements; not run:", lines);
  int64_t all_refused = 0;
  for (const auto& [reason, count] : refused) all_refused += count;
  CHECK(all_refused <= 1 + ran / 20);
}

}  // namespace plans_on_fake_device_test
}  // namespace sfsdp::testing
