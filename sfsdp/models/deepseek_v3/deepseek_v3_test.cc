// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3's sizes against published counts, its mixture against one token and one expert at a time in float64.
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/capture/meta_init.h"
#include "sfsdp/models/registry.h"

namespace sfsdp::models {
namespace deepseek_v3_test {

int64_t parameters_of(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const at::Tensor& p : module.parameters()) sum += p.numel();
  return sum;
}

// Source: TorchTitan models/deepseek_v3, recomputed from the definitions.
TEST_CASE("DeepSeek-V3's flavors have the published numbers of parameters and flops") {
  struct Row {
    const char* flavor;
    int64_t total, active, seq_len;
    double flops;
  };
  const Row rows[] = {{"debugmodel", 33'014'016, 28'098'816, 2048, 203'195'904.0},
                      {"16B", 15'706'484'224, 2'661'150'208, 4096, 17'426'519'040.0},
                      {"236B", 235'741'434'880, 21'375'800'320, 4096, 140'208'568'320.0},
                      {"671B", 671'026'404'352, 37'552'282'624, 4096, 241'245'235'200.0}};
  for (const Row& row : rows) {
    CAPTURE(row.flavor);
    const DeepSeekV3Args args = deepseek_v3_args(row.flavor);
    CHECK(args.num_parameters() == row.total);
    CHECK(args.num_active_parameters() == row.active);
    CHECK(args.flops_per_token(row.seq_len) == row.flops);
    capture::run_meta_init([&] {
      const LanguageModel model = make_language_model({"deepseek_v3", row.flavor, {}});
      CHECK(parameters_of(*model.module) == row.total);
      CHECK(model.flops_per_token(row.seq_len) == row.flops);
      return model.module;
    });
  }
}

DeepSeekV3Args tiny() {
  DeepSeekV3Args args;
  args.dim = 16;
  args.moe_inter_dim = 8;
  args.num_experts = 12;
  args.top_k = 3;
  args.load_balance_coeff = 1e-3;
  return args;
}

std::vector<double> values(const at::Tensor& t) {
  const at::Tensor flat = t.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

// Places of the n largest, the largest first.
std::vector<size_t> largest(const std::vector<double>& of, int64_t n) {
  std::vector<size_t> places(of.size());
  for (size_t i = 0; i < of.size(); ++i) places[i] = i;
  std::ranges::stable_sort(places, [&](size_t a, size_t b) { return of[a] > of[b]; });
  places.resize(static_cast<size_t>(n));
  return places;
}

struct Weight {
  size_t expert;
  double weight;
};

// What DeepSeek's reports say, for one token.
std::vector<Weight> route(const std::vector<double>& logits, const std::vector<double>& bias,
                          const DeepSeekV3Args& args) {
  const size_t experts = logits.size();
  std::vector<double> scores(experts), choice(experts);
  double exponentials = 0;
  for (const double l : logits) exponentials += std::exp(l);
  for (size_t e = 0; e < experts; ++e) {
    scores[e] =
        args.score_func == RouterScore::Sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]) / exponentials;
    choice[e] = scores[e] + bias[e];
  }
  const auto groups = static_cast<size_t>(args.n_expert_groups), each = experts / groups;
  std::vector<double> group_scores(groups);
  for (size_t g = 0; g < groups && groups > 1; ++g) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g * each);
    const std::vector<double> own(begin, begin + static_cast<std::ptrdiff_t>(each));
    for (const size_t best : largest(own, args.scores_of_group)) group_scores[g] += own[best];
  }
  const std::vector<size_t> kept = largest(group_scores, args.n_limited_groups);
  for (size_t e = 0; e < experts; ++e)
    if (std::ranges::find(kept, e / each) == kept.end()) choice[e] = -1e300;
  std::vector<Weight> chosen;
  double sum = 0;
  for (const size_t e : largest(choice, args.top_k)) {
    chosen.push_back({e, scores[e]});
    sum += scores[e];
  }
  for (Weight& w : chosen) w.weight *= args.route_scale / (args.route_norm ? sum + 1e-20 : 1);
  return chosen;
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2, const at::Tensor& w3) {
  const at::Tensor gate = at::mv(w1, x);
  return at::mv(w2, gate / (1 + at::exp(-gate)) * at::mv(w3, x));
}

struct Expected {
  at::Tensor out;
  std::vector<int64_t> tokens_per_expert;
};

Expected one_by_one(Mixture& mixture, const DeepSeekV3Args& args, const at::Tensor& x_TD) {
  const auto weight = [&](const std::string& name) {
    return mixture->named_parameters()[name].detach().to(at::kDouble);
  };
  const at::Tensor w1 = weight("experts.w1"), w2 = weight("experts.w2"), w3 = weight("experts.w3");
  std::vector<double> bias(static_cast<size_t>(args.num_experts));
  if (args.expert_bias) bias = values(mixture->named_buffers()["expert_bias"]);
  Expected expected{at::zeros_like(x_TD, at::kDouble), std::vector<int64_t>(bias.size())};
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    const at::Tensor x = x_TD[t].to(at::kDouble);
    at::Tensor out = expected.out[t];
    for (const auto& [e, by] : route(values(at::mv(weight("router.gate.weight"), x)), bias, args)) {
      const auto i = static_cast<int64_t>(e);
      out += by * feed_forward(x, w1[i], w2[i], w3[i]);
      ++expected.tokens_per_expert[e];
    }
    if (args.num_shared_experts > 0)
      out += feed_forward(x, weight("shared_experts.w1.weight"), weight("shared_experts.w2.weight"),
                          weight("shared_experts.w3.weight"));
  }
  return expected;
}

void set_bias(Mixture& mixture, double std) {
  at::NoGradGuard no_grad;
  mixture->named_buffers()["expert_bias"].normal_(0.0, std);
}

TEST_CASE("a mixture equals its tokens one by one in float64: scores, groups, norms, scales, shared experts") {
  struct Choice {
    RouterScore score;
    int64_t groups, limited, of_group;
    bool norm;
    double scale;
    int64_t shared;
    bool biased = true;
  };
  const Choice choices[] = {
      {RouterScore::Softmax, 1, 1, 2, false, 1, 2},       {RouterScore::Sigmoid, 1, 1, 2, true, 2.5, 1},
      {RouterScore::Sigmoid, 4, 2, 2, true, 2.5, 1},      {RouterScore::Softmax, 4, 3, 1, false, 16, 2},
      {RouterScore::Sigmoid, 3, 1, 3, true, 0.5, 0},      {RouterScore::Softmax, 4, 2, 1, false, 16, 2, false},
      {RouterScore::Softmax, 1, 1, 1, false, 1, 2, false}};
  for (const Choice& choice : choices) {
    DeepSeekV3Args args = tiny();
    args.score_func = choice.score;
    args.n_expert_groups = choice.groups;
    args.n_limited_groups = choice.limited;
    args.scores_of_group = choice.of_group;
    args.route_norm = choice.norm;
    args.route_scale = choice.scale;
    args.num_shared_experts = choice.shared;
    args.expert_bias = choice.biased;
    if (!choice.biased) args.load_balance_coeff = 0;
    CAPTURE(choice.groups);
    CAPTURE(choice.scale);
    at::manual_seed(7);
    Mixture mixture(args.mixture(), 0.3);
    if (choice.biased) set_bias(mixture, 0.2);
    const at::Tensor x_BSD = at::randn({2, 9, args.dim});
    const at::Tensor got = mixture(x_BSD).detach().to(at::kDouble).flatten(0, 1);
    const Expected expected = one_by_one(mixture, args, x_BSD.flatten(0, 1));
    CHECK((got - expected.out).abs().max().item<double>() <= 2e-6 * expected.out.abs().max().item<double>());
    CHECK(mixture->named_buffers().size() == (choice.biased ? 2 : 0));
    if (choice.biased)
      CHECK(at::equal(mixture->named_buffers()["tokens_per_expert"], at::tensor(expected.tokens_per_expert)));
    CHECK(std::ranges::count(expected.tokens_per_expert, 0) < 12);
  }
}

TEST_CASE("a mixture adds up its tokens in training alone, and experts without a token get no gradient") {
  DeepSeekV3Args args = tiny();
  at::manual_seed(3);
  Mixture mixture(args.mixture(), 0.3);
  {
    at::NoGradGuard no_grad;
    mixture->named_buffers()["expert_bias"].narrow(0, 0, 3).fill_(10.0);  // all tokens to experts 0, 1 and 2
  }
  const at::Tensor x = at::randn({1, 5, args.dim});
  mixture(x).sum().backward();
  mixture(x);
  mixture->eval();
  mixture(x);
  CHECK(at::equal(mixture->named_buffers()["tokens_per_expert"],
                  at::tensor({10, 10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, at::kLong)));
  const at::Tensor gradient = mixture->named_parameters()["experts.w1"].grad();
  CHECK(gradient.narrow(0, 0, 3).abs().amax({1, 2}).gt(0).all().item<bool>());
  CHECK(gradient.narrow(0, 3, 9).eq(0).all().item<bool>());
  args.load_balance_coeff = 0;
  CHECK_FALSE(Mixture(args.mixture(), 0.3)->named_buffers().contains("tokens_per_expert"));
}

TEST_CASE("YaRN keeps fast frequencies, divides slow ones and goes from one to the other in a line") {
  DeepSeekV3Args args;  // 64 components, theta 10000, 4096 positions, factor 40, from 32 turns to 1
  const std::vector<double> got = values(rope_frequencies(args));
  REQUIRE(got.size() == 32);
  // 64 ln(4096 / (2 pi 32)) / (2 ln 10000) = 10.47, and 22.51 with one turn: the ramp is from 10 to 23.
  for (size_t j = 0; j < 32; ++j) {
    CAPTURE(j);
    const double frequency = std::pow(10000.0, -static_cast<double>(j) / 32);
    const double slowed = std::clamp((static_cast<double>(j) - 10) / 13, 0.0, 1.0);
    CHECK(got[j] == doctest::Approx(frequency * (1 - slowed) + frequency / 40 * slowed).epsilon(1e-6));
  }
  // 0.1 ln 40 + 1 = 1.36889
  CHECK(args.softmax_scale() == doctest::Approx(1.368887945 * 1.368887945 / std::sqrt(192.0)).epsilon(1e-8));
  CHECK(args.yarn->rotation_scale() == 1.0);
  args.yarn->mscale_all_dim = 0;
  CHECK(args.yarn->rotation_scale() == doctest::Approx(1.368887945).epsilon(1e-8));
  CHECK(args.softmax_scale() == doctest::Approx(1 / std::sqrt(192.0)));
  args.yarn.reset();
  CHECK(values(rope_frequencies(args))[31] == doctest::Approx(std::pow(10000.0, -31.0 / 32)).epsilon(1e-6));
}

TEST_CASE("DeepSeek-V3 refuses sizes that do not fit together, by name") {
  const auto refused = [](const char* name, Arg value) {
    try {
      make_language_model({"deepseek_v3", "debugmodel", {{name, std::move(value)}}});
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused("top_k", int64_t{9}) == "DeepSeekV3Args::top_k = 9\n  expected at most num_experts = 8");
  CHECK(refused("n_expert_groups", int64_t{3}) ==
        "DeepSeekV3Args::n_expert_groups = 3\n  expected a divisor of num_experts = 8");
  CHECK(refused("moe_inter_dim", int64_t{12}) == "DeepSeekV3Args::moe_inter_dim = 12\n  expected a multiple of 8");
  CHECK(refused("v_head_dim", int64_t{193}) ==
        "DeepSeekV3Args::v_head_dim = 193\n  expected at most qk_nope_head_dim + qk_rope_head_dim = 192");
  CHECK(refused("qk_rope_head_dim", int64_t{7}).starts_with("DeepSeekV3Args::qk_rope_head_dim = 7\n"));
  CHECK(refused("n_dense_layers", int64_t{7}) == "DeepSeekV3Args::n_dense_layers = 7\n  expected at most n_layers = 6");
  CHECK(refused("expert_bias", false) ==
        "DeepSeekV3Args::load_balance_coeff = 0.001\n  expected 0 where experts have no biases, which it would move");
  CHECK(refused("rope_factor", 0.5) == "Yarn::factor = 0.5\n  expected at least 1");
  CHECK(refused("score_func", std::string("softmx")).starts_with("ModelSpec::args.score_func = softmx\n"));
  CHECK(refused("score_func", true) == "ModelSpec::args.score_func = true\n  expected a text");
}

TEST_CASE("DeepSeek-V3 in bfloat16 keeps the biases of experts in float32, and counts as integers") {
  DeepSeekV3Args args;
  args.dim = 16;
  args.inter_dim = args.moe_inter_dim = 16;
  args.n_layers = 2;
  args.n_heads = 2;
  args.vocab_size = 8;
  args.load_balance_coeff = 0.001;
  DeepSeekV3 model(args);
  const auto bias_of = [&] { return model->named_buffers()["layers.1.moe.expert_bias"]; };
  bias_of().fill_(4.001);
  model->to(at::kBFloat16);
  CHECK((model->named_parameters()["layers.1.moe.router.gate.weight"].scalar_type() == at::kBFloat16));
  CHECK((bias_of().scalar_type() == at::kFloat));
  CHECK(bias_of()[0].item<float>() == 4.001F);
  CHECK((model->named_buffers()["layers.1.moe.tokens_per_expert"].scalar_type() == at::kLong));
  model->to(at::kCPU, at::kDouble);
  CHECK((bias_of().scalar_type() == at::kFloat));
}

}  // namespace deepseek_v3_test
}  // namespace sfsdp::models
