// SPDX-License-Identifier: BSD-3-Clause
// Training from a Hugging Face folder equals PyTorch: the numbers in tests/fixtures, on every form of data parallelism.
#include "sfsdp/train/weights/hf_weights.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/fixture_torch.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/testing/tensor_bytes.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_parameters.h"

namespace sfsdp::train {
namespace hf_weights_test {

using testing::batch_of, testing::Fixture;

struct Model {
  models::LanguageModel model;
  std::shared_ptr<Program> program;
};

Model make_model(const Fixture& fixture, const Strategy& strategy, int64_t micro_batches, bool keep_gradients) {
  Model out;
  models::ModelSpec spec{fixture.config.model, "", {fixture.config.args.begin(), fixture.config.args.end()}};
  capture::run_meta_init([&] {
    out.model = models::make_language_model(spec);
    return out.model.module;
  });
  const auto& t = fixture.training;
  AdamW adamw{t.lr, t.beta1, t.beta2, t.eps, t.weight_decay};
  CompileOptions options;
  options.micro_batches = micro_batches;
  options.max_norm = t.max_norm;
  if (keep_gradients) {  // with beta1 = 0 the first moment after step 1 is the gradient
    adamw.beta1 = 0;
    options.max_norm = 0;
  }
  auto forward = out.model.forward;
  const int64_t rows = t.global_batch_size / strategy.data_ranks() / micro_batches;
  out.program = std::make_shared<Program>(
      out.model.module,
      [forward](const Batch& b) -> LossValue {
        return {models::cross_entropy(forward(b[0], {}), b[1]), {}};
      },
      adamw, batch_of(fixture, 1, 0, rows), strategy, options);
  return out;
}

// A whole tensor of ours as the checkpoint has it.
at::Tensor to_hf_layout(const at::Tensor& ours, const HfTensor& place) {
  if (place.transform == HfTensor::Transpose) return ours.t().contiguous();
  if (place.transform == HfTensor::None) return ours;
  at::Tensor out = at::empty_like(ours);
  for (int64_t r = 0; r < ours.size(0); ++r) out[source_row(place, ours.size(0), r)].copy_(ours[r]);
  return out;
}

std::vector<double> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.to(at::kDouble).contiguous().view({-1});
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

template <class T>
void append(std::string& to, const std::vector<T>& values) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string dims(at::IntArrayRef sizes) {
  std::vector<std::string> parts;
  for (const int64_t size : sizes) parts.push_back(std::to_string(size));
  return join(parts, ",");
}

std::string safetensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::string header, data;
  for (const auto& [name, value] : tensors) {
    const size_t begin = data.size();
    const at::Tensor packed = value.contiguous();
    data.append(static_cast<const char*>(packed.const_data_ptr()), packed.nbytes());
    header += concat(header.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"",
                     safetensors_name(capture::dtype_of(packed.scalar_type())), "\",\"shape\":[", dims(packed.sizes()),
                     "],\"data_offsets\":[", begin, ",", data.size(), "]}");
  }
  header += "}";
  std::string file;
  append(file, std::vector<uint64_t>{header.size()});
  return file + header + data;
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The fixture's initial weights by Hugging Face name.
std::vector<std::pair<std::string, at::Tensor>> initial_weights(const Fixture& fixture) {
  const Model whole = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const StoredTensor& t : whole.program->tensors()) {
    if (t.source < 0) continue;
    const HfTensor place = *hf_tensor_of(fixture.config.model, t.name, fixture.config);
    std::vector<int64_t> shape = t.global_shape;
    if (place.transform == HfTensor::Transpose) std::reverse(shape.begin(), shape.end());
    const auto values = testing::fixture_weight(place.hf_name, c10::multiply_integers(shape));
    tensors.emplace_back(place.hf_name, at::tensor(values).view(shape));
  }
  return tensors;
}

struct Tolerance {
  double loss = 1e-6, grad_norm = 5e-6;  // relative
  double gradient = 1e-6;                // of each tensor's norm; or twice the error of PyTorch's own float32
  double weight = 1e-5;                  // absolute, per element
};

// The true gradient of a key bias is 0: Adam makes steps of up to lr out of its rounding error.
double weight_tolerance(const Fixture& fixture, const std::string& hf_name, double per_element) {
  return hf_name.ends_with("attn.c_attn.bias") ? 20 * fixture.training.lr / std::sqrt(3.0) : per_element;
}

void expect_equals_pytorch(const Fixture& fixture, const std::string& folder, DeviceMesh mesh,
                           DataParallelOptions options, int64_t micro_batches, Tolerance tolerance) {
  CAPTURE(to_string(mesh));
  const Strategy strategy = data_parallel(mesh, options);
  const auto ranks = static_cast<int>(mesh.world_size());
  const int64_t rows = fixture.training.global_batch_size / ranks / micro_batches;
  const auto checkpoint = SafetensorsCheckpoint::open(folder);
  const auto batches = [&](int64_t k, int rank) {
    std::vector<Batch> out;
    for (int64_t m = 0; m < micro_batches; ++m) out.push_back(batch_of(fixture, k, (m * ranks + rank) * rows, rows));
    return out;
  };
  std::mutex mutex;  // doctest's checks are made by one thread at a time
  const auto expect_near = [&](Step& step, const std::string& suffix, const auto& expected, double of_norm,
                               double per_element) {
    for (const StoredTensor& t : step.program().tensors()) {
      if (t.source < 0) continue;
      const HfTensor place = *hf_tensor_of(fixture.config.model, t.name, fixture.config);
      const at::Tensor whole = to_hf_layout(step.gather(t.name + suffix), place);
      const std::lock_guard lock(mutex);
      CAPTURE(place.hf_name);
      const testing::Fingerprint& want = expected.at(place.hf_name);
      const double of_element = weight_tolerance(fixture, place.hf_name, per_element);
      const double root = std::sqrt(static_cast<double>(whole.numel()));
      const testing::Fingerprint got = testing::fingerprint(place.hf_name, numbers(whole));
      CHECK(testing::difference(got, want) * want.norm <= of_norm * want.norm + of_element * root);
    }
  };

  const Model gradients = make_model(fixture, strategy, micro_batches, true);
  testing::run_ranks(ranks, [&](comm::CommWorld& world) {
    Step step(gradients.program, &world);
    load_hf_weights(step, checkpoint, fixture.config);
    step(batches(1, world.rank()));
    expect_near(step, ".exp_avg", fixture.gradients, std::max(tolerance.gradient, 2 * fixture.float32_error), 0);
  });

  const Model trained = make_model(fixture, strategy, micro_batches, false);
  testing::run_ranks(ranks, [&](comm::CommWorld& world) {
    Step step(trained.program, &world);
    load_hf_weights(step, checkpoint, fixture.config);
    for (size_t k = 0; k < fixture.steps.size(); ++k) {
      const testing::FixtureStep& expected = fixture.steps[k];
      step.lr = expected.lr;
      const StepResult got = step(batches(static_cast<int64_t>(k) + 1, world.rank()));
      const std::lock_guard lock(mutex);
      CAPTURE(k);
      CHECK(got.loss == doctest::Approx(expected.loss).epsilon(tolerance.loss));
      CHECK(got.grad_norm == doctest::Approx(expected.grad_norm).epsilon(tolerance.grad_norm));
    }
    if (!fixture.weights.empty()) expect_near(step, "", fixture.weights, 0, tolerance.weight);
  });
}

void expect_all_forms_equal_pytorch(const std::string& name) {
  const Fixture fixture = testing::read_fixture(name);
  const testing::TemporaryFolder folder;
  write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
  const auto expect = [&](DeviceMesh mesh, DataParallelOptions options, int64_t micro_batches = 1) {
    expect_equals_pytorch(fixture, folder.path(), std::move(mesh), options, micro_batches, {});
  };
  expect(init_device_mesh({{"dp_shard", 1}}), {});
  expect(init_device_mesh({{"dp_shard", 2}}), {});
  expect(init_device_mesh({{"dp_shard", 2}}), {}, 2);
  expect(init_device_mesh({{"dp_shard", 4}}), {});
  expect(init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate});
  expect(init_device_mesh({{"dp_replicate", 4}}), {.mode = DataParallelMode::Replicate});
  expect(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.mode = DataParallelMode::HybridShard});
}

