// SPDX-License-Identifier: BSD-3-Clause
// Plans on devices whose lanes run beside each other: the reference executor's bits under many schedules, and whether the fake device
// sees what is wrong with a plan, which the plan's own verifier is held against.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/device/cpu/threaded_device.h"
#include "sfsdp/device/fake/fake_device.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::make_gpt, testing::make_llama, testing::tokens;

// What the fake devices of all ranks have found.
class Faults {
 public:
  void add(const std::string& fault) {
    const std::lock_guard lock(mutex_);
    if (faults_.size() < 10) faults_.push_back(fault);
  }
  std::string text() const { return join(faults_, "\n"); }
  bool empty() const { return faults_.empty(); }

 private:
  std::mutex mutex_;
  std::vector<std::string> faults_;
};

// ---- whole steps

struct Form {
  const char* name;
  DeviceMesh mesh;
  DataParallelOptions options = {};
  int64_t micro_batches = 1;
  bool gpt = false;
  bool half = false;
};

std::vector<Form> forms() {
  const DeviceMesh two = init_device_mesh({{"dp_shard", 2}});
  std::vector<Form> all = {
      {"FSDP", two},
      {"FSDP, three micro-batches", two, {}, 3},
      {"rows", two, {.layout = ParameterLayout::Dim0}, 2},
      {"DDP", init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}, 2, true},
      {"HSDP", init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.mode = DataParallelMode::HybridShard}, 2, true},
      {"stage 1", two, {.zero_stage = 1}, 2},
      {"stage 2", two, {.zero_stage = 2}, 2},
      {"bfloat16", two, {}, 1, false, true}};
  return all;
}

std::shared_ptr<Program> program_of(const Form& form, CompileOptions options) {
  DataParallelOptions parallel = form.options;
  if (form.half) {
    parallel.mixed_precision.param_dtype = ir::DType::bf16;
    parallel.mixed_precision.reduce_dtype = ir::DType::f32;
  }
  options.max_norm = 0.5;
  options.micro_batches = form.micro_batches;
  options.seed = 7;
  options.notify = [](const std::string&) {};
  const Batch example = tokens(0, 0, kGlobalBatch / form.mesh.world_size() / form.micro_batches);
  const Strategy strategy = data_parallel(form.mesh, parallel);
  if (form.gpt) return compile_program(meta_init(make_gpt), loss_of, kAdamW, example, strategy, options);
  return compile_program(meta_init(make_llama), loss_of, kAdamW, example, strategy, options);
}

testing::Trained train(const Form& form, const std::shared_ptr<Program>& program) {
  return testing::train_on_ranks(program, 2, [&](int64_t step, int64_t rank) {
    return testing::micro_batches_of(step, rank, form.mesh.world_size(), form.micro_batches);
  });
}

TEST_CASE("a plan's lanes beside each other give the bits of the reference, under every schedule and on threads") {
  for (const Form& form : forms()) {
    CAPTURE(form.name);
    const testing::Trained expected = train(form, program_of(form, {.executor = ExecutorKind::Reference}));
    Faults faults;
    uint64_t schedule = 0;
    CompileOptions options;
    options.make_device = [&](size_t lanes, size_t events) {
      return device::make_fake_device(lanes, events,
                                      {schedule, schedule % 10 == 3, [&](const auto& fault) { faults.add(fault); }});
    };
    const auto faked = program_of(form, options);
    for (; schedule < 100 && faults.empty(); ++schedule) {
      CAPTURE(schedule);
      testing::expect_same_bits(train(form, faked), expected);
    }
    CHECK(faults.text() == "");
    const auto threaded = program_of(form, {.make_device = device::make_threaded_device});
    for (int again = 0; again < 3; ++again) testing::expect_same_bits(train(form, threaded), expected);
  }
}

}  // namespace
}  // namespace sfsdp
