// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/hf_config_parts.h"

namespace sfsdp::train {

namespace {

constexpr size_t kMaxConfigBytes = 4'000'000;

struct Rope {
  std::optional<double> theta;
  bool scaled = false;
  double factor = 0, low = 0, high = 0;
  int64_t original_max = 0;
};

// The object in rope_scaling (transformers 4) or rope_parameters (5).
Rope read_rope(const JsonValue& object, const Section& top, const std::string& key) {
  static constexpr std::array<std::string_view, 8> kKnown = {"rope_type",
                                                             "type",
                                                             "rope_theta",
                                                             "factor",
                                                             "low_freq_factor",
                                                             "high_freq_factor",
                                                             "original_max_position_embeddings",
                                                             "partial_rotary_factor"};
  const Section rope(object, top.file(), key + ".");
  for (const auto& [name, value] : rope.members())
    if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
      rope.refuse(quote_safe(name), describe(value), "only keys of the rope types default and llama3");
  const auto new_type = rope.find_text("rope_type");
  const auto old_type = rope.find_text("type");
  if (new_type && old_type && *new_type != *old_type)
    rope.refuse("type", quote_safe(*old_type), "the same as rope_type");
  const auto type = new_type ? new_type : old_type;
  if (!type) rope.refuse("rope_type", "missing", "\"default\" or \"llama3\"");
  if (*type != "default" && *type != "llama3")
    rope.refuse("rope_type", quote_safe(*type), "\"default\" or \"llama3\"; no other is supported");
  rope.must_be_number("partial_rotary_factor", 1);

  Rope out;
  out.theta = rope.find_number("rope_theta");
  if (*type == "default") return out;
  out.scaled = true;
  out.factor = rope.number("factor");
  out.low = rope.number("low_freq_factor");
  out.high = rope.number("high_freq_factor");
  out.original_max = rope.integer("original_max_position_embeddings");
  if (out.factor < 1) rope.refuse("factor", concat(out.factor), "at least 1");
  if (out.high <= out.low)
    rope.refuse("high_freq_factor", concat(out.high), concat("more than low_freq_factor = ", out.low));
  return out;
}

void read_rope_args(const Section& top, std::map<std::string, HfConfig::Value>& args) {
  const JsonValue* old_object = top.find("rope_scaling");
  const JsonValue* new_object = top.find("rope_parameters");
  if (old_object && new_object)
    top.refuse("rope_scaling", "given beside rope_parameters", "one of them: transformers 4's or 5's");
  Rope rope;
  if (old_object) rope = read_rope(*old_object, top, "rope_scaling");
  if (new_object) rope = read_rope(*new_object, top, "rope_parameters");
  const auto theta = top.find_number("rope_theta");
  if (theta && rope.theta && *theta != *rope.theta)
    top.refuse("rope_theta", concat(*theta), concat("the same as inside the rope object, ", *rope.theta));
  if (!theta && !rope.theta) top.refuse("rope_theta", "missing", "a number above 0, here or in rope_parameters");
  args["rope_theta"] = theta ? *theta : *rope.theta;
  args["rope_scaling"] = rope.scaled;
  if (!rope.scaled) return;
  args["rope_scaling_factor"] = rope.factor;
  args["rope_low_freq_factor"] = rope.low;
  args["rope_high_freq_factor"] = rope.high;
  args["rope_original_max_position"] = rope.original_max;
}

// Which layers may attend over a sliding window. SetForAll: every one, where a window is set, and no layer without.
enum class Window : uint8_t { None, EveryLayer, SomeLayers, SetForAll };
enum class NoKvHeads : uint8_t { AsHeads, Refuse };  // Refuse: the class has a number of its own, no file relies on it

// What transformers' classes compute differently from each other.
struct Family {
  std::string_view architecture;
  std::string_view model_type;
  Window window;
  NoKvHeads no_kv_heads;
  bool qkv_bias;
  bool qk_norm;
  std::optional<int64_t> head_dim;   // where the file has none; unset: hidden_size / num_attention_heads
  std::vector<const char*> no_bias;  // flags that must be false
  Experts experts = Experts::None;
};

const std::vector<Family>& llama_families() {
  using enum NoKvHeads;
  static const std::vector<Family> kFamilies = {
      {"LlamaForCausalLM", "llama", Window::None, AsHeads, false, false, {}, {"attention_bias", "mlp_bias"}},
      {"MistralForCausalLM", "mistral", Window::EveryLayer, Refuse, false, false, {}, {}},
      {"Qwen2ForCausalLM", "qwen2", Window::SomeLayers, Refuse, true, false, {}, {}},
      {"Qwen3ForCausalLM", "qwen3", Window::SomeLayers, Refuse, false, true, 128, {"attention_bias"}},
      {"Qwen3MoeForCausalLM",
       "qwen3_moe",
       Window::SetForAll,
       Refuse,
       false,
       true,
       {},
       {"attention_bias"},
       Experts::Qwen3},
      {"MixtralForCausalLM", "mixtral", Window::SetForAll, Refuse, false, false, {}, {}, Experts::Mixtral},
  };
  return kFamilies;
}

constexpr std::string_view kGpt2 = "GPT2LMHeadModel";
constexpr int64_t kDefaultWindow = 4096;  // of all three classes that have one

// Whether a layer attends over a window. Qwen's two rules for it: a list of the layers' types, or the first layer of those.
bool has_sliding_layer(const Section& top, int64_t layers) {
  const JsonValue* list = top.find("layer_types");
  const int64_t first = top.find_integer_or_zero("max_window_layers").value_or(28);
  if (!list) return first < layers;
  const auto* types = list->as<JsonArray>();
  if (!types || static_cast<int64_t>(types->size()) != layers)
    top.refuse("layer_types", types ? concat(types->size(), " of them") : describe(*list),
               concat("a list of num_hidden_layers = ", layers, " texts"));
  bool sliding = false;
  for (const JsonValue& type : *types) {
    const auto* name = type.as<std::string>();
    if (!name || (*name != "full_attention" && *name != "sliding_attention"))
      top.refuse("layer_types", describe(type), "\"full_attention\" or \"sliding_attention\"");
    sliding = sliding || *name == "sliding_attention";
  }
  return sliding;
}

std::optional<int64_t> read_sliding_window(const Section& top, const Family& family, int64_t layers) {
  if (family.window == Window::None) return std::nullopt;
  const auto given = top.find_integer("sliding_window");
  if (family.window == Window::SetForAll) {
    for (const char* key : {"max_window_layers", "layer_types"}) top.find(key);  // no layer is an exception
    if (family.experts == Experts::Mixtral) return given;
    return top.flag("use_sliding_window", false) ? given : std::nullopt;
  }
  const auto window = top.has("sliding_window") ? given : kDefaultWindow;
  if (family.window == Window::EveryLayer) return window;
  const bool used = top.flag("use_sliding_window", false);
  const bool sliding = has_sliding_layer(top, layers);
  if (!used && sliding && top.find("layer_types"))
    top.refuse("layer_types", "sliding_attention, with use_sliding_window = false", "the two to agree");
  return used && sliding ? window : std::nullopt;
}

int64_t read_kv_heads(const Section& top, const Family& family, int64_t heads) {
  const auto given = top.find_integer("num_key_value_heads");
  if (family.no_kv_heads == NoKvHeads::Refuse && !top.has("num_key_value_heads"))
    top.refuse("num_key_value_heads", "missing", concat("an integer, or null for num_attention_heads = ", heads));
  const int64_t kv_heads = given.value_or(heads);
  if (heads % kv_heads != 0)
    top.refuse("num_key_value_heads", concat(kv_heads), concat("a divisor of num_attention_heads = ", heads));
  return kv_heads;
}

void read_llama(const Section& top, const Family& family, HfConfig& config) {
  top.must_be_text("model_type", family.model_type);
  top.must_be_text("hidden_act", "silu");
  for (const char* key : family.no_bias) top.must_be_flag(key, false);
  top.must_be_number("attention_dropout", 0);
  top.must_be_number("partial_rotary_factor", 1);
  top.must_be_number("pretraining_tp", 1);
  const int64_t dim = top.integer("hidden_size");
  const int64_t heads = top.integer("num_attention_heads");
  const int64_t layers = top.integer("num_hidden_layers", kMaxLayers);
  const auto in_file = top.find_integer("head_dim");
  const auto given_width = in_file ? in_file : family.head_dim;
  if (!given_width && dim % heads != 0)
    top.refuse("num_attention_heads", concat(heads), concat("a divisor of hidden_size = ", dim, ", or head_dim"));
  const int64_t width = given_width.value_or(dim / heads);
  if (width % 2 != 0) top.refuse("head_dim", concat(width), "an even number: rotary embeddings turn pairs");

  auto& args = config.args;
  args["dim"] = dim;
  args["n_layers"] = layers;
  args["n_heads"] = heads;
  args["n_kv_heads"] = read_kv_heads(top, family, heads);
  args["vocab_size"] = top.integer("vocab_size");
  args["hidden_dim"] = top.integer("intermediate_size");
  args["head_dim"] = width;
  args["norm_eps"] = top.number("rms_norm_eps");
  args["tied"] = top.flag("tie_word_embeddings", false);  // the default of all these classes
  args["qkv_bias"] = family.qkv_bias;
  args["qk_norm"] = family.qk_norm;
  read_rope_args(top, args);
  read_llama_mixture(top, family.experts, config);
  config.model = "llama3";
  config.sliding_window = read_sliding_window(top, family, layers);
}

// The files that are published ask for 0.1 each, which is also the default: refused, no GPT-2 could be read.
std::vector<std::string> gpt2_notices(const Section& top) {
  std::vector<std::string> asked;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"})
    if (const double p = top.find_number(key, true).value_or(0.1); p != 0) asked.push_back(concat(key, " = ", p));
  if (asked.empty()) return {};
  return {concat(top.file(), ": ", join(asked, ", "), " is not applied: our GPT-2 trains without dropout")};
}

void read_gpt2(const Section& top, HfConfig& config) {
  top.must_be_text("model_type", "gpt2");
  top.must_be_text("activation_function", "gelu_new");
  top.must_be_flag("scale_attn_weights", true);
  top.must_be_flag("scale_attn_by_inverse_layer_idx", false);
  top.must_be_flag("add_cross_attention", false);
  const int64_t dim = top.integer("n_embd");
  const int64_t heads = top.integer("n_head");
  if (dim % heads != 0) top.refuse("n_head", concat(heads), concat("a divisor of n_embd = ", dim));
  if (const auto inner = top.find_integer("n_inner", 4 * kMaxSize); inner && *inner != 4 * dim)
    top.refuse("n_inner", concat(*inner), concat("null or ", 4 * dim, ", 4 n_embd; no other is supported"));

  config.model = "gpt";
  auto& args = config.args;
  args["dim"] = dim;
  args["n_layers"] = top.integer("n_layer", kMaxLayers);
  args["n_heads"] = heads;
  args["vocab_size"] = top.integer("vocab_size");
  args["max_positions"] = top.integer("n_positions");
  args["norm_eps"] = top.number("layer_norm_epsilon");
  args["tied"] = top.flag("tie_word_embeddings", true);  // the default of this class
  args["bias"] = true;
  args["rope"] = false;
  for (std::string& notice : gpt2_notices(top)) config.notices.push_back(std::move(notice));
}

// transformers 4 says torch_dtype, 5 says dtype.
std::string read_dtype(const Section& top) {
  const auto old_name = top.find_text("torch_dtype");
  const auto new_name = top.find_text("dtype");
  if (old_name && new_name && *old_name != *new_name)
    top.refuse("torch_dtype", quote_safe(*old_name), "the same as dtype = " + quote_safe(*new_name));
  const std::string name = new_name ? *new_name : old_name.value_or("");
  if (!name.empty() && name != "float32" && name != "bfloat16" && name != "float16" && name != "float64")
    top.refuse(new_name ? "dtype" : "torch_dtype", quote_safe(name), "float32, bfloat16, float16 or float64");
  return name;
}

std::string read_architecture(const Section& top) {
  std::vector<std::string> known = {std::string(kGpt2), std::string(kDeepSeekV3), std::string(kDeepSeekV2)};
  for (const Family& family : llama_families()) known.emplace_back(family.architecture);
  const std::string expected = concat("a list of one of ", join(known, ", "), "; no other is supported");
  const JsonValue* list = top.find("architectures");
  if (!list) top.refuse("architectures", "missing", expected);
  const auto* names = list->as<JsonArray>();
  if (!names || names->size() != 1)
    top.refuse("architectures", names ? concat(names->size(), " of them") : describe(*list), expected);
  const auto* name = names->front().as<std::string>();
  if (!name || std::find(known.begin(), known.end(), *name) == known.end())
    top.refuse("architectures", "[" + describe(names->front()) + "]", expected);
  return *name;
}

// Keys that change no number of a forward and backward pass: ids, limits and defaults of generation, how a model was
// initialised, where a file came from. GPT-2's head for summaries is not part of a GPT2LMHeadModel.
constexpr std::array<std::string_view, 46> kHarmless = {"_attn_implementation",
                                                        "_name_or_path",
                                                        "auto_map",
                                                        "aux_loss_alpha",
                                                        "bad_words_ids",
                                                        "bos_token_id",
                                                        "diversity_penalty",
                                                        "do_sample",
                                                        "early_stopping",
                                                        "ep_size",
                                                        "eos_token_id",
                                                        "gradient_checkpointing",
                                                        "id2label",
                                                        "initializer_range",
                                                        "is_decoder",
                                                        "is_encoder_decoder",
                                                        "label2id",
                                                        "length_penalty",
                                                        "max_length",
                                                        "max_position_embeddings",
                                                        "min_length",
                                                        "n_ctx",
                                                        "no_repeat_ngram_size",
                                                        "num_beams",
                                                        "num_return_sequences",
                                                        "output_attentions",
                                                        "output_hidden_states",
                                                        "output_router_logits",
                                                        "pad_token_id",
                                                        "reorder_and_upcast_attn",
                                                        "repetition_penalty",
                                                        "return_dict",
                                                        "router_aux_loss_coef",
                                                        "seq_aux",
                                                        "summary_activation",
                                                        "summary_first_dropout",
                                                        "summary_proj_to_labels",
                                                        "summary_type",
                                                        "summary_use_proj",
                                                        "task_specific_params",
                                                        "temperature",
                                                        "tokenizer_class",
                                                        "top_k",
                                                        "top_p",
                                                        "transformers_version",
                                                        "use_cache"};

std::vector<std::string> keys_not_known(const Section& top) {
  std::vector<std::string> names;
  for (const auto& [key, value] : top.members())
    if (!top.was_asked_for(key) && !value.as<JsonNull>() &&
        std::find(kHarmless.begin(), kHarmless.end(), key) == kHarmless.end())
      names.push_back(quote_safe(key));
  return names;
}

template <typename T>
T argument(const HfConfig& config, const std::string& key) {
  const auto found = config.args.find(key);
  SFSDP_CHECK(found != config.args.end(), "no ", key, " in the config of ", config.model);
  const T* value = std::get_if<T>(&found->second);
  SFSDP_CHECK(value, key, " of ", config.model, " is of another type");
  return *value;
}

}  // namespace

int64_t HfConfig::integer(const std::string& key) const { return argument<int64_t>(*this, key); }
double HfConfig::number(const std::string& key) const { return argument<double>(*this, key); }
bool HfConfig::flag(const std::string& key) const { return argument<bool>(*this, key); }

bool HfConfig::has_mixtures() const {
  return model == "llama3" && args.contains("num_experts") && integer("num_experts") > 0;
}

bool HfConfig::has_mixture(int64_t layer) const {
  if (!has_mixtures()) return false;
  return layer >= integer("n_dense_layers") && (layer + 1) % integer("moe_layer_step") == 0;
}

HfConfig parse_hf_config(std::string_view text, const std::string& file) {
  return hf_config_of(parse_json(text, file), file);
}

HfConfig hf_config_of(const JsonValue& document, const std::string& file) {
  const Section top(document, file, "");
  HfConfig config;
  config.architecture = read_architecture(top);
  read_quantization(top, config);
  config.dtype = read_dtype(top);
  if (config.architecture == kGpt2) read_gpt2(top, config);
  if (config.architecture == kDeepSeekV3) read_deepseek_v3(top, config);
  if (config.architecture == kDeepSeekV2) read_deepseek_v2(top, config);
  for (const Family& family : llama_families())
    if (family.architecture == config.architecture) read_llama(top, family, config);
  if (const auto names = keys_not_known(top); !names.empty())
    config.notices.push_back(concat(file, ": not known here, and not applied: ", join(names, ", ")));
  return config;
}

void check_sliding_window(const HfConfig& config, int64_t seq_len, const std::string& folder) {
  if (config.sliding_window && seq_len > *config.sliding_window)
    throw UserError(concat("training.seq_len = ", seq_len, ", but ", folder, "/config.json has sliding_window = ",
                           *config.sliding_window, "\n  expected at most ", *config.sliding_window,
                           ": attention over a window is not supported, and up to its length it is full attention"));
}

HfConfig read_hf_config(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  return parse_hf_config(read_text_file(path, kMaxConfigBytes), path);
}

std::string read_hf_config_text(const std::string& dir) {
  const std::filesystem::path path = std::filesystem::path(dir) / "config.json";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_text_file(path.string(), kMaxConfigBytes) : "";
}

}  // namespace sfsdp::train
