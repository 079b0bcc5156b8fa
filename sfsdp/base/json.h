// SPDX-License-Identifier: BSD-3-Clause
// Strict JSON for files we did not write: duplicate keys, deep nesting and huge documents are errors, not surprises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sfsdp {

struct JsonValue;
struct JsonNull {};
using JsonArray = std::vector<JsonValue>;
using JsonObject = std::vector<std::pair<std::string, JsonValue>>;  // in the file's order, keys unique

// Numbers keep how they were written: uint64_t without sign or fraction, int64_t with a minus (-0 too), else double.
struct JsonValue {
  std::variant<JsonNull, bool, uint64_t, int64_t, double, std::string, JsonArray, JsonObject> value;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  // The member of an object; null if there is none, or this is no object.
  const JsonValue* find(std::string_view key) const;
};

struct JsonLimits {
  int max_depth = 64;           // of nested objects and arrays
  size_t max_values = 4000000;  // of all kinds; about 64 bytes of memory each
};

bool is_utf8(std::string_view text);

// The one document of `text`. throws: UserError "<file>: ..." naming the first mistake.
JsonValue parse_json(std::string_view text, const std::string& file, const JsonLimits& limits = {});

// A regular file's bytes, at most max_bytes. throws: UserError naming the file.
std::string read_text_file(const std::string& path, size_t max_bytes);

// A number as a double; none: it is no number.
std::optional<double> as_real(const JsonValue& value);

// A short text for messages: 12, "silu" or an object.
std::string describe(const JsonValue& value);
// In quotes, control and non-ASCII bytes escaped, long texts cut: safe to print whatever a file holds.
std::string quote_safe(std::string_view text);

}  // namespace sfsdp
