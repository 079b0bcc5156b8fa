// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/peft_import.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/float_convert.h"
#include "sfsdp/train/weights/hf_copy.h"

namespace sfsdp::train {
namespace {

constexpr std::string_view kPrefix = "base_model.model.", kWeight = ".weight";

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw UserError(concat(what, "\n  expected ", expected));
}

// --- adapter_config.json ---

// null, false, "", [], {} and 0: a key that asks for nothing.
bool is_off(const JsonValue& value) {
  if (const auto* flag = value.as<bool>()) return !*flag;
  if (const auto* text = value.as<std::string>()) return text->empty();
  if (const auto* list = value.as<JsonArray>()) return list->empty();
  if (const auto* object = value.as<JsonObject>()) return object->empty();
  if (const auto* number = value.as<uint64_t>()) return *number == 0;
  if (const auto* number = value.as<double>()) return *number == 0;
  return value.as<JsonNull>() != nullptr;
}

// Keys that change neither what adapters compute nor which tensors they are, once they are saved. Which modules they are of
// the tensors' names say; what initialises them is done.
constexpr std::array<std::string_view, 22> kNoMatter = {"auto_mapping",      "base_model_name_or_path",
                                                        "revision",          "task_type",
                                                        "inference_mode",    "fan_in_fan_out",
                                                        "exclude_modules",   "layers_pattern",
                                                        "eva_config",        "layers_to_transform",
                                                        "peft_version",      "megatron_core",
                                                        "qalora_group_size", "runtime_config",
                                                        "peft_type",         "r",
                                                        "lora_alpha",        "lora_dropout",
                                                        "target_modules",    "bias",
                                                        "init_lora_weights", "loftq_config"};

// Ways to initialise that change the base weights too: adapters of them belong to those.
void check_initialisation(const JsonValue& value, const std::string& file) {
  const auto* text = value.as<std::string>();
  if (value.as<bool>() || value.as<JsonNull>() ||
      (text && (*text == "gaussian" || *text == "eva" || *text == "orthogonal")))
    return;
  refuse(concat(file, ": init_lora_weights is ", describe(value), ", which changes the base weights too"),
         "true, false, gaussian, eva or orthogonal; convert the adapter to a plain one"
         " (save_pretrained with path_initial_model_for_weight_conversion)");
}

void read_targets(const JsonValue& value, const std::string& file, PeftConfig& config) {
  if (value.as<std::string>()) return;
  const auto* list = value.as<JsonArray>();
  if (!list) refuse(concat(file, ": target_modules is ", describe(value)), "a list of names, or a pattern");
  for (const JsonValue& one : *list) {
    const auto* name = one.as<std::string>();
    if (!name || name->empty()) refuse(concat(file, ": target_modules holds ", describe(one)), "names of modules");
    config.targets.push_back(*name);
  }
}

}  // namespace

PeftConfig parse_peft_config(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  const auto* object = document.as<JsonObject>();
  if (!object) refuse(concat(file, ": ", describe(document)), "an object, as PEFT's save_pretrained writes it");
  const auto at = [&](std::string_view key) -> const JsonValue& {
    const JsonValue* value = document.find(key);
    if (!value) refuse(concat(file, ": no ", key), "it, as PEFT's save_pretrained writes it");
    return *value;
  };
  const auto* type = at("peft_type").as<std::string>();
  if (!type || *type != "LORA") refuse(concat(file, ": peft_type is ", describe(at("peft_type"))), "LORA");
  PeftConfig config;
  const auto* rank = at("r").as<uint64_t>();
  if (!rank || *rank < 1 || *rank > (1 << 20)) refuse(concat(file, ": r is ", describe(at("r"))), "1 or more");
  config.rank = static_cast<int64_t>(*rank);
  config.alpha = as_real(at("lora_alpha")).value_or(0);
  if (!(config.alpha > 0) || !std::isfinite(static_cast<float>(config.alpha)))
    refuse(concat(file, ": lora_alpha is ", describe(at("lora_alpha"))), "a number above 0 that float32 holds");
  read_targets(at("target_modules"), file, config);
  for (const auto& [key, value] : *object) {
    if (key == "init_lora_weights") check_initialisation(value, file);
    const auto* bias = value.as<std::string>();
    if (key == "bias" && !(bias && *bias == "none"))
      refuse(concat(file, ": bias is ", describe(value)),
             "none: biases are frozen here; train the adapter with bias = none");
    if (key == "lora_dropout" && !is_off(value))
      config.notices.push_back(concat(file, ": lora_dropout is ", describe(value), ", and is not done"));
    if (std::ranges::find(kNoMatter, key) == kNoMatter.end() && !is_off(value))
      refuse(
          concat(file, ": ", quote_safe(key), " is ", describe(value), ", which adapters here do not compute"),
          "plain LoRA, without it; merge the adapter into the model in Python (merge_and_unload), and begin with that");
  }
  return config;
}

