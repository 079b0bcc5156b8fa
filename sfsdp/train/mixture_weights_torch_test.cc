// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3 and V2, Qwen3-MoE and Mixtral from Hugging Face folders equal transformers: logits, gradients, losses and norms of 20 steps, and what is written
// is what was read. Experts are tensors of their own there, and stacked here.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/fixture_torch.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_weights.h"

namespace sfsdp::train {
namespace mixture_weights_torch_test {

using testing::batch_of, testing::Fixture;

models::LanguageModel model_of(const Fixture& fixture) {
  return models::make_language_model(
      {fixture.config.model, "", {fixture.config.args.begin(), fixture.config.args.end()}});
}

// Which row of the checkpoint's tensor each of our rows is, as q and k have their own.
at::Tensor rows_there(const HfTensor& place, int64_t rows) {
  at::Tensor order = at::empty({rows}, at::kLong);
  for (int64_t r = 0; r < rows; ++r) order.mutable_data_ptr<int64_t>()[r] = source_row(place, rows, r);
  return order;
}

// A tensor of ours by its names in a checkpoint, in its order of rows.
std::map<std::string, at::Tensor> by_hf_name(const std::string& name, const at::Tensor& ours, const HfConfig& config) {
  const HfTensor place = *hf_tensor_of(config.model, name, config);
  std::map<std::string, at::Tensor> out;
  const std::vector<HfTensor> tensors = tensors_of(place);
  for (size_t i = 0; i < tensors.size(); ++i)
    out[tensors[i].hf_name] = place.slices > 0 ? ours[static_cast<int64_t>(i)] : ours;
  if (place.transform == HfTensor::PermuteHeads)
    out[place.hf_name] = ours.index_select(0, rows_there(place, ours.size(0)).argsort());
  return out;
}

std::vector<double> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.detach().to(at::kDouble).contiguous().view({-1});
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

at::Tensor formula(const std::string& hf_name, at::IntArrayRef shape) {
  return at::tensor(testing::fixture_weight(hf_name, c10::multiply_integers(shape))).view(shape);
}

bool is_in_files(const std::string& name) { return !name.ends_with("tokens_per_expert"); }

// A real module with the fixture's initial weights.
models::LanguageModel eager_model(const Fixture& fixture) {
  models::LanguageModel model = model_of(fixture);
  const at::NoGradGuard no_grad;
  const auto fill = [&](const std::string& name, at::Tensor value) {
    if (!is_in_files(name)) return;
    const HfTensor place = *hf_tensor_of(fixture.config.model, name, fixture.config);
    if (place.transform == HfTensor::PermuteHeads)
      value.copy_(formula(place.hf_name, value.sizes()).index_select(0, rows_there(place, value.size(0))));
    else
      for (auto& [hf_name, part] : by_hf_name(name, value, fixture.config)) part.copy_(formula(hf_name, part.sizes()));
  };
  for (const auto& p : model.module->named_parameters()) fill(p.key(), p.value());
  for (const auto& b : model.module->named_buffers()) fill(b.key(), b.value());
  return model;
}

std::map<std::string, at::Tensor> initial_weights(const Fixture& fixture) {
  const models::LanguageModel model = eager_model(fixture);
  std::map<std::string, at::Tensor> all;
  for (const auto& p : model.module->named_parameters())
    all.merge(by_hf_name(p.key(), p.value().detach(), fixture.config));
  for (const auto& b : model.module->named_buffers())
    if (is_in_files(b.key())) all.merge(by_hf_name(b.key(), b.value(), fixture.config));
  return all;
}

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kFloat8_e4m3fn) return "F8_E4M3";
  if (dtype == at::kBFloat16) return "BF16";
  SFSDP_CHECK(dtype == at::kFloat, dtype);
  return "F32";
}

