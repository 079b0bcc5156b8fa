// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/random_graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::testing {
namespace {

using ir::Attr, ir::Attrs, ir::Dim, ir::DType, ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

// The engine's numbers are fixed by the standard, those of <random>'s distributions are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t bits() { return engine_(); }
  int64_t below(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <class Items>
  const auto& pick(const Items& items) {
    return items[static_cast<size_t>(below(static_cast<int64_t>(std::size(items))))];
  }

 private:
  std::mt19937_64 engine_;
};

// ---- anything the text form can hold --------------------------------------------------------------------------------

const std::array<std::string, 14> kTexts = {"sum",     "w0",   "layers.0.w", "true", "f32",         "none", "inf",
                                            "a \"b\"", "\\\n", "",           "3",    "tab\tµ // x", "at",   "\x01\x7f"};
const std::array<std::string, 8> kOpcodes = {"param",       "all_gather.start", "wait",         "aten.cat",
                                             "aten.mm.out", "return_like",      "aten.__and__", "fwd"};
const std::array<std::string, 9> kHints = {"", "x", "x", "layers.0.w", "a b", "w.full", "3", "none", "f32"};
const std::array<std::string, 7> kKeys = {"axis", "dim", "alpha", "at_most", "return", "carry", "list"};
const std::array<std::string, 5> kPaths = {"", "layers.3.attention", "3.x", "two words", "none"};

class TextMaker {
 public:
  explicit TextMaker(uint64_t seed) : dice_(seed) {}

  Graph make() {
    const std::array<std::string, 4> names = {"dp_replicate", "dp_shard", "cp", "tp"};
    const int64_t axes = dice_.below(5);
    for (int64_t i = 0; i < axes; ++i) graph_.mesh.push_back({names[static_cast<size_t>(i)], 1 + dice_.below(9)});
    graph_.view = dice_.one_in(2) ? Graph::View::Global : Graph::View::Local;
    const int64_t ops = dice_.below(24);
    for (int64_t i = 0; i < ops; ++i) add_op();
    for (int64_t i = values_.empty() ? 0 : dice_.below(4); i > 0; --i) graph_.outputs.push_back(dice_.pick(values_));
    for (int64_t i = values_.empty() ? 0 : dice_.below(4); i > 0; --i)
      graph_.carries.push_back({dice_.pick(values_), dice_.pick(values_)});
    return std::move(graph_);
  }

 private:
  std::vector<std::string> axes() {
    std::vector<std::string> axes;
    for (const ir::MeshAxis& axis : graph_.mesh)
      if (dice_.one_in(3)) axes.push_back(axis.name);
    return axes;
  }

  Type type() {
    Type type;
    if (dice_.one_in(10)) {
      type.kind = Type::Kind::Token;
      return type;
    }
    if (dice_.one_in(5)) type.kind = Type::Kind::Async;
    type.dtype = static_cast<DType>(dice_.below(13));
    for (int64_t rank = dice_.below(4); rank > 0; --rank)
      type.dims.push_back({.size = dice_.below(1000), .split = axes(), .padded = dice_.one_in(5)});
    if (dice_.one_in(4))
      for (size_t i = 0; i < type.dims.size(); ++i) type.strides.push_back(dice_.below(100));
    for (int64_t placements = dice_.below(3); placements > 0; --placements) {
      auto named = axes();
      if (!named.empty())
        type.placements.push_back(
            {dice_.one_in(4) ? ir::Placement::own() : ir::Placement::partial(static_cast<ir::ReduceOp>(dice_.below(3))),
             std::move(named)});
    }
    return type;
  }

  double number() {
    switch (dice_.below(5)) {
      case 0: return static_cast<double>(dice_.below(100));  // must not come back as an integer
      case 1: return std::numeric_limits<double>::denorm_min();
      case 2:
        return dice_.one_in(2) ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
      case 3: return std::numeric_limits<double>::quiet_NaN();
      default: {
        const double any = std::bit_cast<double>(dice_.bits());
        return std::isnan(any) ? -0.0 : any;
      }
    }
  }

  template <class T, class Make>
  Attr list(Make make) {
    std::vector<T> items;
    for (int64_t count = dice_.below(4); count > 0; --count) items.push_back(make());
    return items;
  }

