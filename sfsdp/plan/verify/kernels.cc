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
};

int64_t last_dims(const Value& value, size_t count) {
  int64_t width = 1;
  const auto& dims = value.type().dims;
  for (size_t d = dims.size() - std::min(count, dims.size()); d < dims.size(); ++d) width *= dims[d].size;
  return width;
}

Access access(const Op& op) {
  if (op.is("rms_norm")) return {Reads::Row, last_dims(*op.operands[0], static_cast<size_t>(op.attr<int64_t>("dims")))};
  if (op.is("rms_norm_backward"))
    return {Reads::Row, last_dims(*op.operands[1], static_cast<size_t>(op.attr<int64_t>("dims")))};
  if (op.is("layer_norm", "layer_norm_backward"))
    return {Reads::Row, last_dims(*op.operands[op.is("layer_norm") ? 0 : 1],
                                  op.attr<std::vector<int64_t>>("normalized_shape").size())};
  if (op.is("cross_entropy")) return {Reads::Row, last_dims(*op.operands[0], 1)};
  if (op.is("cross_entropy_backward")) return {Reads::Row, last_dims(*op.operands[1], 1)};
  const Class kind = cost::class_of(op);
  if (kind == Class::Pointwise) return {ir::has_flag(op, ir::kMoves) ? Reads::Others : Reads::Element, 0};
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
  return {Reads::Row, last_dims(in, dims.size())};
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
    if (std::string wrong = check_parts(); !wrong.empty()) return wrong;
    for (const Op* op : ops_)
      for (const Value* operand : op->operands)
        if (operand)
          if (std::string wrong = check_read(*op, *operand); !wrong.empty()) return wrong;
    return "";
  }

 private:
  // Results of a product that are not as wide are made by different blocks: what follows it reads one of them.
  std::string check_parts() const {
    std::unordered_map<const Value*, const Value*> part;
    for (const Op* op : ops_) {
      const auto& results = op->results();
      if (cost::class_of(*op) == Class::Product) {
        for (const auto& result : results)
          if (result->type().numel() != results[0]->type().numel())
            for (const auto& each : results) part[each.get()] = each.get();
        continue;
      }
      const Value* own = nullptr;
      for (const Value* operand : op->operands) {
        const auto found = operand ? part.find(ir::storage_of(operand)) : part.end();
        if (found == part.end()) continue;
        if (own && own != found->second)
          return error(*op, "reads two results of a product, which other blocks make", "one of them, or memory");
        own = found->second;
      }
      if (own)
        for (const auto& result : results) part[result.get()] = own;
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
    if (kind == Class::Product && a.reads == Reads::Row) return refuse("a tile of a product holds no whole row");
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

  // Of what an op works on: the elements that it reads or makes, whichever are more.
  static int64_t numel_of(const Op& op) {
    int64_t numel = op.result()->type().numel();
    if (access(op).reads == Reads::Row)
      for (const Value* operand : op.operands)
        if (operand) numel = std::max(numel, operand->type().numel());
    return numel;
  }

  static std::string error(const Op& op, const std::string& what, const std::string& expected) {
    return concat(ir::name_of(op), ' ', what, "\n    ", ir::print(op), "\n  expected ", expected);
  }

  std::vector<const Op*> ops_;
  std::unordered_map<const Value*, const Op*> made_;
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
