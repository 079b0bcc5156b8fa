// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/kernels.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::plan {
namespace {

using cost::Class;
using ir::Graph, ir::Op, ir::Reads, ir::Value;

bool is_joined(const Op& op) {
  const Class kind = cost::class_of(op);
  return kind == Class::Pointwise || kind == Class::Reduction;
}

// Element by element or row by row: what may share a kernel, and be written over what it reads.
bool is_by_place(const Op& op, const ir::OpAccess& access) { return is_joined(op) && access.is_by_place(); }

// The value that `value` shows whole and in the same order, if it does: through waits, and reshapes of contiguous memory alone.
const Value* shown_by(const Value* value) {
  for (;;) {
    const Op& op = *value->producer();
    if (ir::aliased_operand(op) < 0) return value->type().strides.empty() ? value : nullptr;
    const Value* below = op.operands[0];
    if (!ir::is_wait(op) && (!ir::has_flag(op, ir::kReshape) || below->type().numel() != value->type().numel()))
      return nullptr;
    if (!below->type().strides.empty() || !value->type().strides.empty()) return nullptr;
    value = below;
  }
}

class KernelChecker {
 public:
  KernelChecker(std::vector<const Op*> ops, ir::Accesses& accesses) : ops_(std::move(ops)), accesses_(accesses) {
    for (const Op* op : ops_)
      for (const auto& result : op->results()) made_.emplace(result.get(), op);
  }

  std::string check() {
    size_t alone = 0;
    for (const Op* op : ops_) {
      const Class kind = cost::class_of(*op);
      alone += kind == Class::Product || kind == Class::Attention || kind == Class::Alone;
      if (const int64_t width = rows_of(*op).width; width > 0) {
        if (width_ > 0 && width != width_) return error(*op, concat("has rows of ", width), concat(width_));
        width_ = width;
      }
      if (const int64_t group = accesses_.of(*op).group(); group > 0 && is_joined(*op)) {
        if (group_ > 0 && group != group_) return error(*op, concat("turns pairs of ", group), concat(group_));
        group_ = group;
      }
    }
    if (group_ > 0 && width_ % group_ != 0)
      return error(*ops_.back(), concat("has rows of ", width_), concat("whole pairs of ", group_));
    if (alone > 1) return error(*ops_.back(), "is in a kernel with another product, attention or library call", "one");
    for (const Op* op : ops_)
      if (ir::part_of(op->section) != ir::part_of(ops_[0]->section))
        return error(*op, concat("runs in another part of the step than ", ir::name_of(*ops_[0]), " of its kernel"),
                     "kernels of their own, as a kernel runs whole in each micro-batch or once a step");
    for (const Op* op : ops_)
      if (ir::is_once(*op) != ir::is_once(*ops_[0]))
        return error(*op,
                     ir::is_once(*op) ? "runs once a step, its kernel in each micro-batch"
                                      : "runs in each micro-batch, its kernel once a step",
                     "kernels of their own");
    if (std::string wrong = note_tiles(); !wrong.empty()) return wrong;
    for (const Op* op : ops_)
      for (size_t k = 0; k < op->operands.size(); ++k)
        if (op->operands[k])
          if (std::string wrong = check_read(*op, k); !wrong.empty()) return wrong;
    return check_company();
  }

 private:
  // Notes what each value that a product's tiles become was made of: of one result, where results that are not as wide are
  // made by different blocks.
  std::string note_tiles() {
    for (const Op* op : ops_) {
      const auto& results = op->results();
      if (cost::class_of(*op) == Class::Product) {
        const bool alike = std::ranges::all_of(
            results, [&](const auto& r) { return r->type().numel() == results[0]->type().numel(); });
        for (const auto& result : results) tile_of_[result.get()] = alike ? results[0].get() : result.get();
        continue;
      }
      const Value* own = nullptr;
      for (const Value* operand : op->operands) {
        const auto found = operand ? tile_of_.find(ir::storage_of(operand)) : tile_of_.end();
        if (found == tile_of_.end()) continue;
        if (own && own != found->second)
          return error(*op, "reads two results of a product, which other blocks make", "one of them, or memory");
        own = found->second;
      }
      if (own)
        for (const auto& result : results) tile_of_[result.get()] = own;
    }
    return note_what_tiles_read();
  }

