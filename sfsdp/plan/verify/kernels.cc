// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/kernels.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::plan {
namespace {

using cost::Class;
using ir::Graph, ir::Op, ir::Value;

// Elements of one operand that one element of a result depends on.
enum class Reads : uint8_t {
  Element,  // the one at the same place, counted in row-major order, or the one number of its row
  Row,      // those of its row
  Others,   // other ones
};

struct Access {
  Reads reads = Reads::Others;
  int64_t width = 0;  // of a row, where rows count
  int64_t numel = 0;  // of all those rows
};

int64_t last_dims(const Value& value, size_t count) {
  int64_t width = 1;
  const auto& dims = value.type().dims;
  for (size_t d = dims.size() - std::min(count, dims.size()); d < dims.size(); ++d) width *= dims[d].size;
  return width;
}

Access rows_of(const Value& value, size_t dims) { return {Reads::Row, last_dims(value, dims), value.type().numel()}; }

Access access(const Op& op) {
  if (op.is("rms_norm")) return rows_of(*op.operands[0], static_cast<size_t>(op.attr<int64_t>("dims")));
  if (op.is("rms_norm_backward")) return rows_of(*op.operands[1], static_cast<size_t>(op.attr<int64_t>("dims")));
  if (op.is("layer_norm", "layer_norm_backward"))
    return rows_of(*op.operands[op.is("layer_norm") ? 0 : 1], op.attr<std::vector<int64_t>>("normalized_shape").size());
  if (op.is("cross_entropy")) return rows_of(*op.operands[0], 1);
  if (op.is("cross_entropy_backward")) return rows_of(*op.operands[1], 1);
  const Class kind = cost::class_of(op);
  if (kind == Class::Pointwise) return {ir::has_flag(op, ir::kMoves) ? Reads::Others : Reads::Element};
  if (kind != Class::Reduction) return {};
  // Any other reduction is one of rows if what it keeps are the first dimensions.
  const Value& in = *op.operands[0];
  const auto rank = std::ssize(in.type().dims);
  std::vector<int64_t> dims;
  if (const auto* one = op.find_attr<int64_t>("dim")) dims = {*one};
  if (const auto* all = op.find_attr<std::vector<int64_t>>("dim")) dims = *all;
  for (int64_t& dim : dims) dim = dim < 0 ? dim + rank : dim;
  std::ranges::sort(dims);
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != rank - std::ssize(dims) + static_cast<int64_t>(i)) return {};
  if (dims.empty()) return {};
  return rows_of(in, dims.size());
}

// A result that needs all rows: what each block has of it is only a part.
bool needs_all_rows(const Value& value) {
  const Op& op = *value.producer();
  if (op.is("cross_entropy")) return true;
  if (op.is("rms_norm_backward", "layer_norm_backward")) return value.result_index() > 0;
  return cost::class_of(op) == Class::Reduction && access(op).reads == Reads::Others;
}

// The value that `value` shows whole and in the same order, if it does: through reshapes of contiguous memory alone.
const Value* shown_by(const Value* value) {
  for (;;) {
    const Op& op = *value->producer();
    if (ir::aliased_operand(op) < 0) return value->type().strides.empty() ? value : nullptr;
    const Value* below = op.operands[0];
    if (!ir::has_flag(op, ir::kReshape) || below->type().numel() != value->type().numel()) return nullptr;
    if (!below->type().strides.empty() || !value->type().strides.empty()) return nullptr;
    value = below;
  }
}

class KernelChecker {
 public:
  explicit KernelChecker(std::vector<const Op*> ops) : ops_(std::move(ops)) {
    for (const Op* op : ops_)
      for (const auto& result : op->results()) made_.emplace(result.get(), op);
  }

