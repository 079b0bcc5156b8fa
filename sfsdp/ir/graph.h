// SPDX-License-Identifier: BSD-3-Clause
// The training step as one flat SSA graph: values, ops with section tags in one total order, carried values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "sfsdp/ir/attrs.h"
#include "sfsdp/ir/opcode.h"
#include "sfsdp/ir/type.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::ir {

class Op;
class Graph;

// One result of one op. Owned by its op.
class Value {
 public:
  const std::string& name() const { return name_; }  // without '%', unique in the graph
  const Type& type() const { return type_; }
  void set_type(Type type) { type_ = std::move(type); }
  Op* producer() const { return producer_; }
  int result_index() const { return result_index_; }
  size_t id() const { return id_; }  // of no other op or value of the graph; below Graph::id_bound()

 private:
  friend class Graph;
  std::string name_;
  Type type_;
  Op* producer_ = nullptr;
  int result_index_ = 0;
  uint32_t id_ = 0;
};

enum class Section : uint8_t { Init, Fwd, Loss, Bwd, Clip, Opt };
std::string_view to_string(Section section);
// Whether a micro-batch repeats it.
constexpr bool is_repeated(Section section) {
  return section == Section::Fwd || section == Section::Loss || section == Section::Bwd;
}

// One operation. `opcode` is a row of opset.def ("all_gather") or "aten.<name>[.<overload>]" as LibTorch spells it.
class Op {
 public:
  Opcode opcode;
  // Flat, in argument order; nullptr is an absent optional operand (printed `none`).
  std::vector<Value*> operands;
  // Operands [first, first + count) are one bracketed list; sorted, disjoint.
  struct OperandList {
    int first = 0;
    int count = 0;
    bool operator==(const OperandList&) const = default;
  };
  std::vector<OperandList> operand_lists;
  Attrs attrs;
  Section section = Section::Fwd;
  std::string module_path;     // "layers.3.attention"; printed `at layers.3.attention`
  const Op* bwd_of = nullptr;  // the forward op whose gradient this op computes; printed `bwd_of=%name-of-result-0`

  size_t id() const { return id_; }  // of no other op or value of the graph; below Graph::id_bound()
  std::span<const std::unique_ptr<Value>> results() const { return results_; }
  Value* result(int index = 0) const { return results_.at(static_cast<size_t>(index)).get(); }
  // Whether the opcode is one of these.
  template <class... Names>
  bool is(const Names&... names) const {
    const std::string_view name = opcode;
    return ((name == std::string_view(names)) || ...);
  }

  bool has_attr(std::string_view key) const { return attrs.contains(key); }
  // nullptr where it is absent or of another kind.
  template <class T>
  const T* find_attr(std::string_view key) const {
    const auto found = attrs.find(key);
    return found == attrs.end() ? nullptr : std::get_if<T>(&found->second);
  }
  // Throws InternalError naming op and attribute when it is absent or of another kind.
  template <class T>
  const T& attr(std::string_view key) const {
    const T* value = find_attr<T>(key);
    if (!value) refuse_attr(key);
    return *value;
  }
  // The same, but `fallback` when it is absent.
  template <class T>
  T attr_or(std::string_view key, T fallback) const {
    return has_attr(key) ? attr<T>(key) : std::move(fallback);
  }

 private:
  friend class Graph;
  [[noreturn]] void refuse_attr(std::string_view key) const;
  uint32_t id_ = 0;
  std::vector<std::unique_ptr<Value>> results_;
};

using sfsdp::MeshAxis;

// Output `next` of one step is what `current` (the result of a param/state op) holds in the next step.
struct Carry {
  Value* current = nullptr;
  Value* next = nullptr;
};

class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;
  Graph clone() const;

  std::vector<MeshAxis> mesh;
  enum class View : uint8_t { Global, Local };
  View view = View::Global;
  int64_t micro_batches = 1;  // runs of forward, loss and backward per step; sections clip and opt run once
  // What a step returns, in order: loss, gradient norm, …
  std::vector<Value*> outputs;
  std::vector<Carry> carries;

  // The total order. Pointers stay valid until the op is erased.
  std::span<const std::unique_ptr<Op>> ops() const { return ops_; }

  struct NewResult {
    std::string hint;  // made unique; "" takes a number
    Type type;
  };
  // Appends at the end, or before `before`.
  Op* add(Opcode opcode, std::vector<Value*> operands, std::vector<NewResult> results, Op* before = nullptr);
  Op* find_param(std::string_view name) const;  // param/state/input op with attr name == `name`; nullptr if none
  Value* find_value(std::string_view name) const;
  void rename(Value* value, const std::string& hint);
  void replace_uses(Value* from, Value* to);                        // operands, outputs and carries
  void replace_uses(const std::map<Value*, Value*>& replacements);  // all in one walk
  void erase(Op* op);                       // its results must be unused; a `bwd_of` that names it is cleared
  void erase(const std::vector<Op*>& ops);  // all in one walk; they may read each other
  // Replaces the order; `order` is a permutation of ops(). Returns whether it changed.
  bool set_order(const std::vector<Op*>& order);
  // Ids of its ops and values are below; those that are erased leave holes.
  size_t id_bound() const { return next_id_; }

 private:
  std::string unique_name(const std::string& hint);
  std::unique_ptr<Value> make_value(std::string name, Type type, Op* producer, int index);
  std::vector<std::unique_ptr<Op>> ops_;
  std::unordered_map<std::string_view, Value*> by_name_;  // keys are the values' own names
  uint32_t next_id_ = 0;
  int64_t next_number_ = 0;
  std::unordered_map<std::string, int64_t> next_suffix_;
};

// "all_gather %w.full", as messages name an op: the opcode and the first result, if it has one.
std::string name_of(const Op& op);
// "aten.mm at layers.3.attention", as messages name an op that a module runs: the opcode and the module path, if it has one.
std::string opcode_at(const Op& op);

// "layers.3" of "layers.3.attention.wq.weight": a path of a module or parameter through its first number; "" where no
// component is one.
std::string_view block_of(std::string_view path);

}  // namespace sfsdp::ir
