// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/any_ops.h"

#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::testing {
namespace {

// Each name takes the place of @ in the line.
struct Family {
  const char* names;
  const char* line;
};

constexpr Family kFamilies[] = {
#include "sfsdp/testing/any_ops.def"
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

const std::vector<std::string>& op_templates() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> lines;
    for (const Family& family : kFamilies)
      for (const std::string& name : split(family.names, ' ')) lines.push_back(replaced(family.line, "@", name));
    return lines;
  }();
  return all;
}

ir::Graph any_ops_program(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto below = [&](size_t end) { return static_cast<size_t>(engine() % end); };
  std::vector<std::string> values = {"x", "y"};
  std::string text =
      "graph mesh [one=1] view local\n  %vec = param name=vec : f32[4]\n  %x = input name=x : f32[4, 4]\n"
      "  %y = input name=y : f32[4, 4]\n  %ids = input name=ids : i64[4]\n  %no = input name=no : b1[4, 4]\n";
  for (const char* section : {"fwd", "bwd"}) {
    text += concat(section, ":\n");
    for (size_t left = 6 + below(12); left > 0; --left) {
      const std::string name = concat("v", values.size());
      std::string lines = op_templates()[below(op_templates().size())];
      // The last values, so that what is made is read, and for the last time.
      for (const char* operand : {"%A", "%B", "%C"})
        lines = replaced(lines, operand,
                         concat('%', values[values.size() - 1 - below(std::min<size_t>(3, values.size()))]));
      lines = replaced(lines, "%$", concat('%', name, '.'));
      lines = replaced(lines, concat('%', name, ". "), concat('%', name, ' '));
      lines = replaced(lines, concat('%', name, ".,"), concat('%', name, ','));
      text += concat("  ", replaced(lines, "\n", "\n  "), '\n');
      values.push_back(name);
    }
  }
  return ir::parse_or_throw(concat(text, "  return %", values.back(), '\n'), "any_ops");
}

}  // namespace sfsdp::testing
