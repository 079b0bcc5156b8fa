// SPDX-License-Identifier: BSD-3-Clause
// Source: PEFT's utils/save_and_load.py and tuners/lora/config.py.
#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/adapter_values.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_parameters.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train {
namespace {

// One adapter as PEFT has it.
struct Named {
  std::string path;  // of the module in Python
  const AdapterValues* values = nullptr;
  HfTensor place;  // how the rows of B are ordered there
};

std::vector<Named> named_by(const CheckpointAdapters& adapters, const HfConfig* config) {
  std::vector<Named> all;
  for (const auto& [path, values] : adapters.by_path()) {
    Named named{path, &values, {}};
    if (config) {
      const auto place = hf_tensor_of(config->model, path + ".weight", *config);
      if (!place)
        throw UserError(concat(path, " has no place in ", config->model,
                               " of Hugging Face\n  expected the config.json of the checkpoint's model"));
      named.place = *place;
      constexpr std::string_view kWeight = ".weight";
      named.path = place->hf_name.substr(0, place->hf_name.size() - kWeight.size());
    }
    all.push_back(std::move(named));
  }
  return all;
}

std::vector<float> rows_there(const Named& named) {
  const AdapterValues& v = *named.values;
  if (named.place.transform != HfTensor::PermuteHeads) return v.b;
  std::vector<float> b(v.b.size());
  for (int64_t row = 0; row < v.out; ++row)
    std::copy_n(v.b.begin() + row * v.rank, v.rank, b.begin() + source_row(named.place, v.out, row) * v.rank);
  return b;
}

std::string config_json(const std::vector<Named>& all, double alpha) {
  std::vector<std::string> targets;
  bool transposed = false;
  for (const Named& named : all) {
    targets.push_back(json_quoted(named.path));
    transposed = transposed || named.place.transform == HfTensor::Transpose;
  }
  return concat("{\n  \"base_model_name_or_path\": null,\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": ",
                transposed ? "true" : "false",
                ",\n  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"lora_alpha\": ", shortest(alpha),
                ",\n  \"lora_dropout\": 0.0,\n  \"peft_type\": \"LORA\",\n  \"r\": ", all.front().values->rank,
                ",\n  \"target_modules\": [", join(targets, ", "), "],\n  \"task_type\": null\n}\n");
}

void write_safetensors(const std::vector<Named>& all, const std::string& path) {
  SafetensorsHeader header;
  std::vector<std::vector<float>> values;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns, std::vector<float> elements) {
    header.add(name, ir::DType::f32, std::array{rows, columns}, elements.size() * sizeof(float));
    values.push_back(std::move(elements));
  };
  for (const Named& named : all) {
    const std::string prefix = "base_model.model." + named.path;
    add(concat(prefix, kLoraA), named.values->rank, named.values->in, named.values->a);
    add(concat(prefix, kLoraB), named.values->out, named.values->rank, rows_there(named));
  }
  const Fd file = create_file(path);
  const std::string first = header.bytes();
  write_file(file.get(), std::as_bytes(std::span(first)), 0, path);
  auto at = static_cast<int64_t>(first.size());
  for (const std::vector<float>& elements : values) {
    write_file(file.get(), std::as_bytes(std::span(elements)), at, path);
    at += static_cast<int64_t>(elements.size() * sizeof(float));
  }
  sync_file(file.get(), path);
}

}  // namespace

void export_peft(const std::string& checkpoint, const std::string& folder, const std::string& hf_assets) {
  checkpoint::StretchReader reader(checkpoint);
  const CheckpointAdapters adapters(reader);
  const checkpoint::Manifest& manifest = reader.manifest();
  if (adapters.empty())
    throw UserError(concat(checkpoint, " has no adapters\n  expected a checkpoint of a run with lora.target"));
  const bool exported = manifest.model == "exported";
  if (!exported && hf_assets.empty())
    throw UserError(concat(checkpoint, " is of a ", manifest.model,
                           " model, whose parameters have other names in Python\n  expected --hf-assets, a folder with"
                           " its config.json"));
  std::optional<HfConfig> config;
  if (!exported) {
    config = read_hf_config(hf_assets);
    expect_args_of(*config, manifest.model, manifest.model_args, checkpoint, hf_assets + "/config.json");
  }
  const std::vector<Named> all = named_by(adapters, config ? &*config : nullptr);
  std::error_code error;
  if (std::filesystem::exists(folder, error))
    throw UserError(concat(folder, " is there already\n  expected a new name"));
  const std::string temporary = folder + ".tmp";
  std::filesystem::remove_all(temporary, error);
  try {
    if (!std::filesystem::create_directories(temporary, error))
      fail_on_file(temporary, "cannot be made", error.value());
    write_safetensors(all, temporary + "/adapter_model.safetensors");
    write_atomically(temporary + "/adapter_config.json", config_json(all, adapters.alpha()));
  } catch (...) {
    std::filesystem::remove_all(temporary, error);
    throw;
  }
  rename_file(temporary, folder);
}

}  // namespace sfsdp::train