std::string config_json(const std::string& fixture) {
  const std::string text = read_text_file(testing::fixture_path(fixture + ".json"), 1 << 20);
  const size_t begin = text.find('{', text.find("\"config\""));
  size_t end = begin;
  int depth = 0;
  do {
    depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
  } while (++end < text.size() && depth > 0);
  return text.substr(begin, end - begin);
}

// Runs the sfsdp beside this test; returns its exit status.
int run_sfsdp(const std::string& arguments) {
  const auto binary = std::filesystem::canonical("/proc/self/exe").parent_path() / "sfsdp";
  const int status = std::system(concat("'", binary.string(), "' ", arguments, " >/dev/null").c_str());
  return WEXITSTATUS(status);
}

// Losses and norms of metrics.jsonl against the fixture's, to what independent implementations agree to.
void expect_metrics_equal(const Fixture& fixture, const std::string& path) {
  std::ifstream file(path);
  std::string line;
  size_t k = 0;
  for (; std::getline(file, line); ++k) {
    REQUIRE(k < fixture.steps.size());
    CAPTURE(line);
    const JsonValue metrics = parse_json(line, path);
    const auto number = [&](const char* key) { return testing::fixture_detail::number(metrics, key); };
    CHECK(number("step") == static_cast<double>(k + 1));
    CHECK(number("loss") == doctest::Approx(fixture.steps[k].loss).epsilon(1e-5));
    CHECK(number("grad_norm") == doctest::Approx(fixture.steps[k].grad_norm).epsilon(5e-5));
    CHECK(number("lr") == doctest::Approx(fixture.steps[k].lr).epsilon(1e-12));
    CHECK(number("tokens") == static_cast<double>((k + 1) * 4 * 16));
    for (const char* key : {"step_time_s", "tps", "memory_gib"}) CHECK(number(key) > 0);
  }
  CHECK(k == fixture.steps.size());
}