  Attr attr() {
    switch (dice_.below(10)) {
      case 0: return std::monostate();
      case 1: return dice_.one_in(2);
      case 2: return static_cast<int64_t>(dice_.bits());
      case 3: return number();
      case 4: return dice_.pick(kTexts);
      case 5: return static_cast<DType>(dice_.below(13));
      case 6: return list<int64_t>([&] { return dice_.below(100) - 50; });
      case 7: return list<double>([&] { return number(); });
      case 8: return list<bool>([&] { return dice_.one_in(2); });
      default: return list<std::string>([&] { return dice_.pick(kTexts); });
    }
  }

  std::vector<Value*> operands() {
    std::vector<Value*> operands;
    for (int64_t count = dice_.below(5); count > 0; --count)
      operands.push_back(values_.empty() || dice_.one_in(6) ? nullptr : dice_.pick(values_));
    return operands;
  }

  void add_op() {
    std::vector<Graph::NewResult> results;
    for (int64_t count = dice_.below(4); count > 0; --count) results.push_back({dice_.pick(kHints), type()});
    Op* op = graph_.add(dice_.pick(kOpcodes), operands(), std::move(results));
    const int size = static_cast<int>(op->operands.size());
    for (int first = 0; first <= size; ++first) {
      if (!dice_.one_in(4)) continue;
      const int count = static_cast<int>(dice_.below(size - first + 1));
      op->operand_lists.push_back({first, count});
      if (count > 0) first += count - 1;
    }
    for (int64_t count = dice_.below(4); count > 0; --count) op->attrs[dice_.pick(kKeys)] = attr();
    if (!dice_.one_in(3)) section_ = static_cast<Section>(dice_.below(6));
    op->section = section_;
    op->module_path = dice_.pick(kPaths);
    if (!values_.empty() && dice_.one_in(4)) op->bwd_of = dice_.pick(values_)->producer();
    for (const auto& result : op->results()) values_.push_back(result.get());
  }

  Dice dice_;
  Graph graph_;
  Section section_ = Section::Init;
  std::vector<Value*> values_;
};

// ---- programs -------------------------------------------------------------------------------------------------------

// All values are f32[4, 4], some with gaps between their rows: any op can read any value, so duplicates come by themselves.
class ProgramMaker {
 public:
  explicit ProgramMaker(uint64_t seed) : dice_(seed) {}

  Graph make() {
    graph_.mesh = {{"dp_replicate", 1 + dice_.below(2)}, {"dp_shard", 1 << dice_.below(3)}};
    graph_.view = Graph::View::Local;
    for (int64_t i = 0; i < 3; ++i) add_root(i);
    const Section sections[] = {Section::Fwd, Section::Loss, Section::Bwd, Section::Clip, Section::Opt};
    for (const Section section : sections) {
      section_ = section;
      for (int64_t count = dice_.below(8); count > 0; --count) add_op();
    }
    for (int64_t count = dice_.below(3); count > 0; --count) graph_.outputs.push_back(dice_.pick(values_));
    graph_.carries.push_back({values_[0], dice_.pick(values_)});
    return std::move(graph_);
  }

 private:
  void add_root(int64_t index) {
    Type type = square();
    if (index == 2) type.placements = {{ir::Placement::own(), {"dp_shard"}}};
    const std::string name = concat("r", index);
    Op* op = graph_.add(index == 2 ? "input" : "param", {}, {{name, type}});
    op->attrs["name"] = name;
    op->section = Section::Init;
    values_.push_back(op->result());
  }

  static Type square() { return Type::tensor(DType::f32, {4, 4}); }

  Value* add(const std::string& opcode, std::vector<Value*> operands, Type type, Attrs attrs = {}) {
    Op* op = graph_.add(opcode, std::move(operands), {{"", std::move(type)}});
    op->attrs = std::move(attrs);
    op->section = section_;
    return op->result();
  }

  // Few values to choose from, or nothing would be computed twice.
  Value* operand() {
    return values_[static_cast<size_t>(dice_.below(std::min<int64_t>(6, static_cast<int64_t>(values_.size()))))];
  }

  void add_op() {
    switch (dice_.below(7)) {
      case 0: {
        Type type = square();
        if (dice_.one_in(6)) type.strides = {1024, 2};  // each row where another buffer may begin
        return values_.push_back(add("aten.relu", {operand()}, type));
      }
      case 1:
        return values_.push_back(add("aten.add.Tensor", {operand(), operand()}, square(), {{"alpha", int64_t{1}}}));
      case 2: return values_.push_back(add("aten.mm", {operand(), operand()}, square()));
      case 3: return add_transpose();
      case 4:
        return values_.push_back(add("all_reduce", {operand()}, square(), {{"axis", std::string("dp_replicate")}}));
      case 5: return add_gather();
      default: {
        Value* low = add("cast", {operand()}, Type::tensor(DType::bf16, {4, 4}));
        return values_.push_back(add("cast", {low}, square()));
      }
    }
  }

