// SPDX-License-Identifier: BSD-3-Clause
// Llama's family with experts: sizes of Qwen3-MoE and Mixtral against published counts, which layers have a mixture, and a mixture
// without biases against one token and one expert at a time in float64.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/capture/meta_init.h"
#include "sfsdp/models/llama3/llama3.h"
#include "sfsdp/models/registry.h"

namespace sfsdp::models {
namespace llama3_mixture_test {

int64_t parameters_of(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const at::Tensor& p : module.parameters()) sum += p.numel();
  return sum;
}

// Source: the names of the models (30 B of which 3 B are active, 235 B of which 22 B are), and transformers 5.24's own modules on
// meta tensors, which have these totals; active ones and flops by the definitions.
TEST_CASE("Qwen3-MoE's and Mixtral's flavors have the published numbers of parameters and flops") {
  struct Row {
    const char* flavor;
    int64_t total, active, seq_len;
    double flops;
  };
  const Row rows[] = {{"debugmodel_moe", 12'480'128, 5'402'240, 2048, 104'765'184.0},
                      {"30B-A3B", 30'532'122'624, 3'353'032'704, 4096, 27'914'883'072.0},
                      {"235B-A22B", 235'093'634'560, 22'190'763'520, 4096, 167'260'001'280.0},
                      {"debugmodel_mixtral", 11'484'416, 4'406'528, 2048, 61'042'176.0},
                      {"8x7B", 46'702'792'704, 12'879'925'248, 4096, 82'935'570'432.0},
                      {"8x22B", 140'630'071'296, 39'161'468'928, 4096, 250'672'287'744.0}};
  for (const Row& row : rows) {
    CAPTURE(row.flavor);
    const Llama3Args args = llama3_args(row.flavor);
    CHECK(args.num_parameters() == row.total);
    CHECK(args.num_active_parameters() == row.active);
    CHECK(args.flops_per_token(row.seq_len) == row.flops);
    capture::run_meta_init([&] {
      const LanguageModel model = make_language_model({"llama3", row.flavor, {}});
      CHECK(parameters_of(*model.module) == row.total);
      CHECK(model.module->buffers().empty());
      CHECK(model.load_balance_coeff == 0);
      CHECK(model.flops_per_token(row.seq_len) == row.flops);
      return model.module;
    });
  }
  Llama3Args first = llama3_args("8x22B");
  first.vocab_size = 32000;  // as v0.1 without instructions has it
  CHECK(first.num_parameters() == 140'620'634'112);
}

Llama3Args tiny() {
  Llama3Args args;
  args.dim = 16;
  args.n_layers = 5;
  args.n_heads = 2;
  args.n_kv_heads = 1;
  args.vocab_size = 11;
  args.hidden_dim = 12;
  args.num_experts = 6;
  args.top_k = 3;
  args.moe_inter_dim = 8;
  return args;
}

TEST_CASE("layers of llama3 without a mixture are the first ones, and those that the step leaves out") {
  const auto layers = [](int64_t dense, int64_t step) {
    Llama3Args args = tiny();
    args.n_dense_layers = dense;
    args.moe_layer_step = step;
    Llama3 model(args);
    CHECK(parameters_of(*model) == args.num_parameters());
    const auto names = model->named_parameters();
    std::string text;
    for (int64_t i = 0; i < args.n_layers; ++i) {
      const std::string at = "layers." + std::to_string(i);
      const bool mixture = names.contains(at + ".moe.experts.w1");
      CHECK(mixture == names.contains(at + ".moe.router.gate.weight"));
      CHECK(mixture != names.contains(at + ".feed_forward.w1.weight"));
      text += mixture ? 'm' : 'd';
    }
    return text;
  };
  CHECK(layers(0, 1) == "mmmmm");
  CHECK(layers(2, 1) == "ddmmm");
  CHECK(layers(0, 2) == "dmdmd");
  CHECK(layers(2, 2) == "dddmd");
  CHECK(layers(5, 1) == "ddddd");
}

TEST_CASE("a mixture without biases equals its tokens one by one in float64, its weights divided by their sum or not") {
  for (const bool norm : {true, false}) {
    CAPTURE(norm);
    MixtureArgs args = tiny().mixture();
    args.route_norm = norm;
    at::manual_seed(5);
    Mixture mixture(args, 0.3);
    CHECK(mixture->buffers().empty());
    const auto w = mixture->named_parameters();
    const auto weight = [&](const char* name) { return w[name].detach().to(at::kDouble); };
    const at::Tensor x = at::randn({2, 7, args.dim});
    const at::Tensor got = mixture(x).detach().to(at::kDouble).flatten(0, 1), tokens = x.to(at::kDouble).flatten(0, 1);
    for (int64_t t = 0; t < 14; ++t) {
      const at::Tensor scores = at::mv(weight("router.gate.weight"), tokens[t]).softmax(0);
      const auto best = scores.sort(0, /*descending=*/true);
      at::Tensor expected = at::zeros({args.dim}, at::kDouble);
      double sum = 0;
      for (int64_t k = 0; k < args.top_k; ++k) {
        const auto e = std::get<1>(best)[k].item<int64_t>();
        const double s = std::get<0>(best)[k].item<double>();
        const at::Tensor hidden =
            at::silu(at::mv(weight("experts.w1")[e], tokens[t])) * at::mv(weight("experts.w3")[e], tokens[t]);
        expected += s * at::mv(weight("experts.w2")[e], hidden);
        sum += s;
      }
      if (norm) expected /= sum;
      CHECK((got[t] - expected).abs().max().item<double>() <= 2e-6 * expected.abs().max().item<double>());
    }
  }
}

TEST_CASE("llama3 refuses experts that do not fit together, by name") {
  const auto refused = [](const char* name, int64_t value) {
    try {
      make_language_model({"llama3", "debugmodel_mixtral", {{name, value}}});
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused("top_k", 9) == "Llama3Args::top_k = 9\n  expected at most num_experts = 8");
  CHECK(refused("top_k", 0) == "Llama3Args::top_k = 0\n  expected at least 1");
  CHECK(refused("moe_inter_dim", 12) == "Llama3Args::moe_inter_dim = 12\n  expected a multiple of 8");
  CHECK(refused("n_dense_layers", 7) == "Llama3Args::n_dense_layers = 7\n  expected at most n_layers = 6");
  CHECK(refused("moe_layer_step", 0) == "Llama3Args::moe_layer_step = 0\n  expected at least 1");
  CHECK(refused("num_experts", 0).empty());
}

}  // namespace llama3_mixture_test
}  // namespace sfsdp::models