std::string safetensors(const std::map<std::string, at::Tensor>& tensors) {
  std::string header, data;
  for (const auto& [name, value] : tensors) {
    const at::Tensor packed = value.contiguous();
    const size_t begin = data.size();
    data.append(static_cast<const char*>(packed.const_data_ptr()), packed.nbytes());
    std::vector<std::string> sizes;
    for (const int64_t size : packed.sizes()) sizes.push_back(std::to_string(size));
    header += concat(header.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", dtype_name(packed.scalar_type()),
                     "\",\"shape\":[", join(sizes, ","), "],\"data_offsets\":[", begin, ",", data.size(), "]}");
  }
  header += "}";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Run {
  DeviceMesh mesh;
  int64_t micro_batches = 1;
  DataParallelOptions options = {};
  TensorParallel tensor = {};
};

std::shared_ptr<Program> program_of(const Fixture& fixture, const Run& run, bool keep_gradients) {
  models::LanguageModel model;
  capture::run_meta_init([&] {
    model = model_of(fixture);
    return model.module;
  });
  const testing::FixtureTraining& t = fixture.training;
  AdamW adamw{t.lr, t.beta1, t.beta2, t.eps, t.weight_decay};
  CompileOptions options;
  options.micro_batches = run.micro_batches;
  options.max_norm = t.max_norm;
  if (keep_gradients) {  // with beta1 = 0 the first moment after step 1 is the gradient
    adamw.beta1 = 0;
    options.max_norm = 0;
  }
  const Strategy strategy = data_parallel(run.mesh, run.options, run.tensor);
  const int64_t rows = t.global_batch_size / strategy.data_ranks() / run.micro_batches;
  return std::make_shared<Program>(
      model.module,
      [forward = model.forward](const Batch& b) -> LossValue {
        return {models::cross_entropy(forward(b[0], {}), b[1]), {}};
      },
      adamw, batch_of(fixture, 1, 0, rows), strategy, options);
}

std::vector<Batch> batches_of(const Fixture& fixture, const Run& run, int64_t step, int64_t rank) {
  const Strategy strategy = data_parallel(run.mesh, run.options, run.tensor);
  const int64_t ranks = strategy.data_ranks(), place = run.mesh.group_rank(rank, strategy.data_axes());
  const int64_t rows = fixture.training.global_batch_size / ranks / run.micro_batches;
  std::vector<Batch> out;
  for (int64_t m = 0; m < run.micro_batches; ++m)
    out.push_back(batch_of(fixture, step, (m * ranks + place) * rows, rows));
  return out;
}

void expect_equals_transformers(const Fixture& fixture, const std::string& folder, const Run& run) {
  CAPTURE(to_string(run.mesh));
  const auto checkpoint = SafetensorsCheckpoint::open(folder);
  std::mutex mutex;  // doctest's checks are made by one thread at a time
  const auto expect_near = [&](Step& step, const std::string& suffix, const auto& expected, double of_norm,
                               double most) {
    std::set<std::string> compared;
    for (const StoredTensor& t : step.program().tensors()) {
      if (t.source < 0 || step.program().state()[static_cast<size_t>(t.source)].is_buffer) continue;
      for (const auto& [name, got] : by_hf_name(t.name, step.gather(t.name + suffix), fixture.config)) {
        const std::lock_guard lock(mutex);
        CAPTURE(name);
        compared.insert(name);
        const testing::Fingerprint& want = expected.at(name);
        const double error =
            testing::difference(testing::fingerprint(name, numbers(got)), want) * std::max(want.norm, 1e-12);
        CHECK(error <= of_norm * want.norm + most * std::sqrt(static_cast<double>(got.numel())));
      }
    }
    const std::lock_guard lock(mutex);
    CHECK(compared.size() == expected.size());
  };
  const auto with_gradients = program_of(fixture, run, true);
  testing::run_ranks(static_cast<int>(run.mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(with_gradients, &world);
    load_hf_weights(step, checkpoint, fixture.config);
    step(batches_of(fixture, run, 1, world.rank()));
    expect_near(step, ".exp_avg", fixture.gradients, std::max(1e-6, 2 * fixture.float32_error), 0);
  });
  const auto trained = program_of(fixture, run, false);
  testing::run_ranks(static_cast<int>(run.mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(trained, &world);
    load_hf_weights(step, checkpoint, fixture.config);
    for (size_t k = 0; k < fixture.steps.size(); ++k) {
      step.lr = fixture.steps[k].lr;
      const StepResult got = step(batches_of(fixture, run, static_cast<int64_t>(k) + 1, world.rank()));
      const std::lock_guard lock(mutex);
      CAPTURE(k);
      CHECK(std::abs(got.loss - fixture.steps[k].loss) <= 1e-6 * fixture.steps[k].loss);
      CHECK(std::abs(got.grad_norm - fixture.steps[k].grad_norm) <= 5e-6 * fixture.steps[k].grad_norm);
    }
    expect_near(step, "", fixture.weights, 0, 1e-5);
  });
}

constexpr const char* kFixtures[] = {"deepseek_v3", "deepseek_v3_plain",     "deepseek_v2", "deepseek_v2_lite",
                                     "qwen3_moe",   "qwen3_moe_every_other", "mixtral"};

TEST_CASE("mixtures of experts: logits are transformers'") {
  for (const char* name : kFixtures) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const at::NoGradGuard no_grad;
    const at::Tensor logits =
        eager_model(fixture).forward(batch_of(fixture, 1, 0, fixture.training.global_batch_size)[0], {});
    CHECK(testing::difference(testing::fingerprint("logits", numbers(logits)), fixture.logits) <= 2e-6);
  }
}

