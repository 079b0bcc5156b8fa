// SPDX-License-Identifier: BSD-3-Clause
// Patterns of paths.
#pragma once

#include <string_view>

namespace sfsdp {

// Whether the pattern fits the whole path: * is any text, ? one character.
bool matches(std::string_view pattern, std::string_view path);

}  // namespace sfsdp
