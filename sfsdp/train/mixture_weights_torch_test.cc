// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3 from a Hugging Face folder equals transformers: logits, gradients, losses and norms of 20 steps, and what is written
// is what was read. Experts are tensors of their own there, and stacked here.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "sfsdp/base/check.h"
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
namespace {

using testing::batch_of, testing::Fixture;

models::LanguageModel model_of(const Fixture& fixture) {
  return models::make_language_model(
      {fixture.config.model, "", {fixture.config.args.begin(), fixture.config.args.end()}});
}

// A tensor of ours by its names in a checkpoint.
std::map<std::string, at::Tensor> by_hf_name(const std::string& name, const at::Tensor& ours, const HfConfig& config) {
  const HfTensor place = *hf_tensor_of(config.model, name, config);
  std::map<std::string, at::Tensor> out;
  const std::vector<HfTensor> tensors = tensors_of(place);
  for (size_t i = 0; i < tensors.size(); ++i)
    out[tensors[i].hf_name] = place.slices > 0 ? ours[static_cast<int64_t>(i)] : ours;
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

// f32 alone.
std::string safetensors(const std::map<std::string, at::Tensor>& tensors) {
  std::string header, data;
  for (const auto& [name, value] : tensors) {
    const at::Tensor packed = value.contiguous();
    const size_t begin = data.size();
    data.append(static_cast<const char*>(packed.const_data_ptr()), packed.nbytes());
    std::vector<std::string> sizes;
    for (const int64_t size : packed.sizes()) sizes.push_back(std::to_string(size));
    header += concat(header.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", join(sizes, ","),
                     "],\"data_offsets\":[", begin, ",", data.size(), "]}");
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
  const int64_t rows = t.global_batch_size / run.mesh.world_size() / run.micro_batches;
  return std::make_shared<Program>(
      model.module,
      [forward = model.forward](const Batch& b) -> LossValue {
        return {models::cross_entropy(forward(b[0], {}), b[1]), {}};
      },
      adamw, batch_of(fixture, 1, 0, rows), data_parallel(run.mesh, run.options), options);
}

std::vector<Batch> batches_of(const Fixture& fixture, const Run& run, int64_t step, int64_t rank) {
  const int64_t ranks = run.mesh.world_size(), rows = fixture.training.global_batch_size / ranks / run.micro_batches;
  std::vector<Batch> out;
  for (int64_t m = 0; m < run.micro_batches; ++m)
    out.push_back(batch_of(fixture, step, (m * ranks + rank) * rows, rows));
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

constexpr const char* kFixtures[] = {"deepseek_v3", "deepseek_v3_plain"};

TEST_CASE("DeepSeek-V3's logits are transformers'") {
  for (const char* name : kFixtures) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const at::NoGradGuard no_grad;
    const at::Tensor logits =
        eager_model(fixture).forward(batch_of(fixture, 1, 0, fixture.training.global_batch_size)[0], {});
    CHECK(testing::difference(testing::fingerprint("logits", numbers(logits)), fixture.logits) <= 2e-6);
  }
}

TEST_CASE("DeepSeek-V3 from a Hugging Face folder trains as transformers does, on 1, 2 and 4 ranks") {
  for (const char* name : kFixtures) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_shard", 1}})});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_shard", 2}}), 2});
    expect_equals_transformers(fixture, folder.path(), {init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}})});
  }
}

TEST_CASE("DeepSeek-V3 is written as it was read, an expert a tensor, by several ranks in several files") {
  const Fixture fixture = testing::read_fixture("deepseek_v3");
  const auto weights = initial_weights(fixture);
  for (const ParameterLayout layout : {ParameterLayout::Flat, ParameterLayout::Dim0}) {
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(weights));
    const auto program = program_of(fixture, {init_device_mesh({{"dp_shard", 3}}), 1, {.layout = layout}}, false);
    const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
    const std::string out = folder / "out";
    testing::run_ranks(3, [&](comm::CommWorld& world) {
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
  }
}

}  // namespace
}  // namespace sfsdp::train
