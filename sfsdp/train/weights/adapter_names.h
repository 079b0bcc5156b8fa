// SPDX-License-Identifier: BSD-3-Clause
// Parameters that capture/lora.h adds to a module, by name.
#pragma once

#include <string_view>

namespace sfsdp::train {

inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

inline bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kLoraA) || parameter.ends_with(kLoraB);
}

}  // namespace sfsdp::train
