// SPDX-License-Identifier: BSD-3-Clause
// The way to make ops: new ones stand at a place, with its section and module path; places, replacements and erasures
// take effect together, in one walk.
//
//   Builder build(graph);
//   Value* low = build.before(gather).cast(shard, DType::bf16);
//   build.replace(wide, low);
//   build.apply();
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/moves.h"

namespace sfsdp::ir {

Type with_dtype(Type type, DType dtype);

class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph), moves_(graph) {}

  // Makes ops at one place. Those made at one place stand in the order in which they are made.
  class Place {
   public:
    Place like(const Op& op) const;  // this place, with the section and module path of `op`
    Place in(Section section) const;
    Place at(std::string module_path) const;

    Op* op(Opcode opcode, std::vector<Value*> operands, std::vector<Graph::NewResult> results, Attrs attrs = {}) const;
    // An op of one result.
    Value* value(Opcode opcode, std::vector<Value*> operands, Type type, std::string hint = "", Attrs attrs = {}) const;
    // `value` itself if it has the dtype. The hint "" takes the value's name and ".cast".
    Value* cast(Value* value, DType dtype, std::string hint = "") const;
    // Operands as one list.
    Op* list(Opcode opcode, std::vector<Value*> operands, Type type, std::string hint, Attrs attrs = {}) const;
    // `like` again on other operands: opcode, lists and attributes; types of the results are given.
    Op* again(const Op& like, std::vector<Value*> operands, std::vector<Graph::NewResult> results) const;

   private:
    friend class Builder;
    Builder* builder_ = nullptr;
    Op* anchor_ = nullptr;  // nullptr: the end
    bool after_ = false;
    Section section_ = Section::Fwd;
    std::string module_path_;
  };

  Place before(Op* op);
  Place after(Op* op);
  Place at_end(Section section, std::string module_path = "");

  void replace(Value* old, Value* value) { replaced_[old] = value; }
  // The same; `value` also takes the name of `old`, whose op must be erased.
  void take_place(Value* old, Value* value);
  void erase(Op* op) { erased_.push_back(op); }
  void erase(const std::vector<Op*>& ops) { erased_.insert(erased_.end(), ops.begin(), ops.end()); }

  // Puts new ops in their places, then replaces, then erases: erased ops may read each other.
  //   pass: whose graphs are not always of the expected form: where something still reads an erased op, a UserError
  //         names both; "": an InternalError, as of Graph::erase
  void apply(std::string_view pass = "");

 private:
  void require_unread(std::string_view pass) const;

  Graph& graph_;
  Moves moves_;  // of new ops, which are made at the end
  std::map<Value*, Value*> replaced_;
  std::vector<std::pair<Value*, std::string>> renamed_;
  std::vector<Op*> erased_;
};

}  // namespace sfsdp::ir
