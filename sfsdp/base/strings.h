// SPDX-License-Identifier: BSD-3-Clause
// Small text helpers: splitting, joining, strict number parsing, and "did you mean".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp {

// "a,b," by ',' -> "a", "b", "". An empty text is one empty piece.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// Without the blanks, tabs and line ends around it.
std::string_view trim(std::string_view text);

// The whole text must be the number: no blanks, no suffix, no overflow. 0x, inf and nan are no numbers here.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

// Shortest decimal that reads back as the same double, and always looks like a float: "0.0003", "1.0".
std::string shortest(double value);
// 1234567 -> "1,234,567"; the second form rounds to `decimals`: 1234.5 -> "1,234.50".
std::string with_commas(int64_t value);
std::string with_commas(double value, int decimals);

// In double quotes as JSON writes a string; TOML reads it too. Escapes quotes, backslashes and control characters; all
// else passes through, so the result is UTF-8 where `text` is.
std::string json_quoted(std::string_view text);
// "layers.*.wq.weight" of "layers.3.wq.weight": one text for all like layers.
std::string with_stars(const std::string& path);

// The candidate that `name` is a misspelling of, the first of equally close ones; "" where none is near: beyond a third of
// the letters a suggestion misleads. "" for a name above 128 letters: time and memory grow with the product of both.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);
// "; did you mean steps?", to end a message with; "" where no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// 16 digits.
std::string hex(uint64_t value);

}  // namespace sfsdp
