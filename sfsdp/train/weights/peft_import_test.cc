// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/peft_import.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train::peft_import_test {
namespace {

using testing::MemoryFolder;

const char* const kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q", "v"], "bias": "none", "use_dora": false})";

PeftConfig parse(std::string from = "", const std::string& to = "") {
  std::string text = kConfig;
  if (!from.empty()) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  }
  return parse_peft_config(text, "F");
}

struct Tensor {
  std::string name;
  std::array<int64_t, 2> shape;
  float first = 1;
};

void write(const std::string& folder, const std::vector<Tensor>& tensors, const std::string& config = kConfig) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json") << config;
  SafetensorsHeader header;
  std::string data;
  for (const Tensor& t : tensors) {
    const auto count = static_cast<size_t>(t.shape[0] * t.shape[1]);
    header.add("base_model.model." + t.name, ir::DType::f32, t.shape, count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
      const float value = t.first + static_cast<float>(i);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  std::ofstream(folder + "/adapter_model.safetensors", std::ios::binary) << header.bytes() << data;
}

const std::vector<Tensor> kTensors = {{"l.0.q.lora_A.weight", {2, 3}, 1},
                                      {"l.0.q.lora_B.weight", {4, 2}, 20},
                                      {"v.lora_A.weight", {2, 5}, 40},
                                      {"v.lora_B.weight", {6, 2}, 60}};

}  // namespace

TEST_CASE("adapter_config.json: what is read, and what is refused by name") {
  const PeftConfig config = parse();
  CHECK(config.rank == 2);
  CHECK(config.alpha == 6);
  CHECK(config.targets == std::vector<std::string>{"q", "v"});
  CHECK(parse(R"(["q", "v"])", R"("all-linear")").targets.empty());
  CHECK(parse(R"("use_dora": false)", R"("lora_dropout": 0.1)").notices.size() == 1);
  CHECK(
      parse(R"("use_dora": false)", R"("some_new_config": null, "rank_pattern": {}, "loftq_config": {"a": 1})").rank ==
      2);
  const auto refused = [](const char* from, const char* to, const char* with) {
    CAPTURE(to);
    CHECK_THROWS_WITH_AS(parse(from, to), doctest::Contains(with), UserError);
  };
  const char* last = R"("use_dora": false)";
  refused(last, R"("use_dora": true)", "\"use_dora\" is true, which adapters here do not compute");
  refused(last, R"("use_rslora": true)", "use_rslora");
  refused(last, R"("modules_to_save": ["head"])", "modules_to_save");
  refused(last, R"("rank_pattern": {"q": 4})", "rank_pattern");
  refused(last, R"("alpha_pattern": {"q": 4})", "alpha_pattern");
  refused(last, R"("unheard_of": 1)", "unheard_of");
  refused(last, R"("init_lora_weights": "pissa")", "changes the base weights too");
  refused(last, R"("r": 3)", "F: ");  // twice
  refused(R"("bias": "none")", R"("bias": "all")", "bias is \"all\"");
  refused(R"("LORA")", R"("IA3")", "peft_type is \"IA3\"");
  refused(R"("r": 2)", R"("r": -2)", "r is -2");
  refused(R"("r": 2)", R"("r": 0)", "r is 0");
  refused(R"("r": 2)", R"("r": 1.5)", "r is 1.5");
  refused(R"("r": 2, )", "", "no r");
  refused(R"("lora_alpha": 6)", R"("lora_alpha": 0)", "lora_alpha is 0");
  refused(R"("lora_alpha": 6)", R"("lora_alpha": 1e39)", "lora_alpha is ");
  refused(R"("lora_alpha": 6)", R"("lora_alpha": "6")", "lora_alpha is \"6\"");
  refused(R"(["q", "v"])", "[1]", "target_modules holds 1");
  refused(R"(["q", "v"])", "{}", "target_modules is");
  CHECK_THROWS_AS(parse_peft_config("[", "F"), UserError);
  CHECK_THROWS_AS(parse_peft_config("[]", "F"), UserError);
  CHECK_THROWS_AS(parse_peft_config(std::string(100000, '['), "F"), UserError);
}

TEST_CASE("an adapter of PEFT: modules by name, parts of their values") {
  const MemoryFolder folder;
  write(folder.path(), kTensors);
  PeftAdapter adapter(folder.path());
  CHECK(adapter.size() == 2);
  CHECK(adapter.match({"l.0.q", "l.0.k", "v"}, nullptr) == std::vector<std::string>{"l.0.q", "v"});
  std::array<float, 3> got{};
  adapter.read("l.0.q.lora_B.weight", {4, 2}, plan::whole_box({4, 2}, {3, 3}), std::as_writable_bytes(std::span(got)),
               ir::DType::f32);
  CHECK(got == std::array<float, 3>{23, 24, 25});
  adapter.read("v.lora_A.weight", {2, 5}, plan::whole_box({2, 5}, {7, 3}), std::as_writable_bytes(std::span(got)),
               ir::DType::f32);
  CHECK(got == std::array<float, 3>{47, 48, 49});
  CHECK_THROWS_WITH_AS(adapter.read("v.lora_A.weight", {2, 6}, plan::whole_box({2, 6}, {0, 3}),
                                    std::as_writable_bytes(std::span(got)), ir::DType::f32),
                       doctest::Contains("has shape [2, 5]\n  expected [2, 6]"), UserError);
  CHECK_THROWS_WITH_AS(adapter.match({"l.0.q", "w"}, nullptr), doctest::Contains("has an adapter of \"v\""), UserError);
}

