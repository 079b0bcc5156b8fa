// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/strings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace sfsdp {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += separator;
    text += part;
  }
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

namespace {

// from_chars refuses a leading '+'; people write it.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text) { return parse_number<int64_t>(text); }

std::optional<double> parse_double(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string shortest(double value) {
  char buffer[64];
  for (int digits = 1; digits <= 17; ++digits) {  // 17 always suffice
    std::snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
    if (std::strtod(buffer, nullptr) == value) break;
  }
  const std::string text = buffer;
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

namespace {

// Puts a comma before every third digit of the run that ends at `end`.
void add_commas(std::string& text, size_t end) {
  const size_t first_digit = text.starts_with('-') ? 1 : 0;
  for (size_t at = end; at > first_digit + 3;) {
    at -= 3;
    text.insert(at, ",");
  }
}

}  // namespace

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  add_commas(text, text.size());
  return text;
}

std::string with_commas(double value, int decimals) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[400];  // the largest double has 309 digits before the point
  std::snprintf(buffer, sizeof(buffer), "%.*f", decimals, value);
  std::string text = buffer;
  add_commas(text, std::min(text.find('.'), text.size()));
  return text;
}

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {  // JSON allows 0x7f as it is, TOML does not
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(byte));
      quoted += escape;
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

namespace {

// Letters to insert, delete, replace, or swap with their neighbour (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    d[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 128;  // of a name that somebody types; a file may hold one of megabytes
  if (name.size() > kLongest) return "";
  size_t best = std::max<size_t>(1, name.size() / 3) + 1;
  std::string near;
  for (const std::string& candidate : candidates) {
    if (candidate.size() >= name.size() + best || name.size() >= candidate.size() + best) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    near = candidate;
  }
  return near;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest(name, candidates);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string with_stars(const std::string& path) {
  std::vector<std::string> parts = split(path, '.');
  for (std::string& part : parts)
    if (parse_int(part)) part = "*";
  return join(parts, ".");
}

}  // namespace sfsdp