  // What is made of memory alone, for the ops of one tile: each block computes the part that its tile reads.
  std::string note_what_tiles_read() {
    if (tile_of_.empty()) return "";
    std::unordered_map<const Value*, const Value*> read_by;
    for (size_t i = ops_.size(); i-- > 0;) {
      const Op* op = ops_[i];
      if (op->results().empty() || cost::class_of(*op) == Class::Product) continue;
      const auto wanted = read_by.find(op->result());
      if (wanted != read_by.end()) tile_of_.try_emplace(op->result(), wanted->second);
      const auto tile = tile_of_.find(op->result());
      if (tile == tile_of_.end()) continue;
      for (const Value* operand : op->operands) {
        if (!operand || !made_.contains(ir::storage_of(operand))) continue;
        const auto [found, is_new] = read_by.try_emplace(ir::storage_of(operand), tile->second);
        if (found->second != tile->second)
          return error(*op, "reads what another result of the product is read with, which other blocks make",
                       "it computed for each of them");
      }
    }
    return "";
  }

  // Rows that an op works on; width 0: on none.
  ir::Rows rows_of(const Op& op) const {
    return cost::class_of(op) == Class::Reduction ? accesses_.of(op).rows() : ir::Rows{};
  }

  // A result that needs all rows: what each block has of it is only a part.
  bool needs_all_rows(const Value& value) const {
    const Op& op = *value.producer();
    return cost::class_of(op) == Class::Reduction &&
           accesses_.of(op).is_after_all_rows(static_cast<size_t>(value.result_index()));
  }

  std::string check_read(const Op& op, size_t k) const {
    const Value& operand = *op.operands[k];
    const Value* made = ir::storage_of(&operand);
    if (!made_.contains(made)) return "";
    const auto refuse = [&](const char* what) {
      return error(op, concat("reads %", operand.name(), " in the kernel that makes it, but ", what),
                   "it in memory, from a kernel before");
    };
    if (is_written_as(op) && shown_by(&operand) == made) return "";
    if (needs_all_rows(*made)) return refuse("it is complete only after all rows");
    if (shown_by(&operand) != made) return refuse("sees its elements in another order");
    const bool scaled = ir::is_update(op) && made->producer()->is("scale");
    const bool packed = op.is("pack") && made->producer()->is("cast");
    const bool summed = op.is("accumulate") && made->producer()->is("pack");
    if (scaled || packed || summed) return "";
    const Reads reads = accesses_.of(op).reads(k).reads;
    const bool of_rows = reads == Reads::Row || reads == Reads::AllRows;
    if (!is_by_place(op, accesses_.of(op)) || reads == Reads::Whole || (of_rows && rows_of(op).width == 0))
      return refuse("needs elements that other blocks make");
    const Class kind = cost::class_of(*made->producer());
    if (kind == Class::Alone || kind == Class::Attention) return refuse("nothing joins what makes it");
    if (rows_of(op).width > 0 && tile_of_.contains(made)) return refuse("a tile of a product holds no whole row");
    const int64_t numel = operand.type().numel(), own = numel_of(op);
    const bool of_row =
        width_ > 0 && numel * width_ == own && !operand.type().dims.empty() && operand.type().dims.back().size == 1;
    if (numel != own && (!of_row || !is_number_of_row(operand.type(), whole_of(op, own))))
      return refuse("needs elements that other rows make");
    return "";
  }

  // What the op makes or reads with `numel` elements.
  static const ir::Type& whole_of(const Op& op, int64_t numel) {
    for (const auto& result : op.results())
      if (result->type().numel() == numel) return result->type();
    for (const Value* operand : op.operands)
      if (operand && operand->type().numel() == numel) return operand->type();
    return op.result()->type();
  }

  // Whether element i of `whole` reads element i / width of `read`, where dimensions line up from the right: one step in a
  // dimension goes on by as many rows in both.
  bool is_number_of_row(const ir::Type& read, const ir::Type& whole) const {
    int64_t place = 1, row = 1;  // elements that one step goes on, in `whole` and in `read`
    for (size_t d = 1; d <= whole.dims.size(); ++d) {
      const int64_t size = whole.dims[whole.dims.size() - d].size;
      const int64_t own = d <= read.dims.size() ? read.dims[read.dims.size() - d].size : 1;
      const int64_t step = own == 1 ? 0 : row;
      if ((own != 1 && own != size) || (size > 1 && step * width_ != (place >= width_ ? place : 0))) return false;
      place *= size;
      row *= own;
    }
    return place == row * width_;
  }

