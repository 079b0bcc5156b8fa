// SPDX-License-Identifier: BSD-3-Clause
// Models, meshes and options drawn at random: whatever the passes make of a step, it trains as one eager process does,
// and bit for bit as the same step without them; the plan at its addresses as the graph op by op.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "sfsdp/base/strings.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/plans_torch.h"
#include "sfsdp/testing/random_models_torch.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace random_models_test {

using testing::Draw, testing::NetArgs, testing::Net, testing::draw_net;
using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::tokens;

constexpr int64_t kSteps = 3;

struct Case {
  DeviceMesh mesh;
  DataParallelOptions options;
  int64_t micro_batches = 1;
  passes::PipelineOptions plain, pipeline;
  tune::TuneOptions plain_tune, tune;
};

Case draw_case(Draw& draw) {
  Case c;
  const auto [replicas, shards] = draw.one_of<std::pair<int64_t, int64_t>>(
      {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {3, 1}, {2, 2}, {2, 3}, {3, 2}});
  c.mesh = init_device_mesh({{"dp_replicate", replicas}, {"dp_shard", shards}});
  c.micro_batches = 1 + draw.below(2);
  c.options.mode = replicas == 1 ? DataParallelMode::FullyShard
                   : shards == 1 ? DataParallelMode::Replicate
                                 : DataParallelMode::HybridShard;
  c.options.zero_stage = draw.once_in(2) ? 3 : draw.below(4);
  c.options.reshard_after_forward = !draw.once_in(3);
  c.options.reduce_once = draw.once_in(3);
  c.options.min_shard_numel = draw.one_of<int64_t>({0, 0, 60});
  c.options.layout = draw.once_in(3) ? ParameterLayout::Dim0 : ParameterLayout::Flat;
  c.options.units = draw.one_of<std::string>({"", "", "layers.*.*", "[layers, norm], embedding"});

  const bool flat = c.options.layout == ParameterLayout::Flat;
  passes::PipelineOptions& p = c.pipeline;
  c.tune.machine = testing::source_dir() + "/machines/dgx_h100.toml";
  if (draw.once_in(4)) p.loss_chunks = 2;
  if (flat && (c.options.zero_stage == 0 || c.options.zero_stage == 3))
    c.tune.wrap = draw.one_of<tune::Wrap>({tune::Wrap::Manual, tune::Wrap::Auto, tune::Wrap::Search});
  c.tune.choose_reshard = c.tune.wrap != tune::Wrap::Manual;
  c.plain = p;
  c.plain_tune = c.tune;
  c.plain.disable = passes::overlap_passes();

  if (draw.once_in(4)) p.disable = passes::overlap_passes();
  const auto sides = {passes::Side::Before, passes::Side::After};
  p.prefetch.depth = draw.below(4);
  p.prefetch.max_bytes = draw.one_of<int64_t>({0, 1500});
  p.prefetch.forward = draw.one_of<passes::Side>(sides);
  p.prefetch.backward = draw.one_of<passes::Side>(sides);
  p.sink.depth = draw.below(4);
  p.sink.next = draw.one_of<passes::Side>(sides);
  p.reshard.keep_last = draw.once_in(2);
  const int64_t remat = draw.below(5);  // the last: chosen by cost
  c.tune.choose_remat = remat == 4;
  if (remat < 4) p.remat.mode = static_cast<passes::RematMode>(remat);
  p.remat.memory_budget = 0.5;
  if (c.tune.wrap == tune::Wrap::Manual) {
    for (const char* name : {"fold_views", "merge_duplicates"}) c.plain.disable.emplace_back(name);
  } else {  // which units are best depends on it
    c.plain.remat = p.remat;
    c.plain_tune.choose_remat = c.tune.choose_remat;
  }
  p.checks = passes::Checks::EveryPass;
  return c;
}

TEST_CASE("random models on random meshes with random options train as one eager process does") {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const NetArgs args = draw_net(draw, seed >= 60);
    const auto make = [&] { return Net(args); };
    const Case c = draw_case(draw);
    CAPTURE(to_string(c.mesh));
    CAPTURE(c.options.zero_stage);
    CAPTURE(static_cast<int>(c.tune.wrap));
    CAPTURE(passes::to_string(c.pipeline.remat.mode));

    const int64_t ranks = c.mesh.world_size(), rows = kGlobalBatch / ranks / c.micro_batches;
    const auto train = [&](const passes::PipelineOptions& pipeline, const tune::TuneOptions& tune,
                           ExecutorKind executor) {
      CompileOptions options;
      options.executor = executor;
      options.max_norm = 1.0;
      options.micro_batches = c.micro_batches;
      options.pipeline = pipeline;
      options.tune = tune;
      options.notify = [](const std::string&) {};
      const auto program = compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, rows),
                                           data_parallel(c.mesh, c.options), options);
      // A batch shape of one row runs in the plan machine, as a small one does.
      CHECK(testing::run_on_machine(program->training(tokens(0, 0, 1)), {.first_schedule = seed, .schedules = 1}) ==
            "");
      return testing::train_on_ranks(program, kSteps, [&](int64_t step, int64_t rank) {
        return testing::micro_batches_of(step, rank, ranks, c.micro_batches);
      });
    };
    const auto got = train(c.pipeline, c.tune, ExecutorKind::Planned),
               plain = train(c.plain, c.plain_tune, ExecutorKind::Reference);
    testing::expect_same_bits(got, plain);

    Step one = compile(meta_init(make), loss_of, kAdamW, tokens(0, 0, kGlobalBatch),
                       data_parallel(init_device_mesh({{"dp_shard", 1}})));
    Net eager = make();
    testing::copy_weights(one, *eager);
    testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
    for (int64_t k = 0; k < kSteps; ++k) {
      const StepResult expected = trainer.step([&] { return loss_of(eager, tokens(k, 0, kGlobalBatch)); });
      CHECK(std::abs(got.results[k].loss - expected.loss) <= 1e-6 * expected.loss);
      CHECK(std::abs(got.results[k].grad_norm - expected.grad_norm) <= 5e-6 * expected.grad_norm);
    }
    for (const auto& [name, value] : trainer.state()) {
      CAPTURE(name);
      CHECK((got.state.at(name) - value).abs().max().item<double>() <= 1e-5);
    }
  }
}

}  // namespace random_models_test
}  // namespace sfsdp
