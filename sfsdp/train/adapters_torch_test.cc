// SPDX-License-Identifier: BSD-3-Clause
// Runs of adapters from a job's flags: checkpoints without the frozen weights, adapters of PEFT to begin with.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/train/checkpoint/checkpointer.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/weights/adapter_values.h"

namespace sfsdp::train {
namespace adapters_torch_test {

using checkpoint::Checkpointer, checkpoint::WeightSource;
using testing::MemoryFolder;

std::string fixture(const std::string& name) { return testing::source_dir() + "/tests/fixtures/exported/" + name; }

JobConfig decoder() {
  JobConfig config;
  config.model.name = "exported";
  config.model.path = fixture("decoder.pt2");
  config.model.inputs = {"input_ids=tokens", "labels=tokens"};
  config.lora.target = {"*.q_proj|*.v_proj|*.down_proj"};
  config.lora.rank = 4;
  config.training.seq_len = 8;
  config.training.local_batch_size = 2;
  config.training.mixed_precision_param = "float32";
  config.optimizer.lr = 1e-2;
  config.debug.seed = 3;
  return config;
}

JobConfig llama() {
  JobConfig config = decoder();
  config.model = {};
  config.model_args = {{"dim", int64_t{32}},       {"n_layers", int64_t{2}},    {"n_heads", int64_t{4}},
                       {"n_kv_heads", int64_t{2}}, {"vocab_size", int64_t{40}}, {"multiple_of", int64_t{16}}};
  config.lora.target = {"*.wq|*.w2"};
  return config;
}

Batch rows_of(const CompiledJob& job, int64_t step, int64_t rank) {
  const int64_t vocab = job.model.vocab_size;
  const at::Tensor ids = (at::arange(18).view({2, 9}) * 7 + step * 5 + rank * 11).remainder(vocab);
  const at::Tensor tokens = ids.narrow(1, 0, 8).contiguous();
  Batch batch;
  for (const std::string& part : job.batch)
    batch.push_back(part == "targets" ? ids.narrow(1, 1, 8).contiguous() : tokens);
  return batch;
}

struct Outcome {
  std::vector<double> losses;  // of the steps made
  std::map<std::string, at::Tensor> state;
  int64_t began_at = 0;
  int64_t bytes = 0;  // of the newest checkpoint
};

struct Setting {
  std::string folder;
  int64_t ranks = 1;
  int64_t steps = 0;  // saves after every second
  std::string frozen = "none";
  std::function<void(JobConfig&)> change = {};
  std::function<void(Step&, int64_t rank)> spoil = {};  // what the source has become
  bool one_batch = false;                               // all ranks have the samples of the first
};

// As the trainer does it.
Outcome run(JobConfig config, const Setting& setting) {
  config.checkpoint.enable = true;
  config.checkpoint.folder = setting.folder;
  config.checkpoint.interval = 2;
  config.checkpoint.frozen = setting.frozen;
  config.training.steps = 1000;
  if (setting.change) setting.change(config);
  Outcome outcome;
  const CompiledJob job = make_job(config, setting.ranks);
  testing::run_ranks(static_cast<int>(setting.ranks), [&](comm::CommWorld& world) {
    Step step(job.program, setting.ranks == 1 ? nullptr : &world);
    checkpoint::CheckpointOptions options = checkpoint_options(config, job);
    options.frozen.read = [&](const WeightSource& source) {
      load_weights_of(source, job, step);
      if (setting.spoil) setting.spoil(step, world.rank());
    };
    Checkpointer checkpointer(
        options, &world, [&] { return checkpoint_pieces(step, world.rank()); }, [](const std::string&) {});
    const auto loaded = checkpointer.load();
    if (!loaded) load_initial_weights(job, step);
    step.load_state_dict({});
    if (loaded) step.step = loaded->run.step;
    const int64_t began_at = step.step;
    std::vector<double> losses;
    for (int64_t k = began_at + 1; k <= setting.steps; ++k) {
      losses.push_back(step({rows_of(job, k, setting.one_batch ? 0 : world.rank())}).loss);
      checkpointer.after_step({.step = k, .seed = 3});
    }
    checkpointer.finish();
    auto state = testing::gather_all(step);
    if (world.rank() == 0) outcome = {losses, std::move(state), began_at};
  });
  if (const std::string last = concat(setting.folder, "/step-", setting.steps / 2 * 2); std::filesystem::exists(last))
    outcome.bytes = checkpoint::open_checkpoint(last).bytes();
  return outcome;
}

void check_same(const Outcome& got, const std::vector<double>& losses, const Outcome& expected) {
  CHECK(got.losses == losses);
  REQUIRE(got.state.size() == expected.state.size());
  for (const auto& [name, value] : expected.state) CHECK_MESSAGE(at::equal(got.state.at(name), value), name);
}

std::vector<double> last_of(const std::vector<double>& losses, size_t count) {
  return {losses.end() - static_cast<std::ptrdiff_t>(count), losses.end()};
}

TEST_CASE("a run goes on from a checkpoint of what is trained alone, bit for bit, on any number of ranks") {
  for (const JobConfig& config : {decoder(), llama()}) {
    CAPTURE(config.model.name);
    for (const int64_t ranks : {1, 2}) {
      const MemoryFolder whole, without, with;
      const Outcome expected = run(config, {.folder = whole.path(), .ranks = ranks, .steps = 7});
      const Outcome first = run(config, {.folder = without.path(), .ranks = ranks, .steps = 4});
      const Outcome all = run(config, {.folder = with.path(), .ranks = ranks, .steps = 4, .frozen = "all"});
      CHECK(first.losses == all.losses);
      CHECK(2 * first.bytes < all.bytes);
      // copies, so that each number of ranks goes on from the same step
      for (const int64_t others : {1, 2, 4}) {
        CAPTURE(others);
        const MemoryFolder a, b;
        std::filesystem::copy(without.path(), a / "c", std::filesystem::copy_options::recursive);
        std::filesystem::copy(with.path(), b / "c", std::filesystem::copy_options::recursive);
        const Outcome rest = run(config, {.folder = a / "c", .ranks = others, .steps = 7});
        CHECK(rest.began_at == 4);
        const Outcome same = run(config, {.folder = b / "c", .ranks = others, .steps = 7, .frozen = "all"});
        check_same(rest, same.losses, same);
        if (others == ranks) check_same(rest, last_of(expected.losses, 3), expected);
      }
    }
  }
}

// 41 words over 2 and 4 ranks: 21 and 20; 11, 11, 11 and 8.
TEST_CASE("adapters of a head whose vocabulary tp does not divide train as on one rank, and go on there") {
  JobConfig config = llama();
  config.model_args["vocab_size"] = int64_t{41};
  config.lora.target = {"*.wq|output"};
  const MemoryFolder whole;
  const Outcome expected = run(config, {.folder = whole.path(), .steps = 4});
  CHECK(expected.state.at("output.lora_B.weight").abs().max().item<float>() > 0.01F);
  for (const int64_t ranks : {2, 4}) {
    CAPTURE(ranks);
    const auto over_tp = [&](JobConfig& job) { job.parallelism.tensor_parallel_degree = ranks; };
    const MemoryFolder cut;
    const Outcome got =
        run(config, {.folder = cut.path(), .ranks = ranks, .steps = 2, .change = over_tp, .one_batch = true});
    const Outcome rest = run(config, {.folder = cut.path(), .steps = 4});
    CHECK(rest.began_at == 2);
    for (size_t k = 0; k < 4; ++k)
      CHECK((k < 2 ? got.losses[k] : rest.losses[k - 2]) == doctest::Approx(expected.losses[k]).epsilon(1e-5));
    CHECK(rest.state.at("output.lora_B.weight").size(0) == 41);
  }
}

TEST_CASE("frozen weights that are no longer those of the checkpoint are refused by name") {
  const MemoryFolder folder;
  run(decoder(), {.folder = folder.path(), .ranks = 2, .steps = 2});
  const auto spoil = [](Step& step, int64_t) {
    at::Tensor mine = step.state_dict().at("layers.1.k_proj.weight");  // whole units may be on one rank
    if (mine.numel() > 0) mine.view(-1)[0] += 1e-6;
  };
  CHECK_THROWS_WITH_AS(run(decoder(), {.folder = folder.path(), .ranks = 2, .steps = 4, .spoil = spoil}),
                       doctest::Contains("decoder.pt2\" are not what they were: \"layers.1.k_proj.weight\" has digest"),
                       UserError);
  const auto other_seed = [](JobConfig& config) { config.debug.seed = 4; };
  CHECK_THROWS_WITH_AS(run(decoder(), {.folder = folder.path(), .steps = 4, .change = other_seed}),
                       doctest::Contains("debug.seed"), UserError);
  CHECK(run(decoder(), {.folder = folder.path(), .ranks = 4, .steps = 4}).began_at == 2);
}

TEST_CASE("initial values that are left out are drawn again; another model's are refused by their digests") {
  const MemoryFolder folder;
  run(llama(), {.folder = folder.path(), .ranks = 2, .steps = 2});
  CHECK(checkpoint::open_checkpoint(folder / "step-2").source == WeightSource{});
  const auto seed = [](JobConfig& config) {
    config.debug.seed = 4;
    config.checkpoint.exclude_from_loading = {"dataloader"};
  };
  CHECK_THROWS_WITH_AS(run(llama(), {.folder = folder.path(), .ranks = 1, .steps = 4, .change = seed}),
                       doctest::Contains("the initial values by debug.seed are not what they were"), UserError);
  const auto bf16 = [](JobConfig& config) { config.training.dtype = "bfloat16"; };
  CHECK_THROWS_WITH_AS(run(llama(), {.folder = folder.path(), .steps = 4, .change = bf16}),
                       doctest::Contains("training.dtype"), UserError);
}

TEST_CASE("adapters of PEFT to begin with: PEFT's loss; and what our export wrote gives the same bits") {
  const JsonValue found = parse_json(read_text_file(fixture("lora.json"), 1 << 24), "lora.json");
  const JsonValue decoded = parse_json(read_text_file(fixture("decoder.json"), 1 << 24), "decoder.json");
  const MemoryFolder folder;
  std::filesystem::create_directories(folder / "peft");
  std::filesystem::copy_file(fixture("lora_peft.safetensors"), folder / "peft/adapter_model.safetensors");
  std::filesystem::copy_file(fixture("lora_peft_config.json"), folder / "peft/adapter_config.json");
  const auto ids_of = [&](const char* input) {
    std::vector<int64_t> ids;
    const JsonValue& tensor = *(*decoded.find("batches")->as<JsonArray>())[0].find(input);
    for (const JsonValue& id : *tensor.find("values")->as<JsonArray>()) {
      const auto* whole = id.as<uint64_t>();
      const auto* negative = id.as<int64_t>();
      ids.push_back(whole      ? static_cast<int64_t>(*whole)
                    : negative ? *negative
                               : static_cast<int64_t>(*id.as<double>()));
    }
    return at::tensor(ids).view({4, 10});
  };
  JobConfig config = decoder();
  config.lora = {.target = {}, .adapter = folder / "peft", .rank = {}, .alpha = {}};
  config.training.seq_len = 10;
  config.training.local_batch_size = 4;
  const auto first_loss = [&](const JobConfig& with, std::map<std::string, at::Tensor>* state) {
    const CompiledJob job = make_job(with, 1);
    Step step(job.program, nullptr);
    load_initial_weights(job, step);
    if (state) *state = testing::gather_all(step);
    return step.eval({ids_of("input_ids"), ids_of("labels")});
  };
  std::map<std::string, at::Tensor> began;
  const double loss = first_loss(config, &began);
  CHECK(loss == doctest::Approx(*found.find("trained")->as<double>()).epsilon(1e-6));
  for (const auto& [name, tensor] : *found.find("last")->as<JsonObject>()) {
    const at::Tensor got = began.at(name).flatten().to(at::kDouble);
    const JsonArray& values = *tensor.find("values")->as<JsonArray>();
    REQUIRE(got.numel() == std::ssize(values));
    for (int64_t i = 0; i < got.numel(); ++i)
      CHECK(got[i].item<double>() == *values[static_cast<size_t>(i)].as<double>());
  }

  const MemoryFolder saved;
  config.training.local_batch_size = 2;
  config.training.seq_len = 8;
  const Outcome ours = run(config, {.folder = saved.path(), .ranks = 2, .steps = 4});
  export_peft(saved / "step-4", folder / "ours", "");
  config.lora.adapter = folder / "ours";
  for (const int64_t ranks : {1, 2, 4}) {
    const MemoryFolder again;
    const Outcome begun = run(config, {.folder = again.path(), .ranks = ranks, .steps = 0});
    for (const auto& [name, value] : begun.state)
      if (name.find("exp_avg") == std::string::npos && name != "step" && ours.state.contains(name) && value.dim() == 2)
        CHECK_MESSAGE(at::equal(value, ours.state.at(name)), name);
  }
  // The fifth step of a run not stopped and the first of one that begins with its adapters see the same rows.
  const Outcome on = run(config, {.folder = saved.path(), .ranks = 2, .steps = 5, .change = [&](JobConfig& c) {
                                    c.lora.adapter = folder / "peft";
                                  }});
  const CompiledJob job = make_job(config, 2);
  std::vector<double> fresh(1);
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(job.program, &world);
    load_initial_weights(job, step);
    const double l = step({rows_of(job, 5, world.rank())}).loss;
    if (world.rank() == 0) fresh[0] = l;
  });
  CHECK(on.losses == fresh);
}

