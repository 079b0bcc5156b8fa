// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/toml_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/toml_text.h"

namespace sfsdp::train {

namespace {

struct Placed {
  TomlEntry entry;
  toml::source_position position;
};

class Flattener {
 public:
  explicit Flattener(const std::string& file) : file_(file) {}

  void add_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix + std::string(key.str());
      // A value is placed where its key stands; a table written only as [a.b] has no key of its own.
      const toml::source_position position = key.source().begin.line > 0 ? key.source().begin : node.source().begin;
      const std::string where = concat(file_, ':', position.line, ':', position.column);
      placed_.push_back({{path, where, value_of(node, path, where)}, position});
      if (const toml::table* inner = node.as_table()) add_table(*inner, path + ".");
    }
  }

  std::vector<TomlEntry> entries() && {
    // toml++ keeps tables sorted by name. A stable sort by place keeps a table before its keys.
    std::stable_sort(placed_.begin(), placed_.end(), [](const Placed& a, const Placed& b) {
      return std::tie(a.position.line, a.position.column) < std::tie(b.position.line, b.position.column);
    });
    std::vector<TomlEntry> entries;
    for (Placed& placed : placed_) entries.push_back(std::move(placed.entry));
    return entries;
  }

 private:
  static TomlValue value_of(const toml::node& node, const std::string& path, const std::string& where) {
    if (node.is_table()) return TomlTable{};
    if (const auto* value = node.as_boolean()) return value->get();
    if (const auto* value = node.as_integer()) return value->get();
    if (const auto* value = node.as_floating_point()) return value->get();
    if (const auto* value = node.as_string()) return value->get();
    std::vector<std::string> list;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const auto text = element.value_exact<std::string>();
        if (!text)
          throw UserError(concat(where, ": ", path, " holds something else than strings\n",
                                 "  expected a list of strings; try ", path, " = [\"a\", \"b\"]"));
        list.push_back(*text);
      }
      return list;
    }
    throw UserError(concat(where, ": ", path, " is a date or time\n",
                           "  expected a string, number, boolean or list of strings; put it in quotes"));
  }

  const std::string& file_;
  std::vector<Placed> placed_;
};

}  // namespace

std::vector<TomlEntry> parse_toml(const std::string& text, const std::string& name) {
  check_toml_characters(text, name);
  try {
    const toml::table table = toml::parse(std::string_view(text), name);
    Flattener flattener(name);
    flattener.add_table(table, "");
    return std::move(flattener).entries();
  } catch (const toml::parse_error& error) {
    const auto position = error.source().begin;
    throw UserError(concat(name, ':', position.line, ':', position.column, ": ", error.description(),
                           "\n  expected TOML: key = value lines under [section] headers; strings in quotes"));
  }
}

std::vector<TomlEntry> read_toml(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;  // a folder opens as a file does, and reads as an empty one
  if (!file || std::filesystem::is_directory(path, ignored))
    throw UserError(concat(path, ": cannot read this file\n",
                           "  expected a TOML file; check --job.config_file and the folder you start in"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_toml(text, path);
}

}  // namespace sfsdp::train
