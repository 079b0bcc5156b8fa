// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"
#include "sfsdp/train/weights/hf_config_parts.h"

namespace sfsdp::train {
namespace {

int64_t size_of_block(const Section& section, const JsonValue& size) {
  const auto* number = size.as<uint64_t>();
  if (!number || *number < 1 || *number > static_cast<uint64_t>(kMaxSize))
    section.refuse("weight_block_size", "[.. " + describe(size) + " ..]", concat("integers from 1 to ", kMaxSize));
  return static_cast<int64_t>(*number);
}

}  // namespace

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

}  // namespace sfsdp::train
