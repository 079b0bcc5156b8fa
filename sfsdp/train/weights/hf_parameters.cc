// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_parameters.h"

#include <cmath>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::train {
namespace {

using Shape = std::vector<int64_t>;

// The parameters of a layer, names without its prefix; or those outside of the layers.
std::vector<HfSource> llama_layer(const HfConfig& c, int64_t layer) {
  const int64_t dim = c.integer("dim"), head = c.integer("head_dim");
  const int64_t q = ir::saturating_product(c.integer("n_heads"), head);
  const int64_t kv = ir::saturating_product(c.integer("n_kv_heads"), head);
  std::vector<HfSource> all = {{"attention.wq.weight", {q, dim}},  {"attention.wk.weight", {kv, dim}},
                               {"attention.wv.weight", {kv, dim}}, {"attention.wo.weight", {dim, q}},
                               {"attention_norm.weight", {dim}},   {"ffn_norm.weight", {dim}}};
  if (c.has_mixture(layer)) {
    const int64_t experts = c.integer("num_experts"), width = c.integer("moe_inter_dim");
    all.push_back({"moe.router.gate.weight", {experts, dim}});
    for (const char* name : {"w1", "w3"}) all.push_back({concat("moe.experts.", name), {experts, width, dim}});
    all.push_back({"moe.experts.w2", {experts, dim, width}});
  } else {
    const int64_t hidden = c.integer("hidden_dim");
    for (const char* name : {"w1", "w3"}) all.push_back({concat("feed_forward.", name, ".weight"), {hidden, dim}});
    all.push_back({"feed_forward.w2.weight", {dim, hidden}});
  }
  if (c.flag("qkv_bias"))
    for (const auto& [name, rows] : {std::pair{"wq", q}, {"wk", kv}, {"wv", kv}})
      all.push_back({concat("attention.", name, ".bias"), {rows}});
  if (c.flag("qk_norm"))
    for (const char* name : {"q_norm", "k_norm"}) all.push_back({concat("attention.", name, ".weight"), {head}});
  return all;
}

std::vector<HfSource> llama_rest(const HfConfig& c) {
  const int64_t dim = c.integer("dim"), vocab = c.integer("vocab_size");
  std::vector<HfSource> all = {{"tok_embeddings.weight", {vocab, dim}}, {"norm.weight", {dim}}};
  if (!c.flag("tied")) all.push_back({"output.weight", {vocab, dim}});
  return all;
}

std::vector<HfSource> deepseek_layer(const HfConfig& c, int64_t layer) {
  const int64_t dim = c.integer("dim"), heads = c.integer("n_heads"), latent = c.integer("kv_lora_rank");
  const int64_t nope = c.integer("qk_nope_head_dim"), rope = c.integer("qk_rope_head_dim"), v = c.integer("v_head_dim");
  const int64_t queries = ir::saturating_product(heads, nope + rope), rank = c.integer("q_lora_rank");
  std::vector<HfSource> all = {{"attention.wkv_a.weight", {latent + rope, dim}},
                               {"attention.kv_norm.weight", {latent}},
                               {"attention.wkv_b.weight", {ir::saturating_product(heads, nope + v), latent}},
                               {"attention.wo.weight", {dim, ir::saturating_product(heads, v)}},
                               {"attention_norm.weight", {dim}},
                               {"ffn_norm.weight", {dim}}};
  if (rank == 0) {
    all.push_back({"attention.wq.weight", {queries, dim}});
  } else {
    all.push_back({"attention.wq_a.weight", {rank, dim}});
    all.push_back({"attention.q_norm.weight", {rank}});
    all.push_back({"attention.wq_b.weight", {queries, rank}});
  }
  const auto add_feed_forward = [&](const std::string& path, int64_t hidden) {
    for (const char* name : {"w1", "w3"}) all.push_back({concat(path, ".", name, ".weight"), {hidden, dim}});
    all.push_back({path + ".w2.weight", {dim, hidden}});
  };
  if (layer < c.integer("n_dense_layers")) {
    add_feed_forward("feed_forward", c.integer("inter_dim"));
    return all;
  }
  const int64_t experts = c.integer("num_experts"), hidden = c.integer("moe_inter_dim");
  const int64_t shared = c.integer("num_shared_experts");
  if (shared > 0) add_feed_forward("moe.shared_experts", ir::saturating_product(shared, hidden));
  all.push_back({"moe.router.gate.weight", {experts, dim}});
  if (c.flag("expert_bias")) all.push_back({"moe.expert_bias", {experts}});
  for (const char* name : {"w1", "w3"}) all.push_back({concat("moe.experts.", name), {experts, hidden, dim}});
  all.push_back({"moe.experts.w2", {experts, dim, hidden}});
  return all;
}

std::vector<HfSource> deepseek_rest(const HfConfig& c) {
  const int64_t dim = c.integer("dim"), vocab = c.integer("vocab_size");
  return {{"tok_embeddings.weight", {vocab, dim}}, {"norm.weight", {dim}}, {"output.weight", {vocab, dim}}};
}

std::vector<HfSource> gpt_layer(const HfConfig& c) {
  const int64_t dim = c.integer("dim"), three = ir::saturating_product(3, dim), four = ir::saturating_product(4, dim);
  std::vector<HfSource> all = {
      {"ln_1.weight", {dim}}, {"attn.c_attn.weight", {three, dim}}, {"attn.c_proj.weight", {dim, dim}},
      {"ln_2.weight", {dim}}, {"mlp.c_fc.weight", {four, dim}},     {"mlp.c_proj.weight", {dim, four}}};
  if (c.flag("bias"))
    for (const auto& [name, rows] : {std::pair{"ln_1", dim},
                                     {"attn.c_attn", three},
                                     {"attn.c_proj", dim},
                                     {"ln_2", dim},
                                     {"mlp.c_fc", four},
                                     {"mlp.c_proj", dim}})
      all.push_back({concat(name, ".bias"), {rows}});
  return all;
}

std::vector<HfSource> gpt_rest(const HfConfig& c) {
  const int64_t dim = c.integer("dim"), vocab = c.integer("vocab_size");
  std::vector<HfSource> all = {{"wte.weight", {vocab, dim}}, {"ln_f.weight", {dim}}};
  if (!c.flag("rope")) all.push_back({"wpe.weight", {c.integer("max_positions"), dim}});
  if (c.flag("bias")) all.push_back({"ln_f.bias", {dim}});
  if (!c.flag("tied")) all.push_back({"lm_head.weight", {vocab, dim}});
  return all;
}

std::string shape_text(const Shape& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

// Widths that the arguments leave to a rule; the parameters' shapes have them.
bool is_derived(const std::string& name, const std::string& value) {
  return value == "0" && (name == "hidden_dim" || name == "head_dim");
}

}  // namespace

void expect_parameters_of(const HfConfig& config, const std::vector<HfSource>& parameters, const std::string& from,
                          const std::string& file) {
  std::map<std::string, const Shape*> shapes;
  for (const HfSource& p : parameters) shapes[p.name] = &p.shape;
  const auto expect = [&](const std::string& name, const Shape& shape) {
    const auto found = shapes.find(name);
    if (found == shapes.end())
      throw UserError(concat(from, ": has no parameter ", name, "\n  expected one of ", shape_text(shape), ", as ",
                             file, " has it; give the config.json of the checkpoint's model"));
    if (*found->second != shape)
      throw UserError(concat(from, ": parameter ", name, " has shape ", shape_text(*found->second), "\n  expected ",
                             shape_text(shape), ", as ", file,
                             " has it; give the config.json of the checkpoint's model"));
  };
  if (config.model == "deepseek_v3") {
    for (const HfSource& p : deepseek_rest(config)) expect(p.name, p.shape);
    for (int64_t i = 0; i < config.integer("n_layers"); ++i)
      for (const HfSource& p : deepseek_layer(config, i)) expect(concat("layers.", i, ".", p.name), p.shape);
    return;
  }
  const bool gpt = config.model == "gpt";
  SFSDP_CHECK(gpt || config.model == "llama3", "model ", config.model);
  for (const HfSource& p : gpt ? gpt_rest(config) : llama_rest(config)) expect(p.name, p.shape);
  for (int64_t i = 0; i < config.integer("n_layers"); ++i)
    for (const HfSource& p : gpt ? gpt_layer(config) : llama_layer(config, i))
      expect(concat(gpt ? "h." : "layers.", i, ".", p.name), p.shape);
}

std::map<std::string, std::string> texts_of_args(const std::map<std::string, HfConfig::Value>& args) {
  struct {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const {
      constexpr double kMostWhole = 1e15;  // as an integer is written: the two sides may differ in type
      if (std::abs(number) < kMostWhole && number == std::trunc(number))
        return std::to_string(static_cast<int64_t>(number));
      return shortest(number);
    }
    std::string operator()(const std::string& text) const { return text; }
  } text;
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : args) texts[name] = std::visit(text, value);
  return texts;
}

