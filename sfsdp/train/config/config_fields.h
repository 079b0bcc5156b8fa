// SPDX-License-Identifier: BSD-3-Clause
// The rows of config_fields.def as data: what config.cc reads files and flags with. For train/config*.cc only.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sfsdp/train/config/config.h"
#include "sfsdp/train/config/toml_reader.h"

namespace sfsdp::train {

// Which values a key may have, beyond its type.
struct Rule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_outside = false;
  bool high_is_outside = false;
  bool minus_one_too = false;
  std::vector<std::string> choices;  // of strings; empty: any
  // "1 or more", "linear, sqrt or cosine"; "" when everything goes.
  std::string text() const;
  bool allows(double value) const;
  bool allows(const std::string& value) const;
};

enum class KeyStatus : uint8_t { Used, Later, Inert };  // SFSDP_KEY, SFSDP_LATER, SFSDP_INERT

using Slot = std::variant<bool*, int64_t*, double*, std::string*, OptInt*, OptDouble*, OptString*, StringList*>;

struct Field {
  std::string section;  // "training"
  std::string key;      // "steps"
  KeyStatus status = KeyStatus::Used;
  Rule rule;
  std::string help;
  Slot (*slot)(JobConfig&) = nullptr;

  std::string path() const { return section + "." + key; }
  bool is_bool() const;
  std::string type_name() const;  // INT, FLOAT, TEXT, LIST or BOOL
};

struct SectionInfo {
  std::string path;
  std::string help;
};

// In the order of config_fields.def.
const std::vector<Field>& config_fields();
const std::vector<SectionInfo>& config_sections();
// By full path, also by the older path of a key that moved (training.seed is debug.seed); nullptr if there is none.
const Field* find_field(std::string_view path);
// The path to name in "did you mean": the same key in another section, else the closest spelling.
std::string nearest_path(std::string_view path);

// Checks type, rule and status, then stores. `where` is "configs/debug.toml:31:1" or "--training.steps".
//   throws: UserError
void assign(const Field& field, JobConfig& config, const TomlValue& value, const std::string& where);
// The same of a flag's text; "None" unsets an optional.
void assign_text(const Field& field, JobConfig& config, const std::string& text, const std::string& where);

// The value as TOML, e.g. "linear" in quotes; "" for an unset optional.
std::string literal(const Field& field, const JobConfig& config);

}  // namespace sfsdp::train
