// SPDX-License-Identifier: BSD-3-Clause
// Reads a TOML file into a flat list. The only file that includes toml++ is toml_reader.cc.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace sfsdp::train {

struct TomlTable {  // the entry is a [table] header
  bool operator==(const TomlTable&) const = default;
};
using TomlValue = std::variant<TomlTable, bool, int64_t, double, std::string, std::vector<std::string>>;

struct TomlEntry {
  std::string path;   // "training.steps"
  std::string where;  // "configs/debug.toml:31:1"
  TomlValue value;
};

// Entries in file order, each table before what it holds.
//   throws: UserError if the file cannot be read, is no TOML, or holds a value of another kind
std::vector<TomlEntry> read_toml(const std::string& path);
// The same of a text; `name` stands in for the file in messages.
std::vector<TomlEntry> parse_toml(const std::string& text, const std::string& name);

}  // namespace sfsdp::train
