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
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/device/cpu/threaded_device.h"
#include "sfsdp/device/fake/fake_device.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/plan_runs_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace planned_lanes_test {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::make_gpt, testing::make_llama,
    testing::RankOutcome, testing::tokens;

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
  bool mixture = false;  // of experts over ep, whose ranks are given the same batch; with further rounds
  bool ring = false;     // over cp, whose ranks are given the same batch too
  uint64_t schedules = 25;
  int64_t data_ranks() const { return mixture || ring ? 1 : mesh.world_size(); }
};

std::vector<Form> forms() {
  const DeviceMesh two = init_device_mesh({{"dp_shard", 2}});
  std::vector<Form> all = {
      {.name = "FSDP", .mesh = two, .schedules = 100},
      {.name = "FSDP, three micro-batches", .mesh = two, .micro_batches = 3, .schedules = 100},
      {"rows", two, {.layout = ParameterLayout::Dim0}, 2},
      {"DDP", init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}, 2, true},
      {"HSDP",
       init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
       {.mode = DataParallelMode::HybridShard},
       2,
       true},
      {"stage 1", two, {.zero_stage = 1}, 2},
      {"stage 2", two, {.zero_stage = 2}, 2},
      {"bfloat16", two, {}, 1, false, true},
      // many collectives
      {.name = "a mixture in rounds",
       .mesh = init_device_mesh({{"ep", 2}}),
       .micro_batches = 2,
       .mixture = true,
       .schedules = 15},
      {.name = "a ring of attention",
       .mesh = init_device_mesh({{"cp", 3}}),
       .micro_batches = 2,
       .ring = true,
       .schedules = 15}};
  return all;
}

models::DeepSeekV3 make_mixture() {
  models::DeepSeekV3Args args;
  args.dim = 16;
  args.inter_dim = 16;
  args.moe_inter_dim = 8;
  args.n_layers = 2;
  args.n_heads = 2;
  args.vocab_size = 29;
  args.kv_lora_rank = 6;
  args.qk_nope_head_dim = 4;
  args.qk_rope_head_dim = 4;
  args.v_head_dim = 4;
  args.num_experts = 4;
  args.num_shared_experts = 1;
  args.top_k = 2;
  return models::DeepSeekV3(args);
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
  const Batch example = tokens(0, 0, kGlobalBatch / form.data_ranks() / form.micro_batches);
  const Strategy strategy = data_parallel(form.mesh, parallel, {}, {.rotate_method = RotateMethod::Ring},
                                          {.capacity = form.mixture ? 0.5 : 0});
  if (form.mixture) return compile_program(meta_init(make_mixture), loss_of, kAdamW, example, strategy, options);
  if (form.gpt) return compile_program(meta_init(make_gpt), loss_of, kAdamW, example, strategy, options);
  return compile_program(meta_init(make_llama), loss_of, kAdamW, example, strategy, options);
}