TEST_CASE("an adapter of a Llama in Python: names, and rows of B as its heads have them") {
  const MemoryFolder folder;
  write(folder.path(),
        {{"model.layers.1.self_attn.q_proj.lora_A.weight", {2, 3}},
         {"model.layers.1.self_attn.q_proj.lora_B.weight", {8, 2}, 0}},
        R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": "all-linear"})");
  HfConfig llama;
  llama.model = "llama3";
  llama.args = {{"n_layers", int64_t{2}}, {"n_heads", int64_t{2}}, {"n_kv_heads", int64_t{1}}, {"tied", false}};
  PeftAdapter adapter(folder.path());
  CHECK(adapter.match({"layers.0.attention.wq", "layers.1.attention.wq", "tok_embeddings"}, &llama) ==
        std::vector<std::string>{"layers.1.attention.wq"});
  std::array<float, 16> got{};
  adapter.read("layers.1.attention.wq.lora_B.weight", {8, 2}, plan::whole_box({8, 2}, {0, 16}),
               std::as_writable_bytes(std::span(got)), ir::DType::f32);
  const std::array<float, 8> rows = {0, 2, 1, 3, 4, 6, 5, 7};  // of a head of 4 there: 0 and 2 are a pair
  for (size_t row = 0; row < 8; ++row) CHECK(got[2 * row] == 2 * rows[row]);
}

TEST_CASE("what is no adapter is refused by name") {
  const MemoryFolder folder;
  const auto refused = [&](std::vector<Tensor> tensors, const char* with, const std::string& config = kConfig) {
    CAPTURE(with);
    write(folder.path(), tensors, config);
    CHECK_THROWS_WITH_AS(PeftAdapter(folder.path()), doctest::Contains(with), UserError);
  };
  const auto changed = [](size_t place, const Tensor& tensor) {
    std::vector<Tensor> tensors = kTensors;
    tensors[place] = tensor;
    return tensors;
  };
  refused({}, "has no adapter");
  refused({kTensors[0], kTensors[2], kTensors[3]}, "\"l.0.q\" has no lora_B");
  refused(changed(0, {"l.0.q.lora_A.weight", {3, 2}}), "is not a matrix [r, in]");
  refused(changed(1, {"l.0.q.lora_B.weight", {2, 4}}), "is not a matrix [out, r]");
  refused(changed(1, {"l.0.q.lora_magnitude_vector", {4, 2}}), "is none of an adapter here");
  refused(changed(1, {"l.0.q.lora_embedding_B", {4, 2}}), "is none of an adapter here");
  refused(kTensors, "which no entry of target_modules names",
          R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q"]})");
  refused(kTensors, "names \"w\" in target_modules",
          R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q", "v", "w"]})");
  std::filesystem::resize_file(folder / "adapter_model.safetensors", 40);
  CHECK_THROWS_AS(PeftAdapter(folder.path()), UserError);
  std::filesystem::remove(folder / "adapter_model.safetensors");
  CHECK_THROWS_AS(PeftAdapter(folder.path()), UserError);
  CHECK_THROWS_AS(PeftAdapter(folder / "none"), UserError);

  write(folder.path(), changed(0, {"l.0.q.lora_A.weight", {2, 3}, std::numeric_limits<float>::infinity()}));
  PeftAdapter adapter(folder.path());
  adapter.match({"l.0.q", "v"}, nullptr);
  std::array<float, 6> got{};
  CHECK_THROWS_WITH_AS(adapter.read("l.0.q.lora_A.weight", {2, 3}, plan::whole_box({2, 3}, {0, 6}),
                                    std::as_writable_bytes(std::span(got)), ir::DType::f32),
                       doctest::Contains("holds infinite values"), UserError);
}

TEST_CASE("the folder that PEFT 0.21 has written is read whole") {
  const MemoryFolder folder;
  const std::string fixtures = testing::source_dir() + "/tests/fixtures/exported/";
  std::filesystem::copy_file(fixtures + "lora_peft.safetensors", folder / "adapter_model.safetensors");
  std::filesystem::copy_file(fixtures + "lora_peft_config.json", folder / "adapter_config.json");
  const PeftAdapter adapter(folder.path());
  CHECK(adapter.config().rank == 4);
  CHECK(adapter.config().alpha == 8);
  CHECK(adapter.size() == 6);
}

}  // namespace sfsdp::train::peft_import_test