// Every tensor, and no other, has the bits that LibTorch's conversion gives.
void expect_checkpoint_equals(const SafetensorsCheckpoint& checkpoint,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors, c10::ScalarType dtype) {
  CHECK(checkpoint.names().size() == tensors.size());
  for (const auto& [name, value] : tensors) {
    CAPTURE(name);
    const TensorView& view = checkpoint.at(name);
    CHECK(at::IntArrayRef(view.shape) == value.sizes());
    const at::Tensor want = value.to(dtype).contiguous();
    REQUIRE(view.bytes == want.nbytes());
    CHECK(std::memcmp(testing::bytes_of(view).data(), want.const_data_ptr(), want.nbytes()) == 0);
  }
}

// What the run has exported after its last step is what PyTorch's training came to.
void expect_trained_folder(const Fixture& fixture, const std::string& folder) {
  CHECK(read_hf_config(folder).architecture == fixture.config.architecture);
  const auto checkpoint = SafetensorsCheckpoint::open(folder);
  CHECK(checkpoint.names().size() == fixture.weights.size());
  for (const auto& [name, want] : fixture.weights) {
    CAPTURE(name);
    const TensorView& view = checkpoint.at(name);
    std::vector<float> values(view.bytes / sizeof(float));
    view.read(0, std::as_writable_bytes(std::span(values)));
    const auto got = testing::fingerprint(name, {values.begin(), values.end()});
    const double root = std::sqrt(static_cast<double>(values.size()));
    CHECK(testing::difference(got, want) * want.norm <= weight_tolerance(fixture, name, 1e-5) * root);
  }
}