TEST_CASE(
    "mixtures of experts from Hugging Face folders train as transformers does, on 1, 2 and 4 ranks, and over ep") {
  for (const char* name : kFixtures) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_shard", 1}})});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_shard", 2}}), 2});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}})});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"ep", 2}})});
  }
}

const std::vector<TensorParallelRule> kRules = {
    {"*.wq|wq_b|wkv_b", Shard(0)}, {"*.wo", Shard(1)}, {"*.experts.w1|w3", Shard(1)},      {"*.experts.w2", Shard(2)},
    {"*.w1|w3", Shard(0)},         {"*.w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}};

// Weights of DeepSeek's, of which tp cuts heads, every expert's width and the vocabulary.
TEST_CASE("DeepSeek-V2 from Hugging Face folders trains as transformers does over tp, and over ep and tp") {
  const TensorParallel cut = tensor_parallel(kRules);
  for (const char* name : {"deepseek_v2", "deepseek_v2_lite"}) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"tp", 2}}), 1, {}, cut});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"ep", 2}, {"tp", 2}}), 1, {}, cut});
  }
}

void expect_written_as_read(const Fixture& fixture, const Run& run) {
  CAPTURE(to_string(run.mesh));
  const auto weights = initial_weights(fixture);
  const testing::TemporaryFolder folder;
  write(folder / "model.safetensors", safetensors(weights));
  const auto program = program_of(fixture, run, false);
  const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
  const std::string out = folder / "out";
  testing::run_ranks(static_cast<int>(run.mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(program, &world);
    load_hf_weights(step, checkpoint, fixture.config);
    export_hf_folder(step, &world, fixture.config, out, {.max_file_bytes = 20000});
  });
  const auto written = SafetensorsCheckpoint::open(out);
  CHECK(written.names().size() == weights.size());
  for (const auto& [name, value] : weights) {
    CAPTURE(name);
    const TensorView& view = written.at(name);
    CHECK(at::IntArrayRef(view.shape) == value.sizes());
    const at::Tensor got = at::empty_like(value, at::MemoryFormat::Contiguous);
    view.read(0, {static_cast<std::byte*>(got.mutable_data_ptr()), static_cast<size_t>(got.nbytes())});
    CHECK(at::equal(got, value));
  }
  const HfConfig again = read_hf_config(out);
  CHECK((again.args == fixture.config.args));
  CHECK(again.architecture == fixture.config.architecture);
}

