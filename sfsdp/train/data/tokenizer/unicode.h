// SPDX-License-Identifier: BSD-3-Clause
// Unicode as the library `tokenizers` has it: categories of Unicode 16, normalisation of Unicode 9, white space of any.
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

// Oniguruma's tables may be older than Unicode 16. Where text holds a character that only the newer tables know, returns true
// and a text of the same length, in which an older character of the same kind stands for it.
bool replace_new_characters(std::string_view text, std::string& out);
// Whether every new character is in [first, last] exactly if its stand-in is.
bool keeps_new_characters_together(uint32_t first, uint32_t last);

}  // namespace sfsdp::train::tokenizer
