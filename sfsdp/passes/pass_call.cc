// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_call.h"

#include <algorithm>
#include <charconv>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/passes/registry.h"

namespace sfsdp::passes {
namespace {

using ir::Token;

[[noreturn]] void fail(std::string_view text, const std::string& message, const std::string& detail) {
  throw UserError(concat("passes \"", text, "\": ", message, "\n  ", detail));
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest(name, candidates);
  if (!near.empty()) return concat("did you mean ", near, '?');
  std::string text = "expected one of:";
  for (const std::string& candidate : candidates) text += " " + candidate;
  return candidates.empty() ? "it has no options" : text;
}

const PassInfo& known_pass(std::string_view name, std::string_view text) {
  if (const PassInfo* info = find_pass(name)) return *info;
  std::vector<std::string> names;
  for (const PassInfo* pass : all_passes()) names.push_back(pass->name);
  fail(text, concat("unknown pass ", name), suggestion(name, names));
}

const PassOption& known_option(const PassInfo& info, const std::string& name, std::string_view text) {
  const auto option = std::ranges::find(info.options, name, &PassOption::name);
  if (option != info.options.end()) return *option;
  std::vector<std::string> names;
  for (const PassOption& row : info.options) names.push_back(row.name);
  fail(text, concat(info.name, " has no option ", name), suggestion(name, names));
}

bool in_range(const ir::Attr& value, const PassOption& option) {
  if (value.index() != option.fallback.index()) return false;
  if (const auto* text = std::get_if<std::string>(&value))
    return option.words.empty() || std::ranges::find(option.words, *text) != option.words.end();
  double number = option.min;
  if (const auto* integer = std::get_if<int64_t>(&value)) number = static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) number = *real;
  return number >= option.min && number <= option.max;
}

[[noreturn]] void fail_value(const PassOption& option, const std::string& got, std::string_view text) {
  if (!option.words.empty()) fail(text, concat(option.name, '=', got), "expected one of: " + join(option.words, " "));
  const bool number =
      std::holds_alternative<int64_t>(option.fallback) || std::holds_alternative<double>(option.fallback);
  const std::string range = number ? concat(" in [", option.min, ", ", option.max, ']') : "";
  fail(text, concat(option.name, '=', got), concat("expected a value like ", option.fallback, range));
}

ir::Attr parse_value(const Token& token, const PassOption& option, std::string_view text) {
  ir::Attr value;
  const char* const first = token.text.data();
  const char* const last = first + token.text.size();
  if (std::holds_alternative<bool>(option.fallback)) {
    if (token.text == "true" || token.text == "false") value = token.text == "true";
  } else if (std::holds_alternative<std::string>(option.fallback)) {
    if (token.kind == Token::Kind::Word || token.kind == Token::Kind::String) value = token.text;
  } else if (std::holds_alternative<int64_t>(option.fallback)) {
    int64_t number = 0;
    if (std::from_chars(first, last, number).ptr == last) value = number;
  } else {
    double number = 0;
    if (std::from_chars(first, last, number).ptr == last) value = number;
  }
  if (!in_range(value, option)) fail_value(option, token.text, text);
  return value;
}

PassCall defaults(const PassInfo& info) {
  PassCall call{.info = &info, .options = {}};
  for (const PassOption& option : info.options) call.options.emplace(option.name, option.fallback);
  return call;
}

class CallParser {
 public:
  explicit CallParser(std::string_view text) : text_(text), tokens_(lex(text)) {}

  std::vector<PassCall> parse() {
    std::vector<PassCall> calls;
    if (peek().kind == Token::Kind::End) return calls;
    do calls.push_back(parse_call());
    while (accept(","));
    if (peek().kind != Token::Kind::End)
      fail(text_, concat("cannot read '", peek().text, '\''), "expected name option=value, name …");
    return calls;
  }

 private:
  static std::vector<Token> lex(std::string_view text) {
    try {
      return ir::lex_line(text);
    } catch (const ir::SyntaxError& error) {
      fail(text, error.message, error.detail);
    }
  }

  const Token& peek() const { return tokens_[at_]; }
  bool accept(std::string_view punct) {
    if (peek().kind != Token::Kind::Punct || peek().text != punct) return false;
    ++at_;
    return true;
  }
  std::string word(std::string_view expected) {
    if (peek().kind != Token::Kind::Word)
      fail(text_, concat("got '", peek().text, '\''), concat("expected ", expected));
    return tokens_[at_++].text;
  }

  PassCall parse_call() {
    const std::string name = word("the name of a pass");
    PassCall call = defaults(known_pass(name, text_));
    while (peek().kind == Token::Kind::Word) parse_option(call);
    return call;
  }

  void parse_option(PassCall& call) {
    const std::string name = word("an option");
    const PassOption& option = known_option(*call.info, name, text_);
    if (!accept("=")) fail(text_, concat("no value for ", name), concat("expected ", name, '=', option.fallback));
    call.options[name] = parse_value(peek(), option, text_);
    ++at_;
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// "a and b"
std::string needed_by(const std::vector<PassCall>& calls, const std::string& name) {
  std::vector<std::string> needing;
  for (const PassCall& call : calls)
    if (std::ranges::find(call.info->needs, name) != call.info->needs.end()) needing.push_back(call.info->name);
  return join(needing, " and ");
}

}  // namespace

PassCall make_call(std::string_view name, const OptionValues& options) {
  PassCall call = defaults(known_pass(name, name));
  for (const auto& [option_name, value] : options) {
    const PassOption& option = known_option(*call.info, option_name, name);
    if (!in_range(value, option)) fail_value(option, concat(value), name);
    call.options[option_name] = value;
  }
  return call;
}

std::vector<PassCall> parse_passes(std::string_view text) { return CallParser(text).parse(); }

std::string to_string(const PassCall& call) {
  std::string text = call.info->name;
  for (const auto& [name, value] : call.options) text += concat(' ', name, '=', value);
  return text;
}

std::vector<PassCall> without(std::vector<PassCall> calls, const std::vector<std::string>& disabled) {
  std::vector<std::string> names;
  for (const std::string& text : disabled) names.emplace_back(trim(text));
  for (const std::string& name : names) known_pass(name, join(names, ","));
  std::erase_if(calls, [&](const PassCall& call) { return std::ranges::find(names, call.info->name) != names.end(); });
  for (const std::string& name : names)
    if (const std::string needing = needed_by(calls, name); !needing.empty())
      throw UserError(concat("pass ", name, " cannot be disabled alone: ", needing,
                             " can do nothing without it\n  expected ", needing, " disabled too"));
  return calls;
}

}  // namespace sfsdp::passes