  // A cast that the kernel does not read: the dtype in which it writes what it makes.
  bool is_written_as(const Op& op) const {
    return op.is("cast") && std::ranges::none_of(ops_, [&](const Op* other) {
             return std::ranges::any_of(other->operands,
                                        [&](const Value* v) { return v && ir::storage_of(v) == op.result(); });
           });
  }

  bool reads_made(const Op& op) const {
    return std::ranges::any_of(op.operands, [&](const Value* v) { return v && made_.contains(ir::storage_of(v)); });
  }

  // One kernel's blocks share one work: whatever else they computed beside it would be a kernel of its own. A cast into
  // the dtype in which a result is written is as large as that result, be it a number per row or a sum over rows.
  std::string check_company() const {
    if (ops_.size() == 1) return "";
    const auto first = [&](auto is) {
      const auto found = std::ranges::find_if(ops_, [&](const Op* op) { return is(*op); });
      return found == ops_.end() ? nullptr : *found;
    };
    const Op* pack = first([](const Op& op) { return op.is("pack"); });
    const Op* update = first([](const Op& op) { return ir::is_update(op); });
    const Op* lone = first([&](const Op& op) {
      const Class kind = cost::class_of(op);
      return kind != Class::Product &&
             (!is_by_place(op, accesses_.of(op)) || (kind == Class::Reduction && rows_of(op).width == 0));
    });
    int64_t numel = 0;
    for (const Op* op : ops_) numel = std::max(numel, numel_of(*op));
    for (const Op* op : ops_) {
      if (op == pack || op == update || op == lone || (is_written_as(*op) && reads_made(*op))) continue;
      const auto beside = [&](const Op* other, const char* expected) {
        return error(*op, concat("stands beside ", ir::name_of(*other)), expected);
      };
      if (pack) {
        const bool is_cast = op->is("cast") && is_read_by(*op, *pack);
        if (is_cast || (op->is("accumulate") && is_read_by(*pack, *op))) continue;
        return beside(pack, "casts of what it packs, and the sum that it is added to");
      }
      if (update) {
        if (op->is("scale") && is_read_by(*op, *update)) continue;
        return beside(update, "what scales its gradient");
      }
      if (lone) return beside(lone, "a kernel of its own: nothing joins that one");
      if (std::string wrong = check_size(*op, numel); !wrong.empty()) return wrong;
    }
    return "";
  }

  static bool is_read_by(const Op& op, const Op& reader) {
    return std::ranges::any_of(reader.operands, [&](const Value* v) { return v && ir::storage_of(v) == op.result(); });
  }

  // What follows a product works on the tiles of one of its results; all else on `numel` elements, or one of each row.
  std::string check_size(const Op& op, int64_t numel) const {
    if (cost::class_of(op) == Class::Product) return "";
    if (!tile_of_.empty()) {
      const auto tile = tile_of_.find(op.result());
      if (tile == tile_of_.end()) return error(op, "reads nothing of the product of its kernel", "a kernel of its own");
      numel = tile->second->type().numel();
    }
    const int64_t own = numel_of(op);
    const auto& dims = op.result()->type().dims;
    const bool of_row =
        tile_of_.empty() && width_ > 0 && own * width_ == numel && !dims.empty() && dims.back().size == 1;
    if (own == numel || of_row) return "";
    return error(op, concat("works on ", own, " elements, its kernel on ", numel), "as many, or one of each row");
  }

  // Elements that an op works on: of the rows that it reads, or of what it makes.
  int64_t numel_of(const Op& op) const {
    const ir::Rows rows = rows_of(op);
    return rows.width > 0 ? rows.numel : op.result()->type().numel();
  }

  static std::string error(const Op& op, const std::string& what, const std::string& expected) {
    return concat(ir::name_of(op), ' ', what, "\n    ", ir::print(op), "\n  expected ", expected);
  }

