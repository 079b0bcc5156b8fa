// SPDX-License-Identifier: BSD-3-Clause
// The members of a tokenizer.json, each with its place in the file, so that what is not understood is refused by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/json.h"

namespace sfsdp::train::tokenizer {

inline constexpr int kMostDepth = 8;  // of sequences in sequences

// A value of a tokenizer.json, and where it stands: what is not understood is refused by that name.
class Field {
 public:
  Field(const JsonValue& value, std::string file, std::string path);

  const JsonValue& value() const { return *value_; }
  const std::string& path() const { return path_; }
  // "FILE: pre_tokenizer.type = ...", for messages.
  std::string where() const;
  //   throws: UserError "<where> = <value>\n  expected <expected>"
  [[noreturn]] void refuse(const std::string& expected) const;

  const std::string& text() const;
  bool flag() const;
  uint64_t whole(uint64_t most) const;
  std::vector<Field> items() const;
  const JsonObject& object() const;

  Field at(std::string_view key) const;                   // refuses a missing one
  std::optional<Field> find(std::string_view key) const;  // none where it is missing or null
  bool flag_or(std::string_view key, bool fallback) const;
  // The member `type`; all other members must be among `keys`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

 private:
  const JsonValue* value_;
  std::string file_, path_;
};

}  // namespace sfsdp::train::tokenizer