// --- adapter_model.safetensors ---

namespace {

// "base_model.model.layers.0.q_proj.lora_A.weight": the module's path; none for another name.
std::optional<std::string> module_of(std::string_view name, std::string_view part) {
  if (!name.starts_with(kPrefix) || !name.ends_with(part)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.size() <= part.size()) return std::nullopt;
  return std::string(name.substr(0, name.size() - part.size()));
}

bool is_target(const std::string& target, const std::string& path) {
  return path == target || path.ends_with("." + target);
}

const TensorView& part_of(const SafetensorsFile& file, const std::string& module, std::string_view part) {
  const TensorView* view = file.find(concat(kPrefix, module, part));
  if (!view)
    refuse(concat(file.path(), ": ", quote_safe(module), " has no ", part.substr(1)),
           "lora_A and lora_B of each module");
  return *view;
}

void check_shapes(const SafetensorsFile& file, const std::string& module, int64_t rank) {
  const TensorView &a = part_of(file, module, kLoraA), &b = part_of(file, module, kLoraB);
  const auto check = [&](const TensorView& view, size_t dim, const char* expected) {
    if (view.shape.size() != 2 || view.shape[dim] != rank)
      refuse(concat(file.path(), ": tensor ", quote_safe(view.name), " is not a matrix ", expected),
             concat("r = ", rank, ", as adapter_config.json says"));
    if (!view.dtype || !is_weight_dtype(*view.dtype))
      refuse(concat(file.path(), ": tensor ", quote_safe(view.name), " has dtype ", quote_safe(view.dtype_name)),
             "F16, BF16, F32 or F64");
  };
  check(a, 0, "[r, in]");
  check(b, 1, "[out, r]");
}

void check_targets(const PeftConfig& config, const std::set<std::string, std::less<>>& modules,
                   const std::string& folder) {
  if (config.targets.empty()) return;
  for (const std::string& path : modules)
    if (std::ranges::none_of(config.targets, [&](const std::string& t) { return is_target(t, path); }))
      refuse(concat(folder, "/adapter_model.safetensors has adapters of ", quote_safe(path),
                    ", which no entry of target_modules names"),
             "the adapter_config.json of that file");
  for (const std::string& target : config.targets)
    if (std::ranges::none_of(modules, [&](const std::string& path) { return is_target(target, path); }))
      refuse(concat(folder, "/adapter_config.json names ", quote_safe(target),
                    " in target_modules, of which adapter_model.safetensors has no adapter"),
             "the adapter_config.json of that file");
}

constexpr size_t kMostConfigBytes = 16 << 20;

}  // namespace

