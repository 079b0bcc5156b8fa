// SPDX-License-Identifier: BSD-3-Clause
// Normal forms, lower case and white space, as utf8proc has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sfsdp::train::tokenizer {

bool is_white_space(uint32_t c);

// Bytes of white space at the end and at the beginning of valid UTF-8.
size_t white_space_before(std::string_view text);
size_t white_space_after(std::string_view text);

enum class NormalForm : uint8_t { NFC, NFD, NFKC, NFKD };
// In place; takes valid UTF-8.
void normalise(std::string& text, NormalForm form);
// Character by character, without regard to what stands around it.
void lower_case(std::string& text);

}  // namespace sfsdp::train::tokenizer
