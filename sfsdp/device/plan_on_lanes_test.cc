// SPDX-License-Identifier: BSD-3-Clause
// Plans of training steps on lanes that are threads, without LibTorch, so that TSan sees whether edges order all that lanes do with
// memory. In place of arithmetic stand kernels that make all they write of all they read.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/device/cpu/inline_device.h"
#include "sfsdp/device/cpu/threaded_device.h"
#include "sfsdp/device/fake/fake_device.h"
#include "sfsdp/device/plan_commands.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/places.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::device::plan_on_lanes_test {
namespace {

// A number of each byte that is read before, and each byte that is written of that number: who comes too early or too late changes
// all that follows.
class Mix final : public Kernel {
 public:
  Mix(std::string name, Touched touched, std::vector<Bytes> sums)
      : name_(std::move(name)), touched_(std::move(touched)), sums_(std::move(sums)) {}

  void run(const Turn& turn) override {
    uint64_t number = 1 + static_cast<uint64_t>(turn.micro_batch);
    const Touched now = touched(turn);
    for (const Bytes& bytes : now.reads)
      for (int64_t i = 0; i < bytes.size; ++i) number = number * kFactor + static_cast<uint64_t>(bytes.begin[i]) + 1;
    for (const Bytes& bytes : now.writes)
      for (int64_t i = 0; i < bytes.size; ++i)
        const_cast<std::byte*>(bytes.begin)[i] = static_cast<std::byte>((number = number * kFactor + 1) >> 56);
  }
  std::string name() const override { return name_; }
  Touched touched(const Turn& turn) const override {
    Touched now = touched_;
    if (ir::beta_in(turn.part) == 1) now.reads.insert(now.reads.end(), sums_.begin(), sums_.end());
    return now;
  }
  Spent spent() const override { return Spent::ForwardBackward; }