PeftAdapter::PeftAdapter(const std::string& folder)
    : folder_(folder),
      config_(parse_peft_config(read_text_file(folder + "/adapter_config.json", kMostConfigBytes),
                                folder + "/adapter_config.json")),
      file_(SafetensorsFile::open(folder + "/adapter_model.safetensors")) {
  for (const TensorView& view : file_.tensors()) {
    auto module = module_of(view.name, kLoraA);
    if (!module) module = module_of(view.name, kLoraB);
    if (!module)
      refuse(
          concat(file_.path(), ": tensor ", quote_safe(view.name), " is none of an adapter here"),
          "base_model.model.….lora_A.weight and lora_B.weight of linear maps alone; no embeddings, biases, magnitudes"
          " (DoRA) or whole modules");
    modules_.insert(*module);
  }
  if (modules_.empty()) refuse(concat(file_.path(), ": has no adapter"), "one at least");
  for (const std::string& module : modules_) check_shapes(file_, module, config_.rank);
  check_targets(config_, modules_, folder_);
}

std::vector<std::string> PeftAdapter::match(const std::vector<std::string>& ours, const HfConfig* hf) {
  matched_.clear();
  std::set<std::string, std::less<>> found;
  std::vector<std::string> paths, names;
  for (const std::string& path : ours) {
    Module module{path, {}};
    if (hf) {
      const auto place = hf_tensor_of(hf->model, concat(path, kWeight), *hf);
      if (!place) continue;
      module.rows = *place;
      for (const std::string& name : {place->hf_name, place->other_name})
        if (name.ends_with(kWeight))
          if (std::string in_python = name.substr(0, name.size() - kWeight.size());
              module.path == path || modules_.contains(in_python))
            module.path = std::move(in_python);
    }
    names.push_back(module.path);
    if (!modules_.contains(module.path)) continue;
    if (!found.insert(module.path).second)
      refuse(concat(file_.path(), ": ", quote_safe(module.path), " is two modules here, as their weights are tied"),
             "adapters of weights of their own");
    paths.push_back(path);
    matched_.emplace(path, std::move(module));
  }
  for (const std::string& module : modules_)
    if (!found.contains(module))
      refuse(concat(file_.path(), ": has an adapter of ", quote_safe(module),
                    ", and the model no such module with a matrix"),
             concat("an adapter of this model", did_you_mean(module, names)));
  return paths;
}

void PeftAdapter::read(const std::string& name, const std::vector<int64_t>& shape, const plan::Box& box,
                       std::span<std::byte> out, ir::DType dtype) const {
  const bool is_b = name.ends_with(kLoraB);
  const std::string_view part = is_b ? kLoraB : kLoraA;
  const auto module = matched_.find(std::string_view(name).substr(0, name.size() - part.size()));
  SFSDP_CHECK(is_adapter(name) && module != matched_.end(), name, " is no adapter of ", folder_);
  const TensorView& view = part_of(file_, module->second.path, part);
  const auto sizes = [](const std::vector<int64_t>& s) { return concat("[", s[0], ", ", s[1], "]"); };
  if (view.shape != shape)
    refuse(concat(file_.path(), ": tensor ", quote_safe(view.name), " has shape ", sizes(view.shape)),
           concat(sizes(shape), ", as ", name, " has"));
  HfTensor rows;
  if (is_b && module->second.rows.transform == HfTensor::PermuteHeads) rows = module->second.rows;
  std::array<std::byte, 65536> staging;
  const int64_t lost = copy_from_hf(
      rows, shape, box, [&](uint64_t first, std::span<std::byte> bytes) { view.read(first, bytes); }, *view.dtype,
      staging, out, dtype);
  if (lost > 0)
    refuse(concat(file_.path(), ": ", lost, " values of tensor ", quote_safe(view.name), " become infinite as ",
                  ir::to_string(dtype)),
           "values that it can hold");
  if (first_not_finite(out, dtype))
    refuse(concat(file_.path(), ": tensor ", quote_safe(view.name), " holds infinite values or no numbers"),
           "finite numbers; the file is damaged, or the run that wrote it had diverged");
}

}  // namespace sfsdp::train