TEST_CASE("mixtures of experts are written as they were read, an expert a tensor, by several ranks in several files") {
  for (const char* name : kFixtures) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    for (const ParameterLayout layout : {ParameterLayout::Flat, ParameterLayout::Dim0})
      expect_written_as_read(fixture, {init_device_mesh({{"dp_shard", 3}}), 1, {.layout = layout}});
  }
}

TEST_CASE("DeepSeek-V2 is written as it was read over ep and over tp") {
  const TensorParallel cut = tensor_parallel(kRules);
  for (const char* name : {"deepseek_v2", "deepseek_v2_lite"}) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    expect_written_as_read(fixture, {init_device_mesh({{"ep", 2}})});
    expect_written_as_read(fixture, {init_device_mesh({{"tp", 2}}), 1, {}, cut});
    expect_written_as_read(fixture, {init_device_mesh({{"dp_shard", 2}, {"ep", 2}, {"tp", 2}}), 1, {}, cut});
  }
}

TEST_CASE("biases of experts that a DeepSeek-V2's folder has not are refused by name") {
  const Fixture fixture = testing::read_fixture("deepseek_v2_lite");
  const testing::TemporaryFolder folder;
  write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
  Fixture biased = fixture;
  biased.config.args["expert_bias"] = true;
  Step step(program_of(biased, {init_device_mesh({{"dp_shard", 1}})}, false), nullptr);
  CHECK_THROWS_WITH_AS(load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config),
                       doctest::Contains("a DeepseekV2ForCausalLM by its config.json has no layers.1.moe.expert_bias"),
                       UserError);
}

TEST_CASE("float8 and exponents of two are what LibTorch reads in their 256 patterns of bits") {
  at::Tensor bits = at::arange(256, at::kByte);
  const at::Tensor e4m3 = bits.view(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor e8m0 = bits.view(at::kFloat8_e8m0fnu).to(at::kFloat);
  for (int64_t i = 0; i < 256; ++i) {
    CAPTURE(i);
    const auto x = static_cast<uint8_t>(i);
    const float number = e4m3[i].item<float>(), scale = e8m0[i].item<float>();
    CHECK(std::isnan(from_f8e4m3(x)) == std::isnan(number));
    if (!std::isnan(number)) CHECK(std::bit_cast<uint32_t>(from_f8e4m3(x)) == std::bit_cast<uint32_t>(number));
    CHECK(std::isnan(from_f8e8m0(x)) == std::isnan(scale));
    if (!std::isnan(scale)) CHECK(from_f8e8m0(x) == scale);
  }
}

constexpr int64_t kBlockRows = 8, kBlockColumns = 12;

struct Float8Folder {
  std::map<std::string, at::Tensor> stored, numbers;  // by name; what the files hold, and what they stand for
};

// Matrices of the layers as DeepSeek-V3's own folder has them; all else stays as it is. LibTorch quantises, and reads.
Float8Folder in_float8(const std::map<std::string, at::Tensor>& weights, at::ScalarType scales) {
  Float8Folder out;
  for (const auto& [name, value] : weights) {
    out.stored[name] = out.numbers[name] = value;
    if (value.dim() != 2 || !name.starts_with("model.layers.") || name.ends_with("mlp.gate.weight")) continue;
    const int64_t rows = (value.size(0) + kBlockRows - 1) / kBlockRows;
    const int64_t columns = (value.size(1) + kBlockColumns - 1) / kBlockColumns;
    const at::Tensor scale =
        (at::arange(rows * columns).view({rows, columns}).to(at::kFloat) * 0.37 + 1).div(1000).to(scales);
    const at::Tensor each = scale.to(at::kFloat)
                                .repeat_interleave(kBlockRows, 0)
                                .repeat_interleave(kBlockColumns, 1)
                                .narrow(0, 0, value.size(0))
                                .narrow(1, 0, value.size(1));
    out.stored[name] = (value / each).clamp(-448, 448).to(at::kFloat8_e4m3fn);
    out.stored[name + "_scale_inv"] = scale;
    out.numbers[name] = out.stored[name].to(at::kFloat) * each;
  }
  return out;
}

TEST_CASE("DeepSeek-V3 in float8 with a scale a block fills any mesh with the numbers that LibTorch makes of it") {
  Fixture fixture = testing::read_fixture("deepseek_v3");
  fixture.config.weight_block = {kBlockRows, kBlockColumns};
  const TensorParallel cut = tensor_parallel(kRules);
  const Run runs[] = {{init_device_mesh({{"dp_shard", 1}})},
                      {init_device_mesh({{"dp_shard", 3}}), 1, {.layout = ParameterLayout::Dim0}},
                      {init_device_mesh({{"dp_shard", 4}})},
                      {init_device_mesh({{"tp", 2}}), 1, {}, cut},
                      {init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), 1, {}, cut},
                      {init_device_mesh({{"dp_shard", 2}, {"ep", 2}})}};
  for (const at::ScalarType scales : {at::kFloat, at::kBFloat16}) {
    const Float8Folder weights = in_float8(initial_weights(fixture), scales);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(weights.stored));
    const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
    for (const Run& run : runs) {
      CAPTURE(to_string(run.mesh));
      const auto program = program_of(fixture, run, false);
      std::mutex mutex;
      testing::run_ranks(static_cast<int>(run.mesh.world_size()), [&](comm::CommWorld& world) {
        Step step(program, &world);
        load_hf_weights(step, checkpoint, fixture.config);
        size_t compared = 0;
        for (const StoredTensor& t : step.program().tensors()) {
          if (t.source < 0 || !is_in_files(t.name)) continue;
          for (const auto& [name, got] : by_hf_name(t.name, step.gather(t.name), fixture.config)) {
            const std::lock_guard lock(mutex);
            CAPTURE(name);
            CHECK(at::equal(got, weights.numbers.at(name)));
            ++compared;
          }
        }
        const std::lock_guard lock(mutex);
        CHECK(compared == weights.numbers.size());
      });
    }
  }
}