TEST_CASE("hf_weights: sfsdp train on a Hugging Face folder equals PyTorch, whatever the ranks") {
  for (const std::string name : {"llama", "llama_tied", "gpt2", "gpt2_untied", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const auto& t = fixture.training;
    const testing::TemporaryFolder folder;
    write(folder / "config.json", config_json(name));
    // Sharded, as large checkpoints are: every other tensor in a second file.
    std::vector<std::pair<std::string, at::Tensor>> files[2];
    std::string map;
    size_t bytes = 0, next = 0;
    for (auto& tensor : initial_weights(fixture)) {
      map += concat(map.empty() ? "" : ",", "\"", tensor.first, "\":\"", next, ".safetensors\"");
      bytes += tensor.second.nbytes();
      files[next].push_back(std::move(tensor));
      next = 1 - next;
    }
    for (size_t i : {0, 1}) write(folder / concat(i, ".safetensors"), safetensors(files[i]));
    write(folder / "model.safetensors.index.json",
          concat("{\"metadata\":{\"total_size\":", bytes, "},\"weight_map\":{", map, "}}"));

    const std::string train =
        concat("train --model.name hf --model.hf_assets_path ", folder.path(), " --checkpoint.initial_load_path ",
               folder.path(), " --checkpoint.initial_load_in_hf --training.dataset tokens --training.dataset_path ",
               testing::fixture_path("tokens.bin"), " --training.token_dtype uint16 --training.seq_len ", t.seq_len,
               " --training.global_batch_size ", t.global_batch_size, " --training.steps ", fixture.steps.size(),
               " --training.max_norm ", t.max_norm, " --training.mixed_precision_param float32 --optimizer.lr ", t.lr,
               " --optimizer.beta1 ", t.beta1, " --optimizer.beta2 ", t.beta2, " --optimizer.eps ", t.eps,
               " --optimizer.weight_decay ", t.weight_decay, " --lr_scheduler.warmup_steps ", t.warmup_steps,
               " --lr_scheduler.decay_ratio 0 --checkpoint.enable --checkpoint.last_save_in_hf ");
    const auto expect = [&](int ranks, int64_t local_batch, const std::string& flags) {
      CAPTURE(ranks);
      CAPTURE(flags);
      const std::string out = folder / "out";
      const std::string command =
          concat(train, "--job.dump_folder ", out, " --training.local_batch_size ", local_batch, " ", flags);
      REQUIRE(run_sfsdp(ranks == 1 ? command : concat("launch -n ", ranks, " -- ", command)) == 0);
      expect_metrics_equal(fixture, out + "/metrics.jsonl");
      expect_trained_folder(fixture, concat(out, "/checkpoint/hf-step-", fixture.steps.size()));
      std::filesystem::remove_all(out);
    };
    expect(1, 4, "");
    if (name == "llama") {  // the forms themselves are compared on threads
      expect(1, 1, "");     // four micro-batches
      expect(2, 2, "");
      expect(2, 1, "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 1");
      expect(4, 1, "--parallelism.data_parallel_replicate_degree 2");
    }
  }
}

TEST_CASE("hf_weights: rows are converted, old names are found, a tensor of no parameter is refused by name") {
  const Fixture fixture = testing::read_fixture("gpt2");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const testing::TemporaryFolder folder;
  auto tensors = initial_weights(fixture);
  for (auto& [name, value] : tensors) {
    name = name.substr(std::string("transformer.").size());
    value = value.to(at::kBFloat16);
  }
  tensors.emplace_back("h.0.attn.bias", at::ones({1, 1, 4, 4}));  // a constant: the causal mask
  write(folder / "model.safetensors", safetensors(tensors));
  Step step(model.program, nullptr);
  load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config);
  for (const auto& [name, value] : tensors)
    if (name == "h.1.mlp.c_fc.weight") CHECK(at::equal(step.gather(name), value.to(at::kFloat).t()));

  tensors.emplace_back("h.7.ln_1.weight", at::ones({32}));  // of a layer that config.json does not count
  write(folder / "model.safetensors", safetensors(tensors));
  CHECK_THROWS_WITH_AS(load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config),
                       doctest::Contains(": 1 tensor that the model of config.json has not: \"h.7.ln_1.weight\""),
                       UserError);
}

TEST_CASE("hf_weights: a missing tensor, and a wrong shape are errors that name the tensor") {
  const Fixture fixture = testing::read_fixture("llama");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const auto load = [&](const std::function<void(std::pair<std::string, at::Tensor>&)>& change) {
    const testing::TemporaryFolder folder;
    auto tensors = initial_weights(fixture);
    for (auto& tensor : tensors)
      if (tensor.first == "model.layers.1.mlp.down_proj.weight") change(tensor);
    write(folder / "model.safetensors", safetensors(tensors));
    Step step(model.program, nullptr);
    load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config);
  };
  CHECK_THROWS_WITH_AS(load([](auto& t) { t.first = "other"; }),
                       doctest::Contains("model.layers.1.mlp.down_proj.weight"), UserError);
  CHECK_THROWS_WITH_AS(load([](auto& t) { t.second = t.second.t(); }),
                       doctest::Contains("down_proj.weight has shape [96, 64]\n  expected [64, 96]"), UserError);
  CHECK_NOTHROW(load([](auto& t) { t.second = t.second.to(at::kDouble); }));
  CHECK_NOTHROW(load([](auto& t) { t.second = t.second.to(at::kHalf); }));
}