  std::string check() {
    size_t alone = 0;
    for (const Op* op : ops_) {
      const Class kind = cost::class_of(*op);
      alone += kind == Class::Product || kind == Class::Attention || kind == Class::Alone;
      if (const Access a = access(*op); a.reads == Reads::Row) {
        if (width_ > 0 && a.width != width_) return error(*op, concat("has rows of ", a.width), concat(width_));
        width_ = a.width;
      }
    }
    if (alone > 1) return error(*ops_.back(), "is in a kernel with another product, attention or library call", "one");
    for (const Op* op : ops_)
      if (ir::is_once(*op) != ir::is_once(*ops_[0]))
        return error(*op,
                     ir::is_once(*op) ? "runs once a step, its kernel in each micro-batch"
                                      : "runs in each micro-batch, its kernel once a step",
                     "kernels of their own");
    if (std::string wrong = note_tiles(); !wrong.empty()) return wrong;
    for (const Op* op : ops_)
      for (const Value* operand : op->operands)
        if (operand)
          if (std::string wrong = check_read(*op, *operand); !wrong.empty()) return wrong;
    return check_company();
  }

 private:
  // Of what each value that a product's tiles become was made: of one result, where results that are not as wide are
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
    return "";
  }

  std::string check_read(const Op& op, const Value& operand) const {
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
    const Access a = access(op);
    if (a.reads == Reads::Others) return refuse("needs elements that other blocks make");
    const Class kind = cost::class_of(*made->producer());
    if (kind == Class::Alone || kind == Class::Attention) return refuse("nothing joins what makes it");
    if (a.reads == Reads::Row && tile_of_.contains(made)) return refuse("a tile of a product holds no whole row");
    const int64_t numel = operand.type().numel(), own = numel_of(op);
    const bool of_row =
        width_ > 0 && numel * width_ == own && !operand.type().dims.empty() && operand.type().dims.back().size == 1;
    if (numel != own && !of_row) return refuse("needs elements that other rows make");
    return "";
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
    const Op* lone = first([](const Op& op) {
      const Class kind = cost::class_of(op);
      return kind == Class::Attention || kind == Class::Alone ||
             (kind == Class::Reduction && access(op).reads == Reads::Others);
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
  static int64_t numel_of(const Op& op) {
    const Access a = access(op);
    return a.reads == Reads::Row ? a.numel : op.result()->type().numel();
  }

  static std::string error(const Op& op, const std::string& what, const std::string& expected) {
    return concat(ir::name_of(op), ' ', what, "\n    ", ir::print(op), "\n  expected ", expected);
  }

  std::vector<const Op*> ops_;
  std::unordered_map<const Value*, const Op*> made_;
  std::unordered_map<const Value*, const Value*> tile_of_;  // of values made of a product's, the result that it is
  int64_t width_ = 0;
};

}  // namespace

std::string check_kernels(const Graph& graph) {
  const auto number = [](const Op& op) { return op.find_attr<int64_t>("kernel"); };
  if (std::ranges::none_of(graph.ops(), [&](const auto& op) { return number(*op) != nullptr; })) return "";
  std::vector<const Op*> open;
  int64_t last = -1;
  const auto finish = [&] {
    std::string wrong = open.empty() ? "" : KernelChecker(open).check();
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
  if (written.type().bytes() != read.type().bytes() || written.type().numel() != read.type().numel())
    return refuse(writer, "makes elements of another size");
  if (access(writer).reads == Reads::Others && cost::class_of(writer) != Class::Product)
    return refuse(writer, "makes elements in no order that is known");
  for (const Op* op : kernel)
    for (const Value* operand : op->operands) {
      if (!operand || ir::storage_of(operand) != &read) continue;
      if (access(*op).reads == Reads::Others) return refuse(*op, "reads other elements than those at its place");
      if (shown_by(operand) != &read) return refuse(*op, "sees the elements in another order");
      if (access(*op).reads == Reads::Element && op->result()->type().numel() != read.type().numel())
        return refuse(*op, "reads elements several times");
    }
  return "";
}

}  // namespace sfsdp::plan
