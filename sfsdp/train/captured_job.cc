// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/captured_job.h"

#include <variant>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::train {

std::string capture_key(const JobConfig& config) {
  const Training& t = config.training;
  std::string key = concat(config.model.name, '/', config.model.flavor, '/', config.model.hf_assets_path, '/',
                           initial_hf_folder(config), '/', t.dtype, '/', t.mixed_precision_param, '/',
                           given_rows(config.parallelism, t.local_batch_size), '/', t.seq_len, '/', counts_targets(t),
                           '/', t.document_mask, '/', config.model.path, '/', join(config.model.inputs, ","), '/',
                           config.model.loss.value_or(""), '/', config.model.logits.value_or(""), '/',
                           config.model.prediction.value_or(""), '/', join(config.model.frozen, ","), '/',
                           join(config.lora.target, ","), '/', config.lora.adapter, '/', config.lora.rank.value_or(0));
  for (const auto& [name, value] : config.model_args) {
    const auto* number = std::get_if<double>(&value);
    key += concat('/', name, '=', value.index(), ':');
    std::visit([&](const auto& v) { key += number ? shortest(*number) : concat(v); }, value);
  }
  return key;
}

}  // namespace sfsdp::train
