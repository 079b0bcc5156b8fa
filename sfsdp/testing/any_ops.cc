// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/any_ops.h"

#include <algorithm>
#include <functional>
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

namespace {

const char* const kGiven =
    "graph mesh [one=1] view local\n  %vec = param name=vec : f32[4]\n  %x = input name=x : f32[4, 4]\n"
    "  %y = input name=y : f32[4, 4]\n  %ids = input name=ids : i64[4]\n  %no = input name=no : b1[4, 4]\n";

// The lines of a template, whose result is %name, "v" and a number; operand() names what it reads.
std::string lines_of(std::string lines, const std::string& name, const std::function<std::string()>& operand) {
  for (const char* letter : {"%A", "%B", "%C"}) lines = replaced(lines, letter, operand());
  lines = replaced(lines, "%$", concat('%', name, '.'));
  lines = replaced(lines, "=$", concat('=', name.substr(1)));
  lines = replaced(lines, concat('%', name, ". "), concat('%', name, ' '));
  lines = replaced(lines, concat('%', name, ".,"), concat('%', name, ','));
  return concat("  ", replaced(lines, "\n", "\n  "), '\n');
}

}  // namespace

ir::Graph program_of(const std::vector<std::string>& templates) {
  std::string text = concat(kGiven, "fwd:\n"), last = "%x";
  for (size_t i = 0; i < templates.size(); ++i) {
    const char* const roots[] = {"%x", "%y", "%x"};
    size_t letter = 0;
    text += lines_of(templates[i], concat("v", i), [&] { return i == 0 ? std::string(roots[letter++]) : last; });
    last = concat("%v", i);
  }
  return ir::parse_or_throw(concat(text, "  return ", last, '\n'), "program_of");
}

ir::Graph any_ops_program(uint64_t seed, const std::vector<std::string>& from) {
  std::mt19937_64 engine(seed);
  const auto below = [&](size_t end) { return static_cast<size_t>(engine() % end); };
  std::vector<std::string> values = {"x", "y"};
  std::string text = kGiven;
  for (const char* section : {"fwd", "bwd"}) {
    text += concat(section, ":\n");
    for (size_t left = 6 + below(12); left > 0; --left) {
      const std::string name = concat("v", values.size());
      // The last values, so that what is made is read, and for the last time.
      text += lines_of(from[below(from.size())], name, [&] {
        return concat('%', values[values.size() - 1 - below(std::min<size_t>(3, values.size()))]);
      });
      values.push_back(name);
    }
  }
  return ir::parse_or_throw(concat(text, "  return %", values.back(), '\n'), "any_ops");
}

}  // namespace sfsdp::testing
