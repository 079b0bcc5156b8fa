// SPDX-License-Identifier: BSD-3-Clause
// Models by name, flavor and single arguments, as a config names them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

namespace torch::nn {
class Module;
}

namespace sfsdp::models {

using Arg = std::variant<bool, int64_t, double, std::string>;

struct ModelSpec {
  std::string name = "llama3";        // llama3, gpt, deepseek_v3
  std::string flavor = "debugmodel";  // "": the family's smallest, of which args override all that matters
  std::map<std::string, Arg> args;    // override the flavor's: dim, n_layers, …
};

// A language model: tokens [B, S] int64, and positions [B, S] int64 in their documents or undefined -> logits [B, S, V].
struct LanguageModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& positions)> forward;
  int64_t vocab_size = 0;
  std::optional<int64_t> max_length = {};          // of a sequence; none: any
  std::function<double(int64_t)> flops_per_token;  // by sequence length, forward and backward
  std::map<std::string, Arg> args;                 // all of the family's, as built
  double load_balance_coeff = 0;  // by which biases of experts move in a step; 0: there are none, or they stay
};

// With real weights, unless it runs under meta_init. Throws UserError naming the nearest model, flavor or argument.
LanguageModel make_language_model(const ModelSpec& spec);

}  // namespace sfsdp::models