 private:
  static constexpr uint64_t kFactor = 6364136223846793005ULL;
  const std::string name_;
  const Touched touched_;
  const std::vector<Bytes> sums_;  // that it adds to, if it is not the first micro-batch that does
};

using Contents = std::vector<std::vector<std::byte>>;  // by region

// One rank's plan with memory of its own.
class Rank {
 public:
  explicit Rank(const plan::StepPlan& plan)
      : plan_(plan),
        places_(plan, 0),
        kernels_(cost::kernels_of(plan.graph)),
        inside_(cost::values_inside(plan.graph, kernels_)) {
    for (const int64_t bytes : plan.memory.region_bytes) memory_.emplace_back(static_cast<size_t>(bytes), std::byte{7});
    commands_ = commands_of(plan, [&](const plan::Task& task) -> Kernel* {
      Kernel*& kernel = made_[task];
      if (!kernel)
        kernel = &mixes_.emplace_back(task.lane == 0 ? mix_of(kernels_.ops[task.number])
                                                     : mix_of({plan_.lanes[task.lane - 1].collectives[task.number]}));
      return kernel;
    });
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // What its memory holds after some steps.
  Contents train(const MakeDevice& make_device, int64_t steps) {
    const auto device = make_device(commands_.lanes, commands_.events);
    std::vector<Memory> regions;
    for (size_t r = 0; r < memory_.size(); ++r)
      regions.push_back({concat("region ", r), memory_[r].data(), std::ssize(memory_[r])});
    device->set_memory(regions);
    std::array<size_t, ir::kParts> captured = {};
    for (size_t part = 0; part < ir::kParts; ++part)
      captured[part] = device->capture(commands_.parts[part].at(0).commands);
    for (int64_t step = 0; step < steps; ++step) {
      Turn turn;
      for (const ir::Part part : ir::parts_of_step(plan_.graph.micro_batches)) {
        turn.part = part;
        const bool computes = part != ir::Part::Head && part != ir::Part::Tail;
        if (computes) load(*device, step * 10 + turn.micro_batch);
        device->replay(captured[static_cast<size_t>(part)], turn);
        turn.micro_batch += computes ? 1 : 0;
      }
      if (step % 2 == 1) device->synchronize();  // the executor does after each
    }
    device->synchronize();
    return memory_;
  }
  size_t lanes() const { return commands_.lanes; }

 private:
  std::optional<Bytes> bytes_of(const ir::Value* value) const {
    const auto& place = places_.of(value);
    if (!place || value->type().kind == ir::Type::Kind::Token) return std::nullopt;
    return Bytes{memory_[static_cast<size_t>(place->region)].data() + place->offset, value->type().span_bytes()};
  }

  Mix mix_of(const std::vector<const ir::Op*>& ops) const {
    Touched touched;
    std::vector<Bytes> sums;
    std::unordered_set<const ir::Value*> own;
    for (const ir::Op* op : ops) {
      for (const ir::Value* operand : op->operands)
        if (operand && !own.contains(ir::storage_of(operand)))
          if (const auto bytes = bytes_of(operand)) touched.reads.push_back(*bytes);
      for (const auto& result : op->results()) {
        own.insert(result.get());
        const auto bytes = bytes_of(result.get());
        if (!bytes || ir::aliased_operand(*op) >= 0 || inside_.contains(result.get())) continue;
        touched.writes.push_back(*bytes);
        if (op->is("accumulate") && plan_.graph.micro_batches > 1) sums.push_back(*bytes);
      }
    }
    return {ir::name_of(*ops[0]), std::move(touched), std::move(sums)};
  }

  void load(Device& device, int64_t number) {
    for (const uint32_t event : commands_.before_load) device.wait(event);
    for (const auto& op : plan_.graph.ops()) {
      if (!op->is("input")) continue;
      const auto to = bytes_of(op->result());
      if (!to) continue;
      const std::vector<std::byte> batch(static_cast<size_t>(to->size), static_cast<std::byte>(number));
      device.upload(const_cast<std::byte*>(to->begin), batch.data(), to->size);
    }
  }

  const plan::StepPlan& plan_;
  const plan::Places places_;
  const cost::Kernels kernels_;
  const std::unordered_set<const ir::Value*> inside_;
  Contents memory_;
  std::deque<Mix> mixes_;
  std::map<plan::Task, Kernel*> made_;
  PlanCommands commands_;
};

plan::StepPlan plan_of(const testing::ShardedStep& step, int64_t micro_batches, const std::string& overlap) {
  std::vector<testing::Param> params;
  for (int layer = 0; layer < 3; ++layer)
    for (const char* name : {"a", "b"}) params.push_back({concat("layers.", layer, ".", name), 9 + layer, 16});
  ir::Graph graph = ir::parse_or_throw(testing::sharded_step_text(2, params, step));
  graph.micro_batches = micro_batches;
  passes::run_passes(graph, passes::parse_passes(concat("wrap, bucket, split_collectives, ", overlap,
                                                        ", keep_in_place, fuse, write_in_buckets")));
  return plan::make_plan(std::move(graph));
}

TEST_CASE(
    "plans of training steps: lanes that are threads leave in memory what one thread does, in the order of edges") {
  size_t beside = 0;  // plans with more than one lane of collectives
  for (const int64_t micro_batches : {1, 2, 4})
    for (const testing::ShardedStep& step :
         {testing::ShardedStep{.batch = true}, testing::ShardedStep{.bf16 = true, .tokens = 8},
          testing::ShardedStep{.replicas = 2, .batch = true},
          testing::ShardedStep{.bf16 = true, .replicas = 2, .reduce_once = true, .batch = true}})
      for (const char* overlap :
           {"prefetch_gathers depth=1, sink_waits", "prefetch_gathers depth=2, sink_waits, early_all_reduces"}) {
        CAPTURE(micro_batches);
        CAPTURE(step.replicas);
        CAPTURE(overlap);
        const plan::StepPlan plan = plan_of(step, micro_batches, overlap);
        const Contents expected = Rank(plan).train([](size_t, size_t) { return make_inline_device(); }, 4);
        Rank threads(plan);
        beside += threads.lanes() > 2 ? 1 : 0;
        CHECK(threads.train(make_threaded_device, 4) == expected);
        std::vector<std::string> faults;
        const auto fake = [&](size_t lanes, size_t events) {
          return make_fake_device(lanes, events, {7, false, [&](const auto& fault) { faults.push_back(fault); }});
        };
        CHECK(Rank(plan).train(fake, 4) == expected);
        CHECK(sfsdp::join(faults, "\n") == "");
      }
  CHECK(beside > 0);
}

}  // namespace
}  // namespace sfsdp::device::plan_on_lanes_test
