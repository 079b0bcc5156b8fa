// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/printer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <ostream>
#include <sstream>

#include "sfsdp/ir/lexer.h"

namespace sfsdp::ir {
namespace {

// Shortest digits that read back as the same double; never to be taken for an integer.
std::string to_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string to_text(int64_t number) { return std::to_string(number); }
std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(const std::string& text) { return quote_if_needed(text); }

// An empty list says of what, or it would read back as a list of another kind.
template <class T>
void print_list(std::ostream& out, const std::vector<T>& items, char kind_if_empty) {
  if (items.empty()) {
    out << "[]" << kind_if_empty;
    return;
  }
  const char* separator = "[";
  for (const auto& item : items) {
    out << separator << to_text(T(item));
    separator = ", ";
  }
  out << ']';
}

struct AttrPrinter {
  std::ostream& out;

  void operator()(std::monostate) const { out << "none"; }
  void operator()(bool value) const { out << to_text(value); }
  void operator()(int64_t value) const { out << value; }
  void operator()(double value) const { out << to_text(value); }
  void operator()(const std::string& value) const { out << to_text(value); }
  void operator()(DType value) const { out << to_string(value); }
  void operator()(const std::vector<int64_t>& values) const { print_list(out, values, 'i'); }
  void operator()(const std::vector<double>& values) const { print_list(out, values, 'f'); }
  void operator()(const std::vector<std::string>& values) const { print_list(out, values, 's'); }
  void operator()(const std::vector<bool>& values) const { print_list(out, values, 'b'); }
};

void print_value(std::ostream& out, const Value* value) {
  if (value)
    out << '%' << value->name();
  else
    out << "none";
}

template <class Values>
void print_values(std::ostream& out, const Values& values) {
  const char* separator = "";
  for (const auto& value : values) {
    out << separator;
    print_value(out, &*value);
    separator = ", ";
  }
}

void print_operands(std::ostream& out, const Op& op) {
  const char* separator = " ";
  size_t next = 0;
  const auto print_until = [&](size_t end) {
    for (; next < end; ++next) {
      out << separator;
      print_value(out, op.operands[next]);
      separator = ", ";
    }
  };
  for (const Op::OperandList& list : op.operand_lists) {
    print_until(static_cast<size_t>(list.first));
    out << separator << '[';
    separator = "";
    print_until(static_cast<size_t>(list.first + list.count));
    out << ']';
    separator = ", ";
  }
  print_until(op.operands.size());
}

void print_op(std::ostream& out, const Op& op) {
  print_values(out, op.results());
  out << (op.results().empty() ? "" : " = ") << op.opcode;
  print_operands(out, op);
  for (const auto& [key, value] : op.attrs) out << ' ' << key << '=' << value;
  if (op.bwd_of && !op.bwd_of->results().empty()) out << " bwd_of=%" << op.bwd_of->result()->name();
  const char* separator = " : ";
  for (const auto& result : op.results()) {
    out << separator << result->type();
    separator = ", ";
  }
  // A path such as 3.attention is no word, and may be quoted; a reserved word may not stay bare only as a value.
  if (!op.module_path.empty()) out << " at " << (is_word(op.module_path) ? op.module_path : quote(op.module_path));
}

void print_header(std::ostream& out, const Graph& graph) {
  out << "graph mesh [";
  const char* separator = "";
  for (const MeshAxis& axis : graph.mesh) {
    out << separator << axis.name << '=' << axis.size;
    separator = ", ";
  }
  out << "] view " << (graph.view == Graph::View::Global ? "global" : "local");
  if (graph.micro_batches != 1) out << " micro_batches=" << graph.micro_batches;
  out << '\n';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Attr& attr) {
  std::visit(AttrPrinter{out}, attr);
  return out;
}

std::string print(const Op& op) {
  std::ostringstream out;
  print_op(out, op);
  return out.str();
}

std::string print(const Graph& graph) {
  std::ostringstream out;
  print_header(out, graph);
  Section section = Section::Init;
  for (const auto& op : graph.ops()) {
    if (op->section != section) {
      section = op->section;
      out << to_string(section) << ":\n";
    }
    out << "  ";
    print_op(out, *op);
    out << '\n';
  }
  if (!graph.outputs.empty()) {
    out << "  return ";
    print_values(out, graph.outputs);
    out << '\n';
  }
  for (const Carry& carry : graph.carries) {
    out << "  carry ";
    print_value(out, carry.current);
    out << " = ";
    print_value(out, carry.next);
    out << '\n';
  }
  return out.str();
}

}  // namespace sfsdp::ir