TEST_CASE("DeepSeek-V3 in float8: a missing scale, a scale too many and a number that is none are told by name") {
  Fixture fixture = testing::read_fixture("deepseek_v3");
  const Float8Folder weights = in_float8(initial_weights(fixture), at::kFloat);
  const std::string expert = "model.layers.2.mlp.experts.5.down_proj.weight", scale = expert + "_scale_inv";
  const auto refusal = [&](const std::map<std::string, at::Tensor>& stored) {
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(stored));
    Step step(program_of(fixture, {init_device_mesh({{"dp_shard", 1}})}, false), nullptr);
    try {
      load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal(weights.stored).find("expected F16, BF16, F32 or F64") !=
        std::string::npos);  // no blocks in the config
  fixture.config.weight_block = {kBlockRows, kBlockColumns};
  CHECK(refusal(weights.stored).empty());
  auto stored = weights.stored;
  stored.erase(scale);
  CHECK(refusal(stored).find("tensor " + expert + " has dtype F8_E4M3 and no scales") != std::string::npos);
  stored = weights.stored;
  stored[expert] = weights.numbers.at(expert);
  CHECK(refusal(stored).find("1 tensor that the model of config.json has not: \"" + scale + "\"") != std::string::npos);
  stored = weights.stored;
  stored[expert] =
      stored[expert].view(at::kByte).clone().index_fill(1, at::tensor({3}, at::kLong), 0x7f).view(at::kFloat8_e4m3fn);
  CHECK(refusal(stored).find(concat("tensor ", expert,
                                    " holds infinite values or no numbers, the first of them element 3",
                                    " of layers.2.moe.experts.w2")) != std::string::npos);
}

}  // namespace mixture_weights_torch_test
}  // namespace sfsdp::train
