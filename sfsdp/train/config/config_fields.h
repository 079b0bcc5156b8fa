// SPDX-License-Identifier: BSD-3-Clause
// The rows of config_fields.def and config_inert.def as data: what config.cc reads files and flags with. For train/config*.cc only.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

using Slot = std::variant<bool*, int64_t*, double*, std::string*, OptInt*, OptDouble*, OptString*, StringList*>;

struct Field {
  std::string section;  // "training"
  std::string key;      // "steps"
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

// A key of TorchTitan's that does nothing here: a row of config_inert.def.
struct InertKey {
  std::string section, key;
  std::string type;           // INT, FLOAT, TEXT, LIST or BOOL
  std::string default_value;  // as TOML spells it; "": unset
  std::string why;
  bool is_later = false;    // SFSDP_LATER
  std::string always = {};  // SFSDP_ALWAYS: the value that holds, and those that are accepted beside it
  std::vector<std::string> accepted = {};

  std::string path() const { return section + "." + key; }
};

// In the order of config_fields.def and config_inert.def.
const std::vector<Field>& config_fields();
const std::vector<InertKey>& inert_keys();
const std::vector<SectionInfo>& config_sections();  // of keys that do something
// By full path, also by the older path of a key that moved (training.seed is debug.seed); nullptr if there is none.
const Field* find_field(std::string_view path);
const InertKey* find_inert(std::string_view path);
// Older path and path of each key that moved.
std::span<const std::pair<std::string_view, std::string_view>> moved_keys();

// Checks type and rule, then stores. `name` is what the user typed: "configs/debug.toml:31:1: training.steps" or
// "--training.steps".
//   throws: UserError
void assign(const Field& field, JobConfig& config, const TomlValue& value, const std::string& name);
// The same of a flag's text; "None" unsets an optional.
void assign_text(const Field& field, JobConfig& config, const std::string& text, const std::string& name);
//   returns: what to note, where another value than the one given holds; "" else
//   throws: UserError that says why, if the value is not accepted: mostly, if it is not the default
std::string check_inert(const InertKey& key, const TomlValue& value, const std::string& name);
std::string check_inert_text(const InertKey& key, const std::string& text, const std::string& name);

// The value as TOML, e.g. "linear" in quotes; "" for an unset optional.
std::string literal(const Field& field, const JobConfig& config);

}  // namespace sfsdp::train
