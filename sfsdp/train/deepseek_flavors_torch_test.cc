// SPDX-License-Identifier: BSD-3-Clause
// The flavors 16B and 236B are DeepSeek-V2-Lite and DeepSeek-V2 as published, but for what is listed here.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "sfsdp/capture/meta_init.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/testing/published_configs.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_parameters.h"

namespace sfsdp::train {
namespace deepseek_flavors_torch_test {

using models::LanguageModel, models::ModelSpec;

LanguageModel on_meta(const ModelSpec& spec) {
  LanguageModel model;
  capture::run_meta_init([&] {
    model = models::make_language_model(spec);
    return model.module;
  });
  return model;
}

int64_t parameters_of(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const at::Tensor& p : module.parameters()) sum += p.numel();
  return sum;
}

struct Row {
  const std::string& config;
  std::string flavor;
  int64_t parameters;      // of DeepseekV2ForCausalLM of transformers 5.24 on the meta device
  double flops_per_token;  // TorchTitan's formula at 4096 tokens
  std::vector<std::string> differ;
};

// TorchTitan's flavors have norms and mscale of their own, and biases that balance experts.
const Row kRows[] = {{testing::kDeepSeekV2Lite,
                      "16B",
                      15'706'484'224,
                      17'426'519'040.0,
                      {"expert_bias = true, there false", "final_norm_eps = 1.1920928955078125e-07, there 1e-06",
                       "latent_norm_eps = 1e-05, there 1e-06", "mscale = 0.7, there 0.707",
                       "mscale_all_dim = 0.7, there 0.707", "norm_eps = 1e-05, there 1e-06"}},
                     {testing::kDeepSeekV2,
                      "236B",
                      235'741'434'880,
                      140'208'568'320.0,
                      {"expert_bias = true, there false", "final_norm_eps = 1.1920928955078125e-07, there 1e-06",
                       "latent_norm_eps = 1e-05, there 1e-06", "norm_eps = 1e-05, there 1e-06"}}};

TEST_CASE(
    "DeepSeek-V2's published configs make models of the published sizes, whose flavors differ in what is listed") {
  for (const Row& row : kRows) {
    CAPTURE(row.flavor);
    const HfConfig config = parse_hf_config(row.config, "config.json");
    const LanguageModel folder = on_meta({config.model, "", {config.args.begin(), config.args.end()}});
    const LanguageModel flavor = on_meta({"deepseek_v3", row.flavor, {}});
    CHECK(parameters_of(*folder.module) == row.parameters);
    CHECK(folder.flops_per_token(4096) == row.flops_per_token);
    CHECK(parameters_of(*flavor.module) == row.parameters);
    CHECK(flavor.flops_per_token(4096) == row.flops_per_token);
    CHECK(folder.module->named_buffers().is_empty());
    CHECK(args_that_differ(config, flavor.args) == row.differ);
    CHECK(args_that_differ(config, folder.args).empty());
  }
}

}  // namespace deepseek_flavors_torch_test
}  // namespace sfsdp::train