TEST_CASE("hf_weights: weights that are no floating point numbers are refused, not cast") {
  const Fixture fixture = testing::read_fixture("llama");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const auto tensors = initial_weights(fixture);
  const std::pair<at::ScalarType, const char*> refused[] = {{at::kInt, "I32"},   {at::kLong, "I64"},
                                                            {at::kChar, "I8"},   {at::kByte, "U8"},
                                                            {at::kBool, "BOOL"}, {at::kFloat8_e4m3fn, "F8_E4M3"}};
  for (const auto& [dtype, name] : refused) {
    CAPTURE(name);
    const testing::TemporaryFolder folder;
    auto changed = tensors;
    for (auto& [tensor, value] : changed)
      if (tensor == "model.norm.weight") value = value.to(dtype);
    write(folder / "model.safetensors", safetensors(changed));
    Step step(model.program, nullptr);
    CHECK_THROWS_WITH_AS(load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config),
                         doctest::Contains(concat(folder / "model.safetensors", ": tensor model.norm.weight has dtype ",
                                                  name, "\n  expected F16, BF16, F32 or F64")
                                               .c_str()),
                         UserError);
  }
}

TEST_CASE(
    "hf_weights: a number that is none, and a file that is cut while it is read, are errors that name the tensor") {
  const Fixture fixture = testing::read_fixture("llama");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const testing::TemporaryFolder folder;
  for (const float value : {0.0F, HUGE_VALF, std::nanf("")}) {
    auto tensors = initial_weights(fixture);
    for (auto& [name, t] : tensors) t = t.to(at::kHalf).clone().fill_(name == "model.norm.weight" ? value : 1.0F);
    write(folder / "model.safetensors", safetensors(tensors));
    const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
    if (value == 0) std::filesystem::resize_file(folder / "model.safetensors", 4096);
    Step step(model.program, nullptr);
    const char* says = value == 0 ? "its file has become shorter" : "norm.weight holds infinite values or no numbers";
    CHECK_THROWS_WITH_AS(load_hf_weights(step, checkpoint, fixture.config), doctest::Contains(says), UserError);
  }
}