std::vector<std::string> args_that_differ(const HfConfig& config, const std::map<std::string, HfConfig::Value>& built) {
  const auto texts = texts_of_args(built);
  std::vector<std::string> all;
  for (const auto& [name, there] : texts_of_args(config.args)) {
    const std::string& here = texts.at(name);
    if (here != there && !is_derived(name, here)) all.push_back(concat(name, " = ", here, ", there ", there));
  }
  return all;
}

void expect_vocabulary_of(const HfConfig& config, const std::map<std::string, HfConfig::Value>& built,
                          const std::string& folder) {
  const std::string here = texts_of_args(built).at("vocab_size"), there = texts_of_args(config.args).at("vocab_size");
  if (here == there) return;
  throw UserError(concat("the model has vocab_size = ", here, ", but ", folder, "/config.json has vocab_size = ", there,
                         ", and the weights there as many rows\n  expected the same, which tp need not divide: ",
                         "model.args.vocab_size = ", there,
                         ", or other initial values than checkpoint.initial_load_in_hf gives"));
}

void expect_args_of(const HfConfig& config, const std::string& model, const std::map<std::string, std::string>& args,
                    const std::string& from, const std::string& file) {
  const auto fail = [&](const std::string& name, const std::string& got, const std::string& expected) {
    throw UserError(concat(from, ": its model has ", name, " = ", quote_safe(got), "\n  expected ", expected, ", as ",
                           file, " has it; give the config.json of the checkpoint's model"));
  };
  if (model.empty()) return;
  if (model != config.model) fail("name", model, config.model);
  for (const auto& [name, value] : texts_of_args(config.args)) {
    const auto found = args.find(name);
    if (found != args.end() && found->second != value && !is_derived(name, found->second))
      fail(name, found->second, value);
  }
}

}  // namespace sfsdp::train
