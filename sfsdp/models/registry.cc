// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/registry.h"

#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/models/gpt/gpt.h"
#include "sfsdp/models/llama3/llama3.h"

namespace sfsdp::models {
namespace {

// A named place for an argument; numbers convert where nothing is lost.
struct Slot {
  std::string name;
  std::variant<bool*, int64_t*, double*, std::string*> target;
};

std::string text_of(const Arg& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::visit([](const auto& v) { return concat(v); }, value);
}

void assign(const Slot& slot, const Arg& value) {
  const auto wrong = [&](const char* expected) {
    throw UserError(concat("ModelSpec::args.", slot.name, " = ", text_of(value), "\n  expected ", expected));
  };
  if (auto* flag = std::get_if<bool*>(&slot.target)) {
    if (!std::holds_alternative<bool>(value)) wrong("true or false");
    **flag = std::get<bool>(value);
  } else if (auto* integer = std::get_if<int64_t*>(&slot.target)) {
    if (!std::holds_alternative<int64_t>(value) || std::get<int64_t>(value) < 0) wrong("a whole number, not negative");
    **integer = std::get<int64_t>(value);
  } else if (auto* text = std::get_if<std::string*>(&slot.target)) {
    if (!std::holds_alternative<std::string>(value)) wrong("a text");
    **text = std::get<std::string>(value);
  } else {
    double*& real = std::get<double*>(const_cast<Slot&>(slot).target);
    if (std::holds_alternative<int64_t>(value))
      *real = static_cast<double>(std::get<int64_t>(value));
    else if (std::holds_alternative<double>(value))
      *real = std::get<double>(value);
    else
      wrong("a number");
  }
}

void assign_all(const std::vector<Slot>& slots, const ModelSpec& spec) {
  for (const auto& [name, value] : spec.args) {
    const Slot* found = nullptr;
    std::vector<std::string> names;
    for (const Slot& slot : slots) {
      names.push_back(slot.name);
      if (slot.name == name) found = &slot;
    }
    if (!found)
      throw UserError(concat("ModelSpec::args.", name, ": model ", spec.name,
                             " has no such argument\n  expected one of ", join(names, ", "),
                             did_you_mean(name, names)));
    assign(*found, value);
  }
}

std::map<std::string, Arg> values_of(const std::vector<Slot>& slots) {
  std::map<std::string, Arg> values;
  for (const Slot& slot : slots) std::visit([&](auto* target) { values[slot.name] = *target; }, slot.target);
  return values;
}

LanguageModel make_llama3(const ModelSpec& spec) {
  Llama3Args args = spec.flavor.empty() ? Llama3Args{} : llama3_args(spec.flavor);
  RopeScaling scaling = args.rope_scaling.value_or(RopeScaling{});
  bool scaled = args.rope_scaling.has_value();
  const std::vector<Slot> slots = {{"dim", &args.dim},
                                   {"n_layers", &args.n_layers},
                                   {"n_heads", &args.n_heads},
                                   {"n_kv_heads", &args.n_kv_heads},
                                   {"vocab_size", &args.vocab_size},
                                   {"multiple_of", &args.multiple_of},
                                   {"ffn_dim_multiplier", &args.ffn_dim_multiplier},
                                   {"hidden_dim", &args.hidden_dim},
                                   {"head_dim", &args.head_dim},
                                   {"norm_eps", &args.norm_eps},
                                   {"rope_theta", &args.rope_theta},
                                   {"rope_scaling", &scaled},
                                   {"rope_scaling_factor", &scaling.factor},
                                   {"rope_low_freq_factor", &scaling.low_freq_factor},
                                   {"rope_high_freq_factor", &scaling.high_freq_factor},
                                   {"rope_original_max_position", &scaling.original_max_position},
                                   {"tied", &args.tied},
                                   {"qkv_bias", &args.qkv_bias},
                                   {"qk_norm", &args.qk_norm},
                                   {"depth_init", &args.depth_init},
                                   {"num_experts", &args.num_experts},
                                   {"top_k", &args.top_k},
                                   {"moe_inter_dim", &args.moe_inter_dim},
                                   {"route_norm", &args.route_norm},
                                   {"n_dense_layers", &args.n_dense_layers},
                                   {"moe_layer_step", &args.moe_layer_step}};
  assign_all(slots, spec);
  args.rope_scaling = scaled ? std::optional(scaling) : std::nullopt;
  Llama3 model(args);
  const auto forward = [model](const at::Tensor& tokens, const at::Tensor& positions) mutable {
    return model->forward(tokens, positions);
  };
  return {
      model.ptr(),     forward, args.vocab_size, {}, [args](int64_t seq_len) { return args.flops_per_token(seq_len); },
      values_of(slots)};
}

LanguageModel make_gpt(const ModelSpec& spec) {
  GptArgs args = spec.flavor.empty() ? GptArgs{} : gpt_args(spec.flavor);
  const std::vector<Slot> slots = {{"dim", &args.dim},
                                   {"n_layers", &args.n_layers},
                                   {"n_heads", &args.n_heads},
                                   {"vocab_size", &args.vocab_size},
                                   {"max_positions", &args.max_positions},
                                   {"norm_eps", &args.norm_eps},
                                   {"bias", &args.bias},
                                   {"tied", &args.tied},
                                   {"rope", &args.rope},
                                   {"rope_theta", &args.rope_theta}};
  assign_all(slots, spec);
  Gpt model(args);
  const auto forward = [model](const at::Tensor& tokens, const at::Tensor& positions) mutable {
    return model->forward(tokens, positions);
  };
  return {model.ptr(),
          forward,
          args.vocab_size,
          args.rope ? std::nullopt : std::optional(args.max_positions),
          [args](int64_t seq_len) { return args.flops_per_token(seq_len); },
          values_of(slots)};
}

RouterScore parse_score(const std::string& text) {
  if (text == "softmax") return RouterScore::Softmax;
  if (text == "sigmoid") return RouterScore::Sigmoid;
  throw UserError(concat("ModelSpec::args.score_func = ", text, "\n  expected softmax or sigmoid",
                         did_you_mean(text, {"softmax", "sigmoid"})));
}

LanguageModel make_deepseek_v3(const ModelSpec& spec) {
  DeepSeekV3Args args = spec.flavor.empty() ? DeepSeekV3Args{} : deepseek_v3_args(spec.flavor);
  Yarn yarn = args.yarn.value_or(Yarn{});
  bool scaled = args.yarn.has_value();
  std::string score = args.score_func == RouterScore::Sigmoid ? "sigmoid" : "softmax";
  const std::vector<Slot> slots = {{"dim", &args.dim},
                                   {"inter_dim", &args.inter_dim},
                                   {"moe_inter_dim", &args.moe_inter_dim},
                                   {"n_layers", &args.n_layers},
                                   {"n_dense_layers", &args.n_dense_layers},
                                   {"n_heads", &args.n_heads},
                                   {"vocab_size", &args.vocab_size},
                                   {"norm_eps", &args.norm_eps},
                                   {"latent_norm_eps", &args.latent_norm_eps},
                                   {"final_norm_eps", &args.final_norm_eps},
                                   {"q_lora_rank", &args.q_lora_rank},
                                   {"kv_lora_rank", &args.kv_lora_rank},
                                   {"qk_nope_head_dim", &args.qk_nope_head_dim},
                                   {"qk_rope_head_dim", &args.qk_rope_head_dim},
                                   {"v_head_dim", &args.v_head_dim},
                                   {"rope_theta", &args.rope_theta},
                                   {"yarn", &scaled},
                                   {"rope_factor", &yarn.factor},
                                   {"original_seq_len", &yarn.original_seq_len},
                                   {"beta_fast", &yarn.beta_fast},
                                   {"beta_slow", &yarn.beta_slow},
                                   {"mscale", &yarn.mscale},
                                   {"mscale_all_dim", &yarn.mscale_all_dim},
                                   {"num_experts", &args.num_experts},
                                   {"num_shared_experts", &args.num_shared_experts},
                                   {"top_k", &args.top_k},
                                   {"score_func", &score},
                                   {"route_norm", &args.route_norm},
                                   {"route_scale", &args.route_scale},
                                   {"n_expert_groups", &args.n_expert_groups},
                                   {"n_limited_groups", &args.n_limited_groups},
                                   {"scores_of_group", &args.scores_of_group},
                                   {"expert_bias", &args.expert_bias},
                                   {"load_balance_coeff", &args.load_balance_coeff}};
  assign_all(slots, spec);
  args.yarn = scaled ? std::optional(yarn) : std::nullopt;
  args.score_func = parse_score(score);
  DeepSeekV3 model(args);
  const auto forward = [model](const at::Tensor& tokens, const at::Tensor& positions) mutable {
    return model->forward(tokens, positions);
  };
  return {model.ptr(),
          forward,
          args.vocab_size,
          {},
          [args](int64_t seq_len) { return args.flops_per_token(seq_len); },
          values_of(slots),
          args.load_balance_coeff};
}

}  // namespace

LanguageModel make_language_model(const ModelSpec& spec) {
  if (spec.name == "llama3") return make_llama3(spec);
  if (spec.name == "gpt") return make_gpt(spec);
  if (spec.name == "deepseek_v3") return make_deepseek_v3(spec);
  throw UserError(concat("ModelSpec::name = ", spec.name, "\n  expected llama3, gpt or deepseek_v3",
                         did_you_mean(spec.name, {"llama3", "gpt", "deepseek_v3"})));
}

}  // namespace sfsdp::models
