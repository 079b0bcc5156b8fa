// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/attribute_kinds.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

// A bit for each alternative of Attr, in its order.
enum Kinds : uint32_t {
  kNone = 1,
  kFlag = 2,
  kInteger = 4,
  kReal = 8,
  kText = 16,
  kDType = 32,
  kIntegers = 64,
  kReals = 128,
  kFlags = 256,
  kTexts = 512,
  kNumber = kInteger | kReal,
  kAny = 1023
};
static_assert(std::variant_size_v<Attr> == 10);

constexpr std::array<std::string_view, 10> kNames = {
    "none",    "true or false",      "an integer",      "a real number",           "a name",
    "a dtype", "a list of integers", "a list of reals", "a list of true or false", "a list of names"};

std::string to_string(uint32_t kinds) {
  std::string text;
  if ((kinds & kNumber) == kNumber) {
    text = "a number";
    kinds -= kNumber;
  }
  for (size_t i = 0; i < kNames.size(); ++i)
    if ((kinds >> i & 1) != 0) text += concat(text.empty() ? "" : ", or ", kNames[i]);
  return text;
}

struct Row {
  std::vector<std::string> opcodes;
  uint32_t kinds;
};
using Rows = std::unordered_map<std::string_view, std::vector<Row>>;

const Rows& rows() {
  static const Rows kRows = [] {
    Rows all;
#define SFSDP_ATTRIBUTE(name, opcodes, kinds) all[name].push_back({split(opcodes, ' '), kinds});
#include "sfsdp/ir/attributes.def"
#undef SFSDP_ATTRIBUTE
    return all;
  }();
  return kRows;
}

// nullptr: no row of this name is for `op`.
const Row* row_for(const Op& op, const std::vector<Row>& candidates) {
  const std::string_view kind = is_start(op) ? collective_kind(op) : std::string_view(op.opcode);
  for (const Row& row : candidates)
    for (const std::string_view opcode : row.opcodes)
      if (opcode == "*" || opcode == kind || (opcode == "aten.*" && is_aten(op.opcode))) return &row;
  return nullptr;
}

}  // namespace

std::vector<Diagnostic> check_attribute_kinds(const Op& op) {
  std::vector<Diagnostic> found;
  for (const auto& [name, value] : op.attrs) {
    const auto known = rows().find(name);
    if (known == rows().end()) continue;
    const Row* row = row_for(op, known->second);
    if (row && (row->kinds >> value.index() & 1) != 0) continue;
    if (row) {
      found.push_back({.where = {},
                       .message = concat(name_of(op), " needs ", name, '='),
                       .detail = concat("expected ", to_string(row->kinds), ", got ", value)});
      continue;
    }
    std::string owners;
    for (const Row& other : known->second)
      for (const std::string& opcode : other.opcodes) owners += concat(owners.empty() ? "" : ", ", opcode);
    found.push_back({.where = {},
                     .message = concat(name_of(op), " has ", name, '=', value),
                     .detail = concat("expected no attribute of that name, which belongs to ", owners)});
  }
  return found;
}

}  // namespace sfsdp::ir