  std::vector<const Op*> ops_;
  ir::Accesses& accesses_;
  std::unordered_map<const Value*, const Op*> made_;
  std::unordered_map<const Value*, const Value*> tile_of_;  // of values made of a product's, the result that it is
  int64_t width_ = 0, group_ = 0;                           // of rows, and of the dimension that holds pairs
};

}  // namespace

std::string check_kernels(const Graph& graph) {
  const auto number = [](const Op& op) { return op.find_attr<int64_t>("kernel"); };
  if (std::ranges::none_of(graph.ops(), [&](const auto& op) { return number(*op) != nullptr; })) return "";
  std::vector<const Op*> open;
  ir::Accesses accesses(graph);
  int64_t last = -1;
  const auto finish = [&] {
    std::string wrong = open.empty() ? "" : KernelChecker(open, accesses).check();
    open.clear();
    return wrong;
  };
  for (const auto& each : graph.ops()) {
    const Op& op = *each;
    const Class kind = cost::class_of(op);
    const int64_t* kernel = number(op);
    if (kind == Class::Free || kind == Class::Communication) {
      if (kernel) return concat(ir::name_of(op), " has kernel=", *kernel, "\n  expected none: it computes nothing");
      if (kind == Class::Communication || ir::is_wait(op))
        if (std::string wrong = finish(); !wrong.empty()) return wrong;
      continue;
    }
    if (!kernel) return concat(ir::name_of(op), " has no kernel\n  expected kernel= on each op that computes");
    if (!open.empty() && *kernel == last) {
      open.push_back(&op);
      continue;
    }
    if (std::string wrong = finish(); !wrong.empty()) return wrong;
    if (*kernel <= last)
      return concat(ir::name_of(op), " has kernel=", *kernel, " after kernel=", last,
                    "\n  expected numbers in order, and the ops of a kernel side by side");
    last = *kernel;
    open.push_back(&op);
  }
  return finish();
}

std::string check_written_over(std::span<const Op* const> kernel, const Value& read, const Value& written) {
  const auto refuse = [&](const Op& op, const char* what) {
    return concat('%', written.name(), " is written over %", read.name(), ", of which ", ir::name_of(op),
                  " of the same kernel ", what, "\n  expected memory of its own");
  };
  const Op& writer = *written.producer();
  // What gives away an operand (donates=), as updates do, is held to its access map, whichever class it is of.
  const bool gives = static_cast<size_t>(written.result_index()) < ir::donated_operands(writer).size();
  const auto is_in_place = [&](const Op& op, const ir::OpAccess& access) {
    return gives && &op == &writer ? access.is_by_place() : is_by_place(op, access);
  };
  if (ir::is_loop(writer) || writer.is("end")) {  // hands on what it is given, as it lies there
    for (const Value* v : writer.operands)
      if (v && ir::storage_of(v) == &read && shown_by(v) != &read)
        return refuse(writer, "sees the elements in another order");
    return "";
  }
  if (written.type().span_bytes() != read.type().span_bytes() || written.type().numel() != read.type().numel())
    return refuse(writer, "makes elements of another size");
  if (cost::class_of(writer) != Class::Product) {
    const ir::OpAccess access(writer);
    if (!is_in_place(writer, access)) return refuse(writer, "makes elements in no order that is known");
    if (access.is_after_all_rows(static_cast<size_t>(written.result_index())))
      return refuse(writer, "makes it of all rows, while others are read");
  }
  for (const Op* op : kernel) {
    if (std::ranges::none_of(op->operands, [&](const Value* v) { return v && ir::storage_of(v) == &read; })) continue;
    const ir::OpAccess access(*op);
    if (!is_in_place(*op, access)) return refuse(*op, "reads other elements than those at its place");
    for (size_t k = 0; k < op->operands.size(); ++k) {
      if (!op->operands[k] || ir::storage_of(op->operands[k]) != &read) continue;
      if (shown_by(op->operands[k]) != &read) return refuse(*op, "sees the elements in another order");
      for (size_t r = 0; r < op->results().size(); ++r) {
        const Reads reads = access.reads(k, r).reads;
        const bool once = op->results()[r]->type().numel() == read.type().numel();
        if (reads == Reads::Whole || ((reads == Reads::Element || reads == Reads::Group) && !once))
          return refuse(*op, "reads elements several times");
      }
    }
  }
  return "";
}

}  // namespace sfsdp::plan
