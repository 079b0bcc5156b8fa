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

namespace sfsdp::train {

namespace {

constexpr size_t kMaxConfigBytes = 4'000'000;
constexpr int64_t kMaxSize = 2147483647;  // of any one dimension
constexpr int64_t kMaxLayers = 100000;

// An object of the file, and how to name its keys.
class Section {
 public:
  Section(const JsonValue& object, std::string file, std::string prefix)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object.as<JsonObject>()) refuse("", describe(object), "an object");
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& got, const std::string& expected) const {
    const std::string name = prefix_ + std::string(key);
    throw UserError("" + file_ + ": " + (name.empty() ? "the document" : name) + " = " + got + "\n  expected " +
                    expected);
  }

  // Null for a missing key and for null, which transformers writes for "use the default".
  const JsonValue* find(std::string_view key) const {
    asked_.emplace(key);
    const JsonValue* value = object_.find(key);
    return value && value->as<JsonNull>() ? nullptr : value;
  }

  std::optional<int64_t> find_integer(std::string_view key, int64_t max = kMaxSize) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    const auto* number = value->as<uint64_t>();
    if (!number || *number < 1 || *number > static_cast<uint64_t>(max))
      refuse(key, describe(*value), concat("an integer from 1 to ", max));
    return static_cast<int64_t>(*number);
  }

  std::optional<int64_t> find_integer_or_zero(std::string_view key) const {
    const JsonValue* value = find(key);
    const auto* number = value ? value->as<uint64_t>() : nullptr;
    return number && *number == 0 ? 0 : find_integer(key);
  }

  int64_t integer(std::string_view key, int64_t max = kMaxSize) const {
    const auto number = find_integer(key, max);
    if (!number) refuse(key, "missing", concat("an integer from 1 to ", max));
    return *number;
  }

  // 500000 and 500000.0 are both written.
  std::optional<double> find_number(std::string_view key, bool or_zero = false) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    double number = -1;
    if (const auto* whole = value->as<uint64_t>()) number = static_cast<double>(*whole);
    if (const auto* real = value->as<double>()) number = *real;
    if (!(or_zero ? number >= 0 : number > 0) || !std::isfinite(number))
      refuse(key, describe(*value), or_zero ? "a number, not negative" : "a number above 0");
    return number;
  }

  double number(std::string_view key) const {
    const auto number = find_number(key);
    if (!number) refuse(key, "missing", "a number above 0");
    return *number;
  }

  bool flag(std::string_view key, bool otherwise) const {
    const JsonValue* value = find(key);
    if (!value) return otherwise;
    const auto* flag = value->as<bool>();
    if (!flag) refuse(key, describe(*value), "true or false");
    return *flag;
  }

  std::optional<std::string> find_text(std::string_view key) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    const auto* text = value->as<std::string>();
    if (!text) refuse(key, describe(*value), "a text");
    return *text;
  }

  // A key with one value we can compute, which is also its default.
  void must_be_flag(std::string_view key, bool only) const {
    if (flag(key, only) != only)
      refuse(key, only ? "false" : "true", only ? "true; no other is supported" : "false; no other is supported");
  }
  void must_be_text(std::string_view key, std::string_view only) const {
    const auto text = find_text(key);
    if (text && *text != only) refuse(key, quote_safe(*text), concat("\"", only, "\"; no other is supported"));
  }

  void must_be_number(std::string_view key, double only) const {
    if (find_number(key, true).value_or(only) != only)
      refuse(key, describe(*find(key)), concat(only, "; no other is supported"));
  }

  const JsonObject& members() const { return *object_.as<JsonObject>(); }
  bool has(std::string_view key) const { return object_.find(key) != nullptr; }  // null too
  bool was_asked_for(const std::string& key) const { return asked_.contains(key); }
  const std::string& file() const { return file_; }

 private:
  const JsonValue& object_;
  std::string file_;
  std::string prefix_;
  mutable std::set<std::string> asked_;  // keys, for what is left over at the end
};

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

enum class Window : uint8_t { None, EveryLayer, SomeLayers };  // which layers may attend over a sliding window
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
};