// Expected: PyTorch in float64, with which transformers' own models agree to 1e-5 (make_fixtures.py --transformers).
TEST_CASE("hf_weights: logits of every architecture are PyTorch's") {
  for (const std::string name :
       {"llama", "llama_tied", "gpt2", "gpt2_untied", "gpt_rope", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
    Step step(model.program, nullptr);
    load_hf_weights(step, SafetensorsCheckpoint::open(folder.path()), fixture.config);
    const auto& args = fixture.config.args;
    const auto eager = models::make_language_model({fixture.config.model, "", {args.begin(), args.end()}});
    torch::NoGradGuard no_grad;
    for (const auto& parameter : eager.module->named_parameters())
      parameter.value().copy_(step.gather(parameter.key()));
    const at::Tensor logits = eager.forward(batch_of(fixture, 1, 0, fixture.training.global_batch_size)[0], {});
    CHECK(testing::difference(testing::fingerprint("logits", numbers(logits)), fixture.logits) < 1e-5);
  }
}

TEST_CASE("hf_weights: arguments that no model has are refused by name") {
  const auto make = [](const char* model, const char* name, models::Arg value) {
    return models::make_language_model({model, "", {{name, value}, {"rope_scaling", true}}});
  };
  const std::tuple<const char*, double, const char*> refused[] = {
      {"norm_eps", -1.0, "Llama3Args::norm_eps = -1"},
      {"norm_eps", std::nan(""), "Llama3Args::norm_eps = nan"},
      {"rope_theta", -1.0, "Llama3Args::rope_theta = -1"},
      {"rope_scaling_factor", 0.5, "RopeScaling::factor = 0.5"},
      {"rope_low_freq_factor", 0.0, "RopeScaling::low_freq_factor = 0"},
      {"rope_original_max_position", 0.0, "RopeScaling::original_max_position = 0"},
      {"ffn_dim_multiplier", -1.0, "Llama3Args::ffn_dim_multiplier = -1"},
      {"ffn_dim_multiplier", 1e30, "Llama3Args::ffn_dim_multiplier = 1e+30"}};
  for (const auto& [name, value, text] : refused)
    CHECK_THROWS_WITH_AS(make("llama3", name, value), doctest::Contains(text), UserError);
  CHECK_THROWS_WITH_AS(models::make_language_model({"gpt", "", {{"norm_eps", -1.0}}}),
                       doctest::Contains("GptArgs::norm_eps = -1\n  expected a number of at least 0"), UserError);
  const std::map<std::string, models::Arg> odd = {{"dim", int64_t{12}}, {"n_heads", int64_t{4}}, {"rope", true}};
  CHECK_THROWS_WITH_AS(models::make_language_model({"gpt", "", odd}),
                       doctest::Contains("GptArgs::dim = 12 with n_heads = 4\n  expected heads of an even width"),
                       UserError);
}

TEST_CASE("hf_weights: loading takes no memory") {
  const Fixture fixture = testing::read_fixture("gpt2");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const testing::TemporaryFolder folder;
  auto tensors = initial_weights(fixture);
  for (auto& [name, value] : tensors) value = value.to(at::kBFloat16);
  write(folder / "model.safetensors", safetensors(tensors));
  Step step(model.program, nullptr);
  const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
  exec::count_memory();
  exec::restart_most_allocated();
  const int64_t before = exec::allocated_bytes();
  load_hf_weights(step, checkpoint, fixture.config);
  CHECK(exec::most_allocated_bytes() == before);
  CHECK(at::equal(step.gather("wte.weight"), tensors[0].second.to(at::kFloat)));
}

TEST_CASE("hf_weights: an exported folder holds the weights, whatever the ranks, and the config") {
  for (const std::string name : {"llama", "llama_tied", "gpt2", "gpt2_untied", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(name);
    const Fixture fixture = testing::read_fixture(name);
    const auto tensors = initial_weights(fixture);
    const testing::TemporaryFolder folder;
    write(folder / "model.safetensors", safetensors(tensors));
    write(folder / "config.json", config_json(name));
    const auto initial = SafetensorsCheckpoint::open(folder.path());
    const auto expect = [&](DeviceMesh mesh, DataParallelOptions options, HfExportOptions exported) {
      CAPTURE(to_string(mesh));
      const std::string out = folder / "out";
      const Model model = make_model(fixture, data_parallel(mesh, options), 1, false);
      testing::run_ranks(static_cast<int>(mesh.world_size()), [&](comm::CommWorld& world) {
        Step step(model.program, &world);
        load_hf_weights(step, initial, fixture.config);
        const HfConfig config =
            name == "mistral" ? fixture.config  // its class is a choice, not a property of the model
                              : hf_config_of_model(fixture.config.model, model.model.args, hf_sources(*model.program));
        const HfExported done = export_hf_folder(step, &world, config, out, exported);
        CHECK(done.staging_bytes <= exported.staging_bytes);
      });
      expect_checkpoint_equals(SafetensorsCheckpoint::open(out), tensors, capture::scalar_type_of(exported.dtype));
      const HfConfig read = read_hf_config(out);
      CHECK(read.architecture == fixture.config.architecture);
      CHECK((read.args == fixture.config.args));
      CHECK((read.sliding_window == fixture.config.sliding_window));
      CHECK_NOTHROW(expect_parameters_of(read, hf_sources(*model.program), name, "config.json"));
      CHECK_NOTHROW(expect_args_of(read, read.model, texts_of_args(model.model.args), name, "config.json"));
      std::filesystem::remove_all(out);
    };
    expect(init_device_mesh({{"dp_shard", 1}}), {}, {});
    expect(init_device_mesh({{"dp_shard", 2}}), {}, {.dtype = ir::DType::bf16, .max_file_bytes = 10000});
    expect(init_device_mesh({{"dp_shard", 4}}), {}, {.max_file_bytes = 20000, .staging_bytes = 1000});
    expect(init_device_mesh({{"dp_shard", 4}}), {.layout = ParameterLayout::Dim0}, {.dtype = ir::DType::f16});
    expect(init_device_mesh({{"dp_replicate", 4}}), {}, {.staging_bytes = 300, .assets = folder.path()});
    expect(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.min_shard_numel = 100}, {});
    expect(init_device_mesh({{"dp_shard", 2}}), {.zero_stage = 1}, {});
  }
}

TEST_CASE("hf_weights: exporting takes no memory but its staging") {
  const Fixture fixture = testing::read_fixture("llama");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 1}})), 1, false);
  const testing::TemporaryFolder folder;
  Step step(model.program, nullptr);
  const HfConfig config = hf_config_of_model("llama3", model.model.args, hf_sources(*model.program));
  exec::count_memory();
  exec::restart_most_allocated();
  const int64_t before = exec::allocated_bytes();
  const HfExported done =
      export_hf_folder(step, nullptr, config, folder / "out", {.dtype = ir::DType::bf16, .staging_bytes = 2000});
  CHECK(exec::most_allocated_bytes() == before);
  CHECK(done.staging_bytes == 2000);
  CHECK(done.tensor_bytes > 50 * done.staging_bytes);
}

