// SPDX-License-Identifier: BSD-3-Clause
// Texts of an archive as they may stand in messages: a terminal obeys control characters, and a log is read line by line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sfsdp::exported {

// UTF-8 without control characters, line ends and marks that reverse the direction of what follows.
bool is_printable(std::string_view text);

// The first `most` bytes of `text` that end a character, "…" after them if there are more; what is not printable is written
// as its bytes, \x1b.
std::string printable(std::string_view text, size_t most);

}  // namespace sfsdp::exported