const std::vector<Family>& llama_families() {
  using enum NoKvHeads;
  static const std::vector<Family> kFamilies = {
      {"LlamaForCausalLM", "llama", Window::None, AsHeads, false, false, {}, {"attention_bias", "mlp_bias"}},
      {"MistralForCausalLM", "mistral", Window::EveryLayer, Refuse, false, false, {}, {}},
      {"Qwen2ForCausalLM", "qwen2", Window::SomeLayers, Refuse, true, false, {}, {}},
      {"Qwen3ForCausalLM", "qwen3", Window::SomeLayers, Refuse, false, true, 128, {"attention_bias"}},
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
  config.model = "llama3";
  config.sliding_window = read_sliding_window(top, family, layers);
}

constexpr std::string_view kDeepSeekV3 = "DeepseekV3ForCausalLM";

// YaRN's numbers in rope_scaling (transformers 4) or rope_parameters (5); their defaults are transformers'.
void read_yarn(const Section& top, std::map<std::string, HfConfig::Value>& args) {
  const JsonValue* old_object = top.find("rope_scaling");
  const JsonValue* new_object = top.find("rope_parameters");
  if (old_object && new_object)
    top.refuse("rope_scaling", "given beside rope_parameters", "one of them: transformers 4's or 5's");
  const auto theta = top.find_number("rope_theta");
  args["rope_theta"] = theta.value_or(10000);
  args["yarn"] = false;
  const JsonValue* object = old_object ? old_object : new_object;
  if (!object) return;
  const Section rope(*object, top.file(), old_object ? "rope_scaling." : "rope_parameters.");
  const auto inside = rope.find_number("rope_theta");
  if (theta && inside && *theta != *inside)
    top.refuse("rope_theta", concat(*theta), concat("the same as inside the rope object, ", *inside));
  if (inside) args["rope_theta"] = *inside;
  const auto new_type = rope.find_text("rope_type"), old_type = rope.find_text("type");
  const std::string type = new_type ? *new_type : old_type.value_or("missing");
  if (type != "default" && type != "yarn")
    rope.refuse("rope_type", quote_safe(type), "\"default\" or \"yarn\"; no other is supported");
  rope.must_be_flag("truncate", true);
  if (type == "yarn") {
    args["yarn"] = true;
    args["rope_factor"] = rope.number("factor");
    args["original_seq_len"] = rope.number("original_max_position_embeddings");
    args["beta_fast"] = rope.find_number("beta_fast").value_or(32);
    args["beta_slow"] = rope.find_number("beta_slow").value_or(1);
    args["mscale"] = rope.find_number("mscale", true).value_or(0);
    args["mscale_all_dim"] = rope.find_number("mscale_all_dim", true).value_or(0);
  }
  for (const auto& [key, value] : rope.members())
    if (!rope.was_asked_for(key) && !value.as<JsonNull>())
      rope.refuse(quote_safe(key), describe(value), "only keys of the rope types default and yarn");
}

void read_deepseek_v3(const Section& top, HfConfig& config) {
  top.must_be_text("model_type", "deepseek_v3");
  top.must_be_text("hidden_act", "silu");
  top.must_be_text("scoring_func", "sigmoid");
  top.must_be_text("topk_method", "noaux_tc");
  for (const char* key : {"attention_bias", "tie_word_embeddings"}) top.must_be_flag(key, false);
  top.must_be_flag("rope_interleave", true);
  top.must_be_number("attention_dropout", 0);
  top.must_be_number("pretraining_tp", 1);
  top.must_be_number("moe_layer_freq", 1);
  const int64_t heads = top.integer("num_attention_heads");
  if (const auto kv = top.find_integer("num_key_value_heads"); kv && *kv != heads)
    top.refuse("num_key_value_heads", concat(*kv), concat("null or num_attention_heads = ", heads));
  const std::pair<const char*, const char*> sizes[] = {{"dim", "hidden_size"},
                                                       {"inter_dim", "intermediate_size"},
                                                       {"moe_inter_dim", "moe_intermediate_size"},
                                                       {"vocab_size", "vocab_size"},
                                                       {"kv_lora_rank", "kv_lora_rank"},
                                                       {"qk_nope_head_dim", "qk_nope_head_dim"},
                                                       {"qk_rope_head_dim", "qk_rope_head_dim"},
                                                       {"v_head_dim", "v_head_dim"},
                                                       {"num_experts", "n_routed_experts"},
                                                       {"top_k", "num_experts_per_tok"},
                                                       {"n_expert_groups", "n_group"},
                                                       {"n_limited_groups", "topk_group"}};
  config.model = "deepseek_v3";
  auto& args = config.args;
  for (const auto& [ours, theirs] : sizes) args[ours] = top.integer(theirs);
  args["n_heads"] = heads;
  args["n_layers"] = top.integer("num_hidden_layers", kMaxLayers);
  args["n_dense_layers"] = top.find_integer_or_zero("first_k_dense_replace").value_or(0);
  args["q_lora_rank"] = top.find_integer("q_lora_rank").value_or(0);
  args["num_shared_experts"] = top.find_integer_or_zero("n_shared_experts").value_or(0);
  args["norm_eps"] = args["final_norm_eps"] = top.number("rms_norm_eps");
  args["latent_norm_eps"] = 1e-6;  // whatever the file says
  args["score_func"] = std::string("sigmoid");
  args["scores_of_group"] = int64_t{2};
  args["route_norm"] = top.flag("norm_topk_prob", true);
  args["route_scale"] = top.find_number("routed_scaling_factor").value_or(1);
  read_yarn(top, args);
  for (const char* key : {"head_dim", "qk_head_dim", "num_local_experts"}) top.find_integer(key);  // said twice
  if (const auto more = top.find_integer_or_zero("num_nextn_predict_layers"); more && *more > 0)
    config.notices.push_back(concat(top.file(), ": num_nextn_predict_layers = ", *more,
                                    " is not applied: modules that predict further tokens are not read"));
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

int64_t size_of_block(const Section& section, const JsonValue& size) {
  const auto* number = size.as<uint64_t>();
  if (!number || *number < 1 || *number > static_cast<uint64_t>(kMaxSize))
    section.refuse("weight_block_size", "[.. " + describe(size) + " ..]", concat("integers from 1 to ", kMaxSize));
  return static_cast<int64_t>(*number);
}

// float8 in blocks of a matrix, as DeepSeek-V3 has them. Which weights are, each tensor's dtype says.
void read_quantization(const Section& top, HfConfig& config) {
  const JsonValue* object = top.find("quantization_config");
  if (!object) return;
  const Section section(*object, top.file(), "quantization_config.");
  const auto method = section.find_text("quant_method");
  if (method != "fp8")
    section.refuse("quant_method", method ? quote_safe(*method) : "missing", "\"fp8\"; no other is supported");
  section.must_be_text("fmt", "e4m3");
  section.must_be_text("activation_scheme", "dynamic");
  if (const auto scales = section.find_text("scale_fmt"); scales && *scales != "ue8m0" && *scales != "float")
    section.refuse("scale_fmt", quote_safe(*scales), "\"ue8m0\" or \"float\"; no other is supported");
  const JsonValue* size = section.find("weight_block_size");
  const auto* sizes = size ? size->as<JsonArray>() : nullptr;
  if (!sizes || sizes->size() != 2)
    section.refuse("weight_block_size", size ? describe(*size) : "missing",
                   "[rows, columns] of a block that has one scale; no other scales are supported");
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "dequantize"}) section.find(key);
  for (const auto& [key, value] : section.members())
    if (!section.was_asked_for(key) && !value.as<JsonNull>())
      section.refuse(quote_safe(key), describe(value), "only keys of float8 in blocks");
  config.weight_block = {size_of_block(section, (*sizes)[0]), size_of_block(section, (*sizes)[1])};
  config.notices.push_back(
      concat(top.file(), ": quantization_config: weights in float8 are read as the numbers that they stand for;",
             " nothing is computed in float8, and an export has none"));
}

std::string read_architecture(const Section& top) {
  std::vector<std::string> known = {std::string(kGpt2), std::string(kDeepSeekV3)};
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
constexpr std::array<std::string_view, 44> kHarmless = {"_attn_implementation",
                                                        "_name_or_path",
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