TEST_CASE("hf_weights: what one rank cannot export is an error on all ranks, and leaves no folder") {
  const Fixture fixture = testing::read_fixture("llama");
  const Model model = make_model(fixture, data_parallel(init_device_mesh({{"dp_shard", 2}})), 1, false);
  const testing::TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::string> messages;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(model.program, &world);
    at::Tensor output = at::zeros({64, 64});
    output[63][63] = 70000.0F;  // rank 1's
    step.load_state_dict({{"output.weight", output}});
    try {
      export_hf_folder(step, &world, fixture.config, folder / "out", {.dtype = ir::DType::f16});
    } catch (const UserError& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  REQUIRE(messages.size() == 2);
  for (const std::string& message : messages)
    CHECK(message.starts_with("rank 1 cannot go on: output.weight: 1 of the values become infinite as f16"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("hf_weights: Llama with grouped heads, own head_dim and llama3 rope scaling equals PyTorch") {
  expect_all_forms_equal_pytorch("llama");
}

TEST_CASE("hf_weights: Llama with tied embeddings equals PyTorch") { expect_all_forms_equal_pytorch("llama_tied"); }

TEST_CASE("hf_weights: GPT-2 equals PyTorch") { expect_all_forms_equal_pytorch("gpt2"); }

TEST_CASE("hf_weights: an untied GPT-2, and a GPT with rotary embedding and without biases, equal PyTorch") {
  expect_all_forms_equal_pytorch("gpt2_untied");
  expect_all_forms_equal_pytorch("gpt_rope");
}

TEST_CASE("hf_weights: Qwen2 with biases on q, k and v equals PyTorch") { expect_all_forms_equal_pytorch("qwen2"); }

TEST_CASE("hf_weights: Qwen3 with norms on q and k equals PyTorch") { expect_all_forms_equal_pytorch("qwen3"); }

TEST_CASE("hf_weights: Mistral equals PyTorch") { expect_all_forms_equal_pytorch("mistral"); }

TEST_CASE("hf_weights: bfloat16 parameters with float32 reduction equal FSDP2's MixedPrecisionPolicy") {
  const MixedPrecisionPolicy policy{ir::DType::bf16, ir::DType::f32};
  const Fixture fixture = testing::read_fixture("llama_bf16_fsdp2");
  const testing::TemporaryFolder folder;
  write(folder / "model.safetensors", safetensors(initial_weights(fixture)));
  expect_equals_pytorch(fixture, folder.path(), init_device_mesh({{"dp_shard", 2}}), {.mixed_precision = policy}, 1,
                        {.loss = 2e-3, .grad_norm = 1e-2, .gradient = 0x1p-7});
}

}  // namespace hf_weights_test
}  // namespace sfsdp::train