testing::Trained train(const Form& form, const std::shared_ptr<Program>& program) {
  return testing::train_on_ranks(program, 2, [&](int64_t step, int64_t rank) {
    return testing::micro_batches_of(step, form.data_ranks() == 1 ? 0 : rank, form.data_ranks(), form.micro_batches);
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
    for (; schedule < form.schedules && faults.empty(); ++schedule) {
      CAPTURE(schedule);
      testing::expect_same_bits(train(form, faked), expected);
    }
    CHECK(faults.text() == "");
    const auto threaded = program_of(form, {.make_device = device::make_threaded_device});
    for (int again = 0; again < 3; ++again) testing::expect_same_bits(train(form, threaded), expected);
  }
}

// ---- plans that are wrong in one place

// A sharded step of two ranks and two micro-batches, with made-up numbers as its state.
class Subject {
 public:
  Subject()
      : program_(program_of({"subject", init_device_mesh({{"dp_shard", kRanks}}), {}, 2}, {})),
        variant_(program_->first()),
        text_(print(variant_->plan)) {}

  plan::StepPlan plan() const { return plan::parse_plan(text_); }
  const std::string& text() const { return text_; }

  // What each rank has after two steps of its plan. What the fake devices find goes to `faults`.
  std::vector<RankOutcome> run(const std::vector<const plan::StepPlan*>& plans, uint64_t schedule,
                               Faults& faults) const {
    std::vector<RankOutcome> outcomes(kRanks);
    testing::run_ranks(
        kRanks,
        [&](comm::CommWorld& world) {
          const auto rank = static_cast<size_t>(world.rank());
          const auto batches = [&](int64_t step) { return testing::micro_batches_of(step, world.rank(), kRanks, 2); };
          outcomes[rank] =
              testing::run_plan(*plans[rank], variant_->constants, world, batches, [&](size_t lanes, size_t events) {
                return device::make_fake_device(lanes, events,
                                                {schedule, true, [&](const auto& fault) { faults.add(fault); }});
              });
        },
        10000);
    return outcomes;
  }
  std::vector<RankOutcome> expected() const {
    const plan::StepPlan sound = plan();
    Faults faults;
    auto outcomes = run({&sound, &sound}, 0, faults);
    CHECK(faults.text() == "");
    return outcomes;
  }

  // What is wrong with a plan that all ranks run, in words: what the devices find, an error, or other numbers.
  std::string caught(const plan::StepPlan& plan, const std::vector<RankOutcome>& expected, uint64_t schedules) const {
    for (uint64_t schedule = 0; schedule < schedules; ++schedule) {
      Faults faults;
      try {
        const std::vector<RankOutcome> got = run({&plan, &plan}, schedule, faults);
        if (!faults.empty()) return faults.text();
        if (!std::ranges::equal(got, expected, testing::same_bits)) return "other numbers";
      } catch (const std::exception& error) {
        return faults.empty() ? error.what() : faults.text();
      }
    }
    return "";
  }

 private:
  static constexpr int kRanks = 2;
  std::shared_ptr<Program> program_;
  Held<const Program::Variant> variant_;
  std::string text_;
};

const ir::Op* first_op(const plan::StepPlan& plan, const plan::Task& task) {
  if (task.lane > 0) return plan.lanes[task.lane - 1].collectives[task.number];
  return cost::kernels_of(plan.graph).ops[task.number][0];
}

std::string said_of(const plan::StepPlan& plan) { return join(check_hazards(plan), "\n"); }

// The host waits for all of a step before it begins the next one, which the verifier does not count on: an edge from an update to the
// next step's other parts is one that the device never needs.
TEST_CASE("the fake device finds each edge that is dropped, as the verifier does") {
  const Subject subject;
  const auto expected = subject.expected();
  const plan::StepPlan sound = subject.plan();
  size_t needed = 0, to_next_step = 0;
  for (size_t e = 0; e < sound.edges.size(); ++e) {
    plan::StepPlan broken = subject.plan();
    broken.edges.erase(broken.edges.begin() + static_cast<std::ptrdiff_t>(e));
    const std::string caught = subject.caught(broken, expected, 2), said = said_of(broken);
    const plan::Edge& edge = sound.edges[e];
    CAPTURE(concat(edge.from.lane, ":", edge.from.number, " -> ", edge.to.lane, ":", edge.to.number));
    CAPTURE(said);
    CAPTURE(caught);
    const auto is_update = [&](const plan::Task& task) { return ir::runs_in(*first_op(sound, task), ir::Part::Tail); };
    if (is_update(edge.from) && !is_update(edge.to)) {
      CHECK(caught == "");
      ++to_next_step;
      continue;
    }
    CHECK(caught.empty() == said.empty());
    needed += said.empty() ? 0 : 1;
  }
  // 18 and 1 of 23: the others order what is ordered by the numbers of this plan, and no run shows them.
  CHECK(needed >= 18);
  CHECK(to_next_step <= 1);
}

TEST_CASE("the fake device finds a host that does not wait for the readers of a batch") {
  const Subject subject;
  plan::StepPlan broken = subject.plan();
  broken.load.after.clear();
  const std::string caught = subject.caught(broken, subject.expected(), 20);
  CHECK(caught.find("the host's next batch") != std::string::npos);
}

// Both look at moves that the other one finds nothing in.
TEST_CASE(
    "buffers that lie over others are found: as conflicts, or by their numbers, and those that do no harm are not") {
  const Subject subject;
  const auto expected = subject.expected();
  size_t found = 0, harmless = 0, out_of_sight = 0;
  std::vector<std::string> missed;  // by the verifier
  for (uint64_t k = 0; found < 25 || harmless < 10; ++k) {
    plan::StepPlan broken = subject.plan();
    auto& buffers = broken.memory.buffers;
    plan::Buffer& moved = buffers[(k * 7919 + 13) % buffers.size()];
    const plan::Buffer& other = buffers[(k * 104729 + 5) % buffers.size()];
    if (&moved == &other || moved.region != other.region || moved.offset == other.offset) continue;
    const int64_t end = broken.memory.region_bytes[static_cast<size_t>(moved.region)];
    if (other.offset + moved.bytes > end) continue;
    moved.offset = other.offset;
    const std::string said = said_of(broken);
    if (said.empty() ? harmless == 10 : found == 25) continue;
    const std::string caught = subject.caught(broken, expected, said.empty() ? 1 : 2);
    CAPTURE(moved.value->name());
    CAPTURE(other.value->name());
    CAPTURE(said);
    if (said.empty()) {
      ++harmless;
      if (!caught.empty()) missed.push_back(concat(moved.value->name(), " over ", other.value->name(), ": ", caught));
    } else if (moved.value->name().ends_with(".left") || said.find("of the same kernel") != std::string::npos) {
      // Some are out of the device's sight: LibTorch's attention leaves nothing for backward, and a kernel's own results reach memory
      // once all of its ops have read theirs.
      out_of_sight += caught.empty() ? 1 : 0;
    } else {
      ++found;
      CHECK(caught != "");
    }
  }
  CHECK(join(missed, "\n") == "");
  CHECK(out_of_sight <= 3);
}

TEST_CASE("a window that is too small is found") {
  const Subject subject;
  plan::StepPlan broken = subject.plan();
  broken.memory.region_bytes[static_cast<size_t>(plan::Region::Window)] -= 4096;
  CHECK(subject.caught(broken, subject.expected(), 1).find("outside of all memory") != std::string::npos);
}

bool reads_what_is_made(const std::vector<ir::Op*>& order) {
  std::set<const ir::Op*> before;
  for (const ir::Op* op : order) {
    for (const ir::Value* operand : op->operands)
      if (operand && !before.contains(operand->producer())) return false;
    before.insert(op);
  }
  return true;
}

// Which is the communicator's to find: on every rank by itself lanes are in order.
TEST_CASE(
    "collectives that one rank has the other way round are found, each pair of neighbours, under several schedules") {
  const Subject subject;
  const plan::StepPlan sound = subject.plan();
  size_t pairs = 0;
  for (size_t first = 0;; ++first) {
    plan::StepPlan swapped = subject.plan();
    std::vector<ir::Op*> order;
    std::vector<std::ptrdiff_t> places;
    for (const auto& op : swapped.graph.ops()) {
      if (ir::is_collective(*op)) places.push_back(std::ssize(order));
      order.push_back(op.get());
    }
    if (first + 1 >= std::size(places)) break;
    const auto begin = order.begin() + places[first], end = order.begin() + places[first + 1];
    std::rotate(begin, end, end + 1);
    if (!reads_what_is_made(order)) continue;
    REQUIRE(swapped.graph.set_order(order));
    ++pairs;
    CAPTURE(order[static_cast<size_t>(places[first])]->result()->name());
    for (uint64_t schedule = 0; schedule < 5; ++schedule) {
      CAPTURE(schedule);
      Faults faults;
      CHECK_THROWS_WITH_AS(subject.run({&sound, &swapped}, schedule, faults), doctest::Contains("ranks disagree"),
                           CommError);
    }
  }
  CHECK(pairs >= 5);
}

}  // namespace planned_lanes_test
}  // namespace sfsdp
