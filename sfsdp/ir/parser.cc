// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/lexer.h"

namespace sfsdp::ir {
namespace {

using Kind = Token::Kind;

std::string described(const Token& token) {
  switch (token.kind) {
    case Kind::End: return "the end of the line";
    case Kind::Value: return concat('%', token.text);
    case Kind::String: return quote(token.text);
    default: return concat('\'', token.text, '\'');
  }
}

// The tokens of one line, read from left to right.
class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool at_end() const { return peek().kind == Kind::End; }
  bool sees(char punct, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::Punct && peek(ahead).text[0] == punct;
  }
  bool sees_word(std::string_view word) const { return peek().kind == Kind::Word && peek().text == word; }
  bool accept(char punct) {
    if (!sees(punct)) return false;
    ++at_;
    return true;
  }
  void expect(char punct, std::string_view purpose) {
    if (!accept(punct)) fail(concat('\'', punct, "' ", purpose));
  }
  void expect_word(std::string_view word) {
    if (!sees_word(word)) fail(concat('\'', word, '\''));
    next();
  }
  std::string word(std::string_view purpose) {
    if (peek().kind != Kind::Word) fail(purpose);
    return next().text;
  }
  // Items between commas up to `close`, one at least.
  template <class Item>
  void list(char close, std::string_view purpose, Item item) {
    do item();
    while (accept(','));
    expect(close, purpose);
  }
  void expect_end() const {
    if (!at_end()) fail("the end of the line");
  }
  [[noreturn]] void fail(std::string_view expected) const { fail_at(peek(), expected); }
  [[noreturn]] static void fail_at(const Token& token, std::string_view expected) {
    throw SyntaxError{token.column, concat("cannot read this line from ", described(token), " on"),
                      concat("expected ", expected, ", got ", described(token))};
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

int64_t parse_integer(Cursor& cursor, std::string_view purpose) {
  const auto number = cursor.peek().kind == Kind::Number ? parse_int(cursor.peek().text) : std::nullopt;
  if (!number) cursor.fail(purpose);
  cursor.next();
  return *number;
}

// ---- types ----------------------------------------------------------------------------------------------------------

Dim parse_dim(Cursor& cursor) {
  Dim dim;
  dim.size = parse_integer(cursor, "the size of a dimension");
  while (cursor.accept('/')) {
    dim.split.push_back(cursor.word("a mesh axis after '/'"));
    if (!cursor.accept(':')) continue;
    dim.blocks.resize(dim.split.size() - 1, 1);
    dim.blocks.push_back(parse_integer(cursor, "a number of blocks after ':'"));
  }
  if (!dim.blocks.empty()) dim.blocks.resize(dim.split.size(), 1);
  dim.padded = cursor.accept('~');
  return dim;
}

std::vector<AxisPlacement> parse_placements(Cursor& cursor) {
  std::vector<AxisPlacement> placements;
  while (cursor.peek().kind == Kind::Word && cursor.sees('(', 1)) {
    const std::string_view word = cursor.peek().text;
    const auto reduce = parse_reduce_op(word);
    const int64_t rows = word.starts_with("rows") ? parse_int(word.substr(4)).value_or(-1) : -1;
    if (!reduce && word != "own" && rows < 0) cursor.fail("own, sum, max, min or rows with a dimension");
    AxisPlacement& placement = placements.emplace_back(reduce      ? Placement::partial(*reduce)
                                                       : rows >= 0 ? Placement::rows(rows)
                                                                   : Placement::own());
    cursor.next();
    cursor.expect('(', "before the axes");
    cursor.list(')', "after the axes", [&] { placement.axes.push_back(cursor.word("a mesh axis")); });
  }
  return placements;
}

Type parse_type(Cursor& cursor) {
  Type type;
  if (cursor.sees_word("token")) {
    cursor.next();
    type.kind = Type::Kind::Token;
    return type;
  }
  if (cursor.sees_word("async")) {
    cursor.next();
    type.kind = Type::Kind::Async;
  }
  const auto dtype = cursor.peek().kind == Kind::Word ? parse_dtype(cursor.peek().text) : std::nullopt;
  if (!dtype) cursor.fail("a type such as f32[8, 4], async f32[8, 4] or token");
  type.dtype = *dtype;
  cursor.next();
  cursor.expect('[', "before the dimensions");
  if (!cursor.accept(']')) cursor.list(']', "after the dimensions", [&] { type.dims.push_back(parse_dim(cursor)); });
  if (cursor.accept('{'))
    cursor.list('}', "after the strides", [&] { type.strides.push_back(parse_integer(cursor, "a stride")); });
  type.placements = parse_placements(cursor);
  return type;
}

// ---- attributes -----------------------------------------------------------------------------------------------------

Attr parse_number(Cursor& cursor) {
  const std::string& text = cursor.peek().text;
  if (text.find_first_not_of("-0123456789") == std::string::npos)
    return parse_integer(cursor, "an integer of at most 64 bits");
  const auto number = text == "-inf" ? -std::numeric_limits<double>::infinity() : parse_double(text);
  if (!number) cursor.fail("a number");
  cursor.next();
  return *number;
}

Attr parse_scalar(Cursor& cursor) {
  const Token& token = cursor.peek();
  if (token.kind == Kind::Number) return parse_number(cursor);
  if (token.kind != Kind::Word && token.kind != Kind::String) cursor.fail("a value");
  cursor.next();
  if (token.kind == Kind::Word) {
    if (token.text == "true" || token.text == "false") return token.text == "true";
    if (token.text == "none") return std::monostate();
    if (token.text == "inf") return std::numeric_limits<double>::infinity();
    if (token.text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (const auto dtype = parse_dtype(token.text)) return *dtype;
  }
  return token.text;
}

template <class T>
Attr parse_items(Cursor& cursor, const Attr& first) {
  std::vector<T> items{std::get<T>(first)};
  while (cursor.accept(',')) {
    const Token& token = cursor.peek();
    const Attr item = parse_scalar(cursor);
    if (!std::holds_alternative<T>(item)) Cursor::fail_at(token, "items of one kind in a list");
    items.push_back(std::get<T>(item));
  }
  cursor.expect(']', "after the list");
  return items;
}

Attr parse_empty_list(Cursor& cursor) {
  const std::pair<std::string_view, Attr> kinds[] = {{"i", std::vector<int64_t>()},
                                                     {"f", std::vector<double>()},
                                                     {"b", std::vector<bool>()},
                                                     {"s", std::vector<std::string>()}};
  for (const auto& [kind, list] : kinds) {
    if (!cursor.sees_word(kind)) continue;
    cursor.next();
    return list;
  }
  cursor.fail("the kind of an empty list: []i, []f, []b or []s");
}

Attr parse_attr(Cursor& cursor) {
  if (!cursor.accept('[')) return parse_scalar(cursor);
  if (cursor.accept(']')) return parse_empty_list(cursor);
  const Token& token = cursor.peek();
  const Attr first = parse_scalar(cursor);
  if (std::holds_alternative<int64_t>(first)) return parse_items<int64_t>(cursor, first);
  if (std::holds_alternative<double>(first)) return parse_items<double>(cursor, first);
  if (std::holds_alternative<bool>(first)) return parse_items<bool>(cursor, first);
  if (std::holds_alternative<std::string>(first)) return parse_items<std::string>(cursor, first);
  Cursor::fail_at(token, "an integer, a float, a bool or a string in a list");
}

std::optional<Section> to_section(std::string_view word) {
  for (const Section section : {Section::Init, Section::Fwd, Section::Loss, Section::Bwd, Section::Clip, Section::Opt})
    if (to_string(section) == word) return section;
  return std::nullopt;
}

// ---- the graph ------------------------------------------------------------------------------------------------------

class Parser {
 public:
  explicit Parser(std::string file_name) : file_(std::move(file_name)) {}

  ParseResult parse(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const size_t end = text.find('\n');
      parse_line(text.substr(0, end));
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    if (!seen_header_) report({1, "no graph in this text", "expected a line: graph mesh [axis=size] view global"});
    return std::move(result_);
  }

 private:
  void report(const SyntaxError& error) {
    result_.diagnostics.push_back({{file_, std::max(line_, 1), error.column}, error.message, error.detail});
  }

  void parse_line(std::string_view line) {
    defined_here_.clear();
    try {
      Cursor cursor(lex_line(line));
      if (!cursor.at_end()) parse_statement(cursor);
      return;
    } catch (const SyntaxError& error) {
      report(error);
      seen_header_ = true;            // a broken header is one mistake, not one per line
    } catch (const ReadsPoisoned&) {  // which is reported where it was defined
    }
    poisoned_.insert(defined_here_.begin(), defined_here_.end());
  }

  void parse_statement(Cursor& cursor) {
    if (!seen_header_) return parse_header(cursor);
    const Token& first = cursor.peek();
    if (first.kind == Kind::Word) {
      const auto section = to_section(first.text);
      if (section && cursor.sees(':', 1)) return parse_section(cursor, *section);
      if (first.text == "return") return parse_return(cursor);
      if (first.text == "carry") return parse_carry(cursor);
    }
    parse_op(cursor);
  }

  void parse_header(Cursor& cursor) {
    cursor.expect_word("graph");
    cursor.expect_word("mesh");
    cursor.expect('[', "before the mesh axes");
    if (!cursor.accept(']'))
      cursor.list(']', "after the mesh axes", [&] {
        std::string name = cursor.word("the name of a mesh axis");
        cursor.expect('=', "between a mesh axis and its size");
        result_.graph.mesh.push_back({std::move(name), parse_integer(cursor, "the size of a mesh axis")});
      });
    cursor.expect_word("view");
    const std::string view = cursor.sees_word("global") || cursor.sees_word("local") ? cursor.next().text : "";
    if (view.empty()) cursor.fail("global or local");
    result_.graph.view = view == "global" ? Graph::View::Global : Graph::View::Local;
    if (cursor.sees_word("micro_batches")) {
      cursor.next();
      cursor.expect('=', "between micro_batches and their number");
      result_.graph.micro_batches = parse_integer(cursor, "how often forward and backward run");
    }
    cursor.expect_end();
    seen_header_ = true;
  }

  void parse_section(Cursor& cursor, Section section) {
    cursor.next();
    cursor.expect(':', "after a section");
    cursor.expect_end();
    section_ = section;
  }

  void parse_return(Cursor& cursor) {
    const int column = cursor.next().column;
    if (seen_return_) throw SyntaxError{column, "a second return", "expected one line with all outputs"};
    seen_return_ = true;
    do result_.graph.outputs.push_back(parse_use(cursor));
    while (cursor.accept(','));
    cursor.expect_end();
  }

  void parse_carry(Cursor& cursor) {
    cursor.next();
    Value* const current = parse_use(cursor);
    cursor.expect('=', "between a carried value and the next step's");
    Value* const next = parse_use(cursor);
    cursor.expect_end();
    result_.graph.carries.push_back({current, next});
  }

  // Thrown when a line reads what a line above failed to define: that mistake is reported there.
  struct ReadsPoisoned {};

  Value* parse_use(Cursor& cursor) {
    const Token token = cursor.peek();
    if (token.kind != Kind::Value) cursor.fail("a value such as %x");
    if (Value* value = result_.graph.find_value(token.text)) {
      cursor.next();
      return value;
    }
    if (poisoned_.contains(token.text)) throw ReadsPoisoned();
    std::vector<std::string> names;
    for (const auto& op : result_.graph.ops())
      for (const auto& result : op->results()) names.push_back(result->name());
    const std::string near = nearest(token.text, names);
    throw SyntaxError{
        token.column, concat('%', token.text, " is read, but no line above defines it"),
        near.empty() ? "move its definition up, or correct the name" : concat("did you mean %", near, "?")};
  }

  Value* parse_operand(Cursor& cursor) {
    if (!cursor.sees_word("none")) return parse_use(cursor);
    cursor.next();
    return nullptr;
  }

  std::vector<std::string> parse_definitions(Cursor& cursor) {
    std::vector<std::string> names;
    if (cursor.peek().kind != Kind::Value) return names;
    do {
      const Token token = cursor.peek();
      if (token.kind != Kind::Value) cursor.fail("a value such as %x");
      if (result_.graph.find_value(token.text) || std::ranges::find(names, token.text) != names.end())
        throw SyntaxError{token.column, concat('%', token.text, " is defined twice"), "expected unique names"};
      names.push_back(cursor.next().text);
      defined_here_.push_back(names.back());
    } while (cursor.accept(','));
    cursor.expect('=', "after the results");
    return names;
  }

  struct Operands {
    std::vector<Value*> values;
    std::vector<Op::OperandList> lists;
  };

  void parse_operand_list(Cursor& cursor, Operands& operands) {
    const int first = static_cast<int>(operands.values.size());
    if (!cursor.accept(']'))
      cursor.list(']', "after a list of operands", [&] { operands.values.push_back(parse_operand(cursor)); });
    operands.lists.push_back({.first = first, .count = static_cast<int>(operands.values.size()) - first});
  }

  Operands parse_operands(Cursor& cursor) {
    Operands operands;
    const auto none_is_operand = [&] { return cursor.sees_word("none") && !cursor.sees('=', 1); };
    if (cursor.peek().kind != Kind::Value && !cursor.sees('[') && !none_is_operand()) return operands;
    do {
      if (cursor.accept('['))
        parse_operand_list(cursor, operands);
      else
        operands.values.push_back(parse_operand(cursor));
    } while (cursor.accept(','));
    return operands;
  }

  struct Attributes {
    Attrs values;
    const Op* bwd_of = nullptr;
  };

  Attributes parse_attributes(Cursor& cursor) {
    Attributes attributes;
    while (cursor.peek().kind == Kind::Word && cursor.sees('=', 1)) {
      const Token key = cursor.next();
      cursor.expect('=', "after an attribute");
      if (key.text == "bwd_of") {
        attributes.bwd_of = parse_use(cursor)->producer();
        continue;
      }
      if (!attributes.values.emplace(key.text, parse_attr(cursor)).second)
        throw SyntaxError{key.column, concat("attribute ", key.text, " is given twice"), "keep one of them"};
    }
    return attributes;
  }

  std::vector<Type> parse_types(Cursor& cursor) {
    std::vector<Type> types;
    if (!cursor.accept(':')) return types;
    do types.push_back(parse_type(cursor));
    while (cursor.accept(','));
    return types;
  }

  std::string parse_module_path(Cursor& cursor) {
    if (!cursor.sees_word("at")) return "";
    cursor.next();
    if (cursor.peek().kind != Kind::Word && cursor.peek().kind != Kind::String) cursor.fail("a module path after 'at'");
    return cursor.next().text;
  }

  void parse_op(Cursor& cursor) {
    const int column = cursor.peek().column;
    const std::vector<std::string> names = parse_definitions(cursor);
    std::string opcode = cursor.word("an opcode");
    Operands operands = parse_operands(cursor);
    Attributes attributes = parse_attributes(cursor);
    const int types_column = cursor.peek().column;
    std::vector<Type> types = parse_types(cursor);
    std::string module_path = parse_module_path(cursor);
    cursor.expect_end();
    if (types.size() != names.size())
      throw SyntaxError{types_column, concat(opcode, " has ", names.size(), " results, but ", types.size(), " types"),
                        "expected one type per result after ':'"};
    std::vector<Graph::NewResult> results;
    for (size_t i = 0; i < names.size(); ++i) results.push_back({names[i], std::move(types[i])});
    Op* const op = result_.graph.add(opcode, std::move(operands.values), std::move(results));
    op->operand_lists = std::move(operands.lists);
    op->attrs = std::move(attributes.values);
    op->bwd_of = attributes.bwd_of;
    op->section = section_;
    op->module_path = std::move(module_path);
    result_.locations.emplace(op, Location{file_, line_, column});
  }

  std::string file_;
  ParseResult result_;
  int line_ = 0;
  Section section_ = Section::Init;
  bool seen_header_ = false;
  bool seen_return_ = false;
  std::vector<std::string> defined_here_;  // by the line being read
  std::set<std::string> poisoned_;
};

}  // namespace

ParseResult parse(std::string_view text, std::string file_name) { return Parser(std::move(file_name)).parse(text); }

Graph parse_or_throw(std::string_view text, std::string file_name) {
  ParseResult result = parse(text, std::move(file_name));
  if (!result.ok()) throw UserError(to_string(result.diagnostics));
  return std::move(result.graph);
}

}  // namespace sfsdp::ir
