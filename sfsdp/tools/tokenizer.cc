// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp tokenizer encode | decode`: JSON lines from standard input to standard output.
#include <cstdint>
#include <iostream>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/tokenizer.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::tools {
namespace {

using train::SpecialTokens;
using train::Tokenizer;

std::string encode_line(const Tokenizer& tokenizer, const JsonValue& json, const std::string& where, bool special) {
  const JsonValue* text = json.find("text");
  if (!text || !text->as<std::string>())
    throw UserError(concat(where, ": ", describe(json), R"(
  expected {"text": "..."})"));
  const auto ids = tokenizer.encode(*text->as<std::string>(), special ? SpecialTokens::Add : SpecialTokens::Leave);
  std::string line = "{\"ids\": [";
  for (size_t i = 0; i < ids.size(); ++i) line.append(i == 0 ? "" : ", ").append(std::to_string(ids[i]));
  return line + "]}\n";
}

std::string decode_line(const Tokenizer& tokenizer, const JsonValue& json, const std::string& where, bool special) {
  const JsonValue* list = json.find("ids");
  if (!list || !list->as<JsonArray>())
    throw UserError(concat(where, ": ", describe(json), R"(
  expected {"ids": [...]})"));
  std::vector<int32_t> ids;
  for (const JsonValue& item : *list->as<JsonArray>()) {
    const auto* number = item.as<uint64_t>();
    if (!number || *number >= static_cast<uint64_t>(tokenizer.vocab_size()))
      throw UserError(
          concat(where, ": id ", describe(item), "\n  expected a whole number below ", tokenizer.vocab_size()));
    ids.push_back(static_cast<int32_t>(*number));
  }
  std::string text;
  try {
    text = tokenizer.decode(ids, special ? SpecialTokens::Leave : SpecialTokens::Skip);
  } catch (const UserError& error) {
    throw UserError(concat(where, ": ", error.what()));
  }
  return "{\"text\": " + json_quoted(text) + "}\n";
}

}  // namespace

int convert_lines(const Tokenizer& tokenizer, bool encodes, bool special, std::istream& in, std::ostream& out) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line == "\r") continue;
    const std::string where = concat("standard input:", number);
    train::replace_invalid_utf8(line, line);
    const JsonValue json = parse_json(line, where);
    out << (encodes ? encode_line : decode_line)(tokenizer, json, where, special);
    if (!out.flush()) throw UserError("standard output cannot be written\n  expected a reader and space");
  }
  return 0;
}

int run_tokenizer(const Request& request, std::ostream& out, std::ostream& /*err*/) {
  const std::vector<std::string>& operands = request.own.operands;
  if (operands.size() != 2 || (operands[0] != "encode" && operands[0] != "decode"))
    throw UserError(concat(operands.empty() ? "no direction" : concat("sfsdp tokenizer ", operands[0]),
                           "\n  expected sfsdp tokenizer encode TOKENIZER.json, or decode"));
  return convert_lines(Tokenizer::load(operands[1]), operands[0] == "encode", request.has("special"), std::cin, out);
}

}  // namespace sfsdp::tools