TEST_CASE("lora.adapter: flags that disagree with it, and what the model has not, are refused") {
  const MemoryFolder folder;
  std::filesystem::copy_file(fixture("lora_peft.safetensors"), folder / "adapter_model.safetensors");
  std::filesystem::copy_file(fixture("lora_peft_config.json"), folder / "adapter_config.json");
  const auto refused = [&](JobConfig config, const std::function<void(JobConfig&)>& change, const char* with) {
    config.lora = {.target = {}, .adapter = folder.path(), .rank = {}, .alpha = {}};
    change(config);
    CHECK_THROWS_WITH_AS(make_job(config, 1), doctest::Contains(with), UserError);
  };
  refused(
      decoder(), [](JobConfig& c) { c.lora.rank = 8; }, "lora.rank = 8, but ");
  refused(
      decoder(), [](JobConfig& c) { c.lora.alpha = 4; },
      "has lora_alpha = 8\n  expected the same; leave lora.alpha out");
  refused(
      llama(), [](JobConfig&) {}, "has an adapter of \"layers.0.down_proj\", and the model no such module");
  refused(
      decoder(), [](JobConfig& c) { c.lora.adapter += "/none"; }, "adapter_config.json");
}

}  // namespace adapters_torch_test
}  // namespace sfsdp::train