  void add_transpose() {
    Value* of = operand();
    Type type = square();
    type.strides = ir::strides_of(of->type());
    std::ranges::reverse(type.strides);
    if (type.strides == std::vector<int64_t>{4, 1}) type.strides.clear();
    values_.push_back(add("aten.t", {of}, type));
  }

  void add_gather() {
    const int64_t ranks = graph_.mesh[1].size;
    const Attrs along = {{"axis", std::string("dp_shard")}, {"dim", int64_t{0}}};
    Value* whole = add("all_gather", {operand()}, Type::tensor(DType::f32, {4 * ranks, 4}), along);
    values_.push_back(add("reduce_scatter", {whole}, square(), along));
  }

  Dice dice_;
  Graph graph_;
  Section section_ = Section::Init;
  std::vector<Value*> values_;
};

// ---- comparison -----------------------------------------------------------------------------------------------------

bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Variants compare doubles by ==, which misses -0.0 and never finds nan.
bool same(const Attr& a, const Attr& b) {
  if (a.index() != b.index()) return false;
  if (const auto* number = std::get_if<double>(&a)) return same(*number, std::get<double>(b));
  const auto* numbers = std::get_if<std::vector<double>>(&a);
  if (!numbers) return a == b;
  const auto& others = std::get<std::vector<double>>(b);
  if (numbers->size() != others.size()) return false;
  for (size_t i = 0; i < others.size(); ++i)
    if (!same((*numbers)[i], others[i])) return false;
  return true;
}

std::string name(const Value* value) { return value ? value->name() : "none"; }

std::string find_difference(const Op& a, const Op& b) {
  if (a.opcode != b.opcode) return concat(a.opcode, " and ", b.opcode);
  if (a.operands.size() != b.operands.size() || a.operand_lists != b.operand_lists)
    return a.opcode.str() + ": operands";
  for (size_t i = 0; i < a.operands.size(); ++i)
    if (name(a.operands[i]) != name(b.operands[i])) return concat(a.opcode, ": operand ", i);
  if (a.attrs.size() != b.attrs.size()) return a.opcode.str() + ": attributes";
  for (const auto& [key, value] : a.attrs)
    if (!b.attrs.contains(key) || !same(value, b.attrs.at(key))) return concat(a.opcode, ": attribute ", key);
  if (a.section != b.section || a.module_path != b.module_path) return a.opcode.str() + ": section or module path";
  if (!a.bwd_of != !b.bwd_of || (a.bwd_of && name(a.bwd_of->result()) != name(b.bwd_of->result())))
    return a.opcode.str() + ": bwd_of";
  if (a.results().size() != b.results().size()) return a.opcode.str() + ": results";
  for (size_t i = 0; i < a.results().size(); ++i)
    if (name(a.results()[i].get()) != name(b.results()[i].get()) || a.results()[i]->type() != b.results()[i]->type())
      return concat(a.opcode, ": result ", i);
  return "";
}

}  // namespace

Graph random_graph(uint64_t seed) { return TextMaker(seed).make(); }
Graph random_program(uint64_t seed) { return ProgramMaker(seed).make(); }

std::string find_difference(const Graph& a, const Graph& b) {
  if (a.mesh != b.mesh || a.view != b.view) return "the header";
  if (a.ops().size() != b.ops().size()) return "the number of ops";
  for (size_t i = 0; i < a.ops().size(); ++i)
    if (std::string difference = find_difference(*a.ops()[i], *b.ops()[i]); !difference.empty()) return difference;
  if (a.outputs.size() != b.outputs.size() || a.carries.size() != b.carries.size()) return "the ends";
  for (size_t i = 0; i < a.outputs.size(); ++i)
    if (name(a.outputs[i]) != name(b.outputs[i])) return concat("output ", i);
  for (size_t i = 0; i < a.carries.size(); ++i)
    if (name(a.carries[i].current) != name(b.carries[i].current) || name(a.carries[i].next) != name(b.carries[i].next))
      return concat("carry ", i);
  return "";
}

}  // namespace sfsdp::testing
