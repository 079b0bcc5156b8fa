// SPDX-License-Identifier: BSD-3-Clause
// Models that torch.export wrote, trained here and by PyTorch (tests/fixtures/make_exported.py).
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/capture/lora.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/models/exported/exported_module.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/train/exported_job.h"

namespace sfsdp::train {
namespace exported_job_torch_test {

std::string fixture_path(const std::string& name) { return testing::source_dir() + "/tests/fixtures/exported/" + name; }

double number(const JsonValue& value) {
  if (const auto* real = value.as<double>()) return *real;
  if (const auto* whole = value.as<uint64_t>()) return static_cast<double>(*whole);
  return static_cast<double>(*value.as<int64_t>());
}

struct Found {
  double evaluation = 0;
  std::vector<StepResult> steps;
  std::vector<Batch> batches;  // of all ranks, a step each
  JsonValue json;
};

Found read_found(const std::string& name) {
  const std::string path = fixture_path(name + ".json");
  Found found;
  found.json = parse_json(read_text_file(path, 1 << 24), path);
  found.evaluation = number(*found.json.find("evaluation"));
  for (const JsonValue& step : *found.json.find("steps")->as<JsonArray>())
    found.steps.push_back({number(*step.find("loss")), number(*step.find("grad_norm"))});
  if (!found.json.find("batches")) return found;
  for (const JsonValue& batch : *found.json.find("batches")->as<JsonArray>()) {
    Batch tensors;
    for (const auto& [input, tensor] : *batch.as<JsonObject>()) {
      std::vector<int64_t> shape;
      for (const JsonValue& size : *tensor.find("shape")->as<JsonArray>())
        shape.push_back(static_cast<int64_t>(number(size)));
      std::vector<double> values;
      for (const JsonValue& value : *tensor.find("values")->as<JsonArray>()) values.push_back(number(value));
      const bool integer = *tensor.find("integer")->as<bool>();
      tensors.push_back(at::tensor(values, at::kDouble).view(shape).to(integer ? at::kLong : at::kFloat));
    }
    found.batches.push_back(tensors);
  }
  return found;
}

struct Setting {
  int64_t ranks = 1, micro_batches = 1;
  std::string output = "loss";
  LoraOptions lora = {};  // without targets: the model is trained
  passes::RematMode remat = passes::RematMode::None;
  TensorParallel tensor = {};
  int64_t tp = 1;  // ranks that share the samples of each of `ranks`
};

Batch rows_of(const Batch& batch, int64_t part, int64_t parts) {
  Batch rows;
  for (const at::Tensor& t : batch) rows.push_back(t.chunk(parts)[static_cast<size_t>(part)]);
  return rows;
}

Strategy strategy_of(const Setting& setting) {
  if (setting.tp == 1) return data_parallel(init_device_mesh({{"dp_shard", setting.ranks}}));
  return data_parallel(init_device_mesh({{"dp_shard", setting.ranks}, {"tp", setting.tp}}), {}, setting.tensor);
}

std::shared_ptr<Program> compile_exported(const std::string& name, const Setting& setting, const Found& found) {
  auto archive = std::make_shared<const exported::Program>(exported::read_program(fixture_path(name + ".pt2")));
  auto module = meta_init([&] {
    models::ExportedModule built(archive);
    if (!setting.lora.targets.empty()) add_lora(*built, setting.lora);
    return built;
  });
  const auto& names = module->output_names();
  const auto place = std::ranges::find(names, setting.output) - names.begin();
  REQUIRE(place < static_cast<std::ptrdiff_t>(names.size()));
  const auto loss = [place](models::ExportedModule& m, const Batch& b) {
    return m->forward(b)[static_cast<size_t>(place)];
  };
  CompileOptions options;
  options.max_norm = 1.0;
  options.micro_batches = setting.micro_batches;
  options.pipeline.remat.mode = setting.remat;
  return compile_program(module, loss, AdamW{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
                         rows_of(found.batches[0], 0, setting.ranks * setting.micro_batches), strategy_of(setting),
                         options);
}

// Each rank and micro-batch has an equal share of each step's rows.
void train(Step& step, const Found& found, const Setting& setting, int64_t rank, std::vector<StepResult>& results) {
  for (const Batch& batch : found.batches) {
    std::vector<Batch> mine;
    for (int64_t m = 0; m < setting.micro_batches; ++m)
      mine.push_back(
          rows_of(batch, rank / setting.tp * setting.micro_batches + m, setting.ranks * setting.micro_batches));
    const StepResult result = step(mine);
    if (rank == 0) results.push_back(result);
  }
}

// numbers: the model's whose they are; "": that of `name`
void expect_parity(const std::string& name, const Setting& setting, const std::string& numbers = "") {
  CAPTURE(name);
  CAPTURE(setting.ranks);
  CAPTURE(setting.micro_batches);
  CAPTURE(setting.tensor.options.sequence_parallel);
  const Found found = read_found(numbers.empty() ? name : numbers);
  const auto program = compile_exported(name, setting, found);
  const exported::Program archive = exported::read_program(fixture_path(name + ".pt2"));
  std::vector<StepResult> results;
  double evaluation = 0;
  testing::run_ranks(setting.ranks * setting.tp, [&](comm::CommWorld& world) {
    Step step(program, &world);
    load_exported_weights(archive, step, !setting.lora.targets.empty());
    const double loss = step.eval(rows_of(found.batches[0], world.rank() / setting.tp, setting.ranks));
    if (world.rank() == 0) evaluation = loss;
    train(step, found, setting, world.rank(), results);
  });
  CHECK(evaluation == doctest::Approx(found.evaluation).epsilon(1e-6));
  REQUIRE(results.size() == found.steps.size());
  for (size_t k = 0; k < results.size(); ++k) {
    CHECK(std::abs(results[k].loss - found.steps[k].loss) <= 1e-6 * found.steps[k].loss);
    CHECK(std::abs(results[k].grad_norm - found.steps[k].grad_norm) <= 5e-6 * found.steps[k].grad_norm);
  }
}

TEST_CASE("exported models train as in PyTorch: a decoder with rotary positions, on any number of ranks") {
  for (const int64_t ranks : {1, 2, 4}) expect_parity("decoder", {.ranks = ranks});
  expect_parity("decoder", {.micro_batches = 2});
  expect_parity("decoder", {.ranks = 2, .micro_batches = 2, .remat = passes::RematMode::Full});
}

TEST_CASE("exported models train as in PyTorch: weights of a decoder cut over tp, its vocabulary too") {
  std::vector<TensorParallelRule> rules = {{"*.q_proj|k_proj|v_proj|gate_proj|up_proj", Shard(0)},
                                           {"*.o_proj|down_proj", Shard(1)}};
  expect_parity("decoder", {.tensor = tensor_parallel(rules), .tp = 2});
  rules.push_back({"embed_tokens|lm_head", Shard(0)});
  const TensorParallel by_sequence = tensor_parallel(rules, {.sequence_parallel = true});
  expect_parity("decoder", {.tensor = by_sequence, .tp = 2});
  expect_parity("decoder", {.ranks = 2, .micro_batches = 2, .tensor = by_sequence, .tp = 2});
  expect_parity("decoder", {.remat = passes::RematMode::Full, .tensor = by_sequence, .tp = 2});
}

TEST_CASE("exported models train as in PyTorch: tied, frozen, unused and transposed weights, a constant") {
  expect_parity("shared", {});
  expect_parity("shared", {.ranks = 2});
  expect_parity("shared", {.micro_batches = 2});
}

// archive: of the same model
void expect_buffers(const std::string& archive) {
  CAPTURE(archive);
  const Found found = read_found("convolutions");
  const Setting setting = {.output = "0"};
  Step step(compile_exported(archive, setting, found), nullptr);
  load_exported_weights(exported::read_program(fixture_path(archive + ".pt2")), step, false);
  step.eval(found.batches[0]);  // changes none of them
  std::vector<StepResult> results;
  train(step, found, setting, 0, results);
  const auto state = step.state_dict();
  for (const auto& [name, values] : *found.json.find("buffers")->as<JsonObject>()) {
    CAPTURE(name);
    const at::Tensor got = state.at(name).to(at::kDouble).flatten();
    const auto& expected = *values.as<JsonArray>();
    REQUIRE(got.numel() == static_cast<int64_t>(expected.size()));
    for (int64_t i = 0; i < got.numel(); ++i)
      CHECK(got[i].item<double>() == doctest::Approx(number(expected[static_cast<size_t>(i)])).epsilon(1e-5));
  }
}

TEST_CASE("exported models train as in PyTorch: convolutions, and batch norm's buffers, which forward writes") {
  expect_parity("convolutions", {.output = "0"});
  expect_buffers("convolutions");
}

// After run_decompositions they are outputs, which whoever calls the graph writes back.
TEST_CASE("exported models train as in PyTorch: buffers that are outputs of the graph") {
  expect_parity("convolutions_decomposed", {.output = "0"}, "convolutions");
  expect_buffers("convolutions_decomposed");
}

const LoraOptions kLora = {{"*.q_proj", "*.v_proj", "*.down_proj"}, 4, 8};

// By name, as PEFT had them before or after training.
std::map<std::string, at::Tensor> adapters_of(const Found& found, const char* when) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : *found.json.find(when)->as<JsonObject>()) {
    std::vector<int64_t> shape;
    for (const JsonValue& size : *tensor.find("shape")->as<JsonArray>())
      shape.push_back(static_cast<int64_t>(number(size)));
    std::vector<double> values;
    for (const JsonValue& value : *tensor.find("values")->as<JsonArray>()) values.push_back(number(value));
    tensors[name] = at::tensor(values, at::kDouble).view(shape).to(at::kFloat);
  }
  return tensors;
}

void expect_peft_parity(Setting setting) {
  setting.lora = kLora;
  CAPTURE(setting.ranks);
  CAPTURE(setting.micro_batches);
  const Found expected = read_found("lora");
  Found found = read_found("decoder");
  const auto program = compile_exported("decoder", setting, found);
  const exported::Program archive = exported::read_program(fixture_path("decoder.pt2"));
  const auto last = adapters_of(expected, "last");
  std::vector<StepResult> results;
  double evaluation = 0;
  testing::run_ranks(setting.ranks, [&](comm::CommWorld& world) {
    Step step(program, &world);
    load_exported_weights(archive, step, !setting.lora.targets.empty());
    const at::Tensor base = step.gather("layers.0.q_proj.weight");
    step.load_state_dict(adapters_of(expected, "first"));
    const double loss = step.eval(rows_of(found.batches[0], world.rank(), setting.ranks));
    if (world.rank() == 0) evaluation = loss;
    train(step, found, setting, world.rank(), results);
    for (const auto& [name, values] : last) {
      const at::Tensor got = step.gather(name);
      if (world.rank() == 0)
        CHECK_MESSAGE((got - values).abs().max().item<float>() <= 2e-6 * values.abs().max().item<float>(), name);
    }
    const at::Tensor after = step.gather("layers.0.q_proj.weight");
    if (world.rank() == 0) CHECK(at::equal(base, after));
  });
  CHECK(std::abs(evaluation - expected.evaluation) <= 1e-6 * expected.evaluation);
  REQUIRE(results.size() == expected.steps.size());
  for (size_t k = 0; k < results.size(); ++k) {
    CHECK(std::abs(results[k].loss - expected.steps[k].loss) <= 1e-6 * expected.steps[k].loss);
    CHECK(std::abs(results[k].grad_norm - expected.steps[k].grad_norm) <= 1e-6 * expected.steps[k].grad_norm);
  }
}

TEST_CASE("adapters train as in PEFT, on any number of ranks") {
  for (const int64_t ranks : {1, 2, 4}) expect_peft_parity({.ranks = ranks});
  expect_peft_parity({.micro_batches = 2});
  expect_peft_parity({.ranks = 2, .micro_batches = 2, .remat = passes::RematMode::Full});
}

TEST_CASE("adapters alone have gradients, collectives of them and moments") {
  const Found found = read_found("decoder");
  const auto program = compile_exported("decoder", {.ranks = 2, .lora = kLora}, found);
  std::set<std::string> moments;
  for (const StoredTensor& t : program->tensors())
    if (t.source < 0 && t.name.ends_with(".exp_avg")) moments.insert(t.name.substr(0, t.name.size() - 8));
  std::set<std::string> adapters;
  for (const auto& [name, values] : adapters_of(read_found("lora"), "first")) adapters.insert(name);
  CHECK(moments == adapters);
  int64_t reduced = 0, expected = 0;
  const auto first = program->first();
  for (const auto& op : first->graph.ops())
    if (ir::is_collective(*op) && ir::collective_kind(*op) == "reduce_scatter")
      for (const ir::Value* operand : op->operands) reduced += operand->type().numel();
  for (const auto& t : program->state())
    if (adapters.contains(t.name)) expected += t.shape[0] * t.shape[1];
  CHECK(reduced >= expected);
  CHECK(reduced < 2 * expected);  // buckets are padded; the frozen weights are 5 times as many
}

TEST_CASE("adapters: what is refused") {
  const Found found = read_found("decoder");
  const auto refused = [&](const LoraOptions& lora, const char* with) {
    CHECK_THROWS_WITH_AS(compile_exported("decoder", {.lora = lora}, found), doctest::Contains(with), UserError);
  };
  refused({{"*.q_porj"}, 4, 8}, "matches no module with a weight of two dimensions");
  refused({{"*.q_proj"}, 0, 8}, "LoraOptions::rank = 0");
  refused({{"embed_tokens"}, 4, 8}, "matches embed_tokens, whose weight is read by aten.embedding");
  refused({{"embed_tokens", "*.q_proj"}, 4, 8}, "matches embed_tokens, whose weight is read by aten.embedding");
}

}  // namespace exported_job_torch_test
}  // namespace sfsdp::train
