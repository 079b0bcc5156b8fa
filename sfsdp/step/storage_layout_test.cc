// SPDX-License-Identifier: BSD-3-Clause
// All programs of a run have its state at the same addresses.
#include "sfsdp/plan/storage_layout.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/plan/verify/state_addresses.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/step/step.h"

namespace sfsdp {
namespace storage_layout_test {

struct ConvNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head(at::relu(norm(conv(x))).flatten(1)); }
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1).bias(false)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(5));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(5 * 4 * 4, 3));
};
TORCH_MODULE(ConvNet);

Batch images(int64_t rows) { return {at::ones({rows, 2, 4, 4}), at::zeros({rows}, at::kLong)}; }

using Places = std::map<std::string, std::string>;
Places places_of(const plan::StepPlan& plan) {
  Places places;
  for (const plan::Buffer& b : plan.memory.state)
    places[b.value->producer()->attr<std::string>("name")] = concat(plan::to_string(b.region), " +", b.offset);
  for (const plan::UnreadState& u : plan.memory.unread)
    places[u.name] = concat(plan::to_string(u.region), " +", u.offset);
  return places;
}

std::vector<std::string> names_of(const plan::StorageLayout& layout, plan::StateKind kind) {
  std::vector<std::string> names;
  for (const plan::StateEntry& entry : layout.entries)
    if (entry.kind == kind) names.push_back(entry.name);
  return names;
}

TEST_CASE(
    "training, evaluation and other batch shapes have every parameter, moment, counter and buffer at one address") {
  const auto loss = [](ConvNet& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };
  for (const ParameterLayout stored : {ParameterLayout::Flat, ParameterLayout::Dim0}) {
    for (const int64_t micro_batches : {1, 2}) {
      CAPTURE(stored == ParameterLayout::Flat);
      CAPTURE(micro_batches);
      CompileOptions options;
      options.micro_batches = micro_batches;
      options.notify = [](const std::string&) {};
      const auto program = compile_program(
          meta_init([] { return ConvNet(); }), loss, AdamW{}, images(4),
          data_parallel(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.layout = stored}), options);
      const plan::StorageLayout layout = program->storage_layout();
      CHECK(plan::print(plan::parse_storage_layout(plan::print(layout))) == plan::print(layout));
      CHECK(names_of(layout, plan::StateKind::Counter) == std::vector<std::string>{"optimizer.step"});
      CHECK(names_of(layout, plan::StateKind::Buffer) ==
            std::vector<std::string>{"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"});
      const auto moments = names_of(layout, plan::StateKind::Moment),
                 parameters = names_of(layout, plan::StateKind::Parameter);
      CHECK(moments.size() == 2 * parameters.size());
      if (stored == ParameterLayout::Flat) {
        const plan::StateEntry* conv = plan::find(layout, "conv.flat");
        REQUIRE(conv);
        CHECK(conv->members[0].shape == std::vector<int64_t>{5, 2, 3, 3});
        CHECK(plan::to_string(plan::key_of(*conv)) == "dp_shard/f32");
      } else {
        const plan::StateEntry* conv = plan::find(layout, "conv.weight");
        REQUIRE(conv);
        CHECK(conv->shape == std::vector<int64_t>{5, 2, 3, 3});
        CHECK(plan::box_of(layout, *conv, 2).dims[0] == Chunk{0, 3});
        CHECK(plan::box_of(layout, *conv, 3).dims[0] == Chunk{3, 2});
      }

      const auto first = program->first(), eval = program->evaluation(images(4)), other = program->training(images(6)),
                 other_eval = program->evaluation(images(10));
      CHECK(plan::print(program->storage_layout()) == plan::print(layout));
      const Places places = places_of(first->plan);
      CHECK(places.size() == layout.entries.size());
      for (const auto& variant : {first, eval, other, other_eval}) {
        CHECK(places_of(variant->plan) == places);
        CHECK(variant->plan.layout == plan::LayoutStamp{plan::hash(layout), std::ssize(layout.entries)});
        CHECK(join(plan::check_state_addresses(variant->plan, layout), "\n") == "");
        CHECK(plan::print(plan::parse_plan(plan::print(variant->plan))) == plan::print(variant->plan));
      }
      CHECK(first->plan.memory.unread.empty());
      CHECK(eval->plan.memory.unread.size() == moments.size() + 1);

      // As if the evaluation laid out what it reads by itself: sound alone, and not on this state.
      plan::StepPlan alone = plan::make_plan(eval->graph.clone());
      alone.layout = eval->plan.layout;
      CHECK(join(plan::verify_plan(alone), "\n") == "");
      const std::string wrong = join(plan::check_state_addresses(alone, layout), "\n");
      CHECK(wrong.find("norm.running_mean lies at state +") != std::string::npos);
      CHECK(wrong.find("optimizer.step has no place in the plan") != std::string::npos);
    }
  }
}

}  // namespace storage_layout_test
}  // namespace sfsdp
