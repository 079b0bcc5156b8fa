// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/fuse.h"

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using cost::Class;
using ir::Graph, ir::Op, ir::Value;

const Words<FuseScope> kScopes = {{"none", FuseScope::None}, {"module", FuseScope::Module}, {"all", FuseScope::All}};

struct Kernel {
  enum Kind : uint8_t { Single, Product, Pointwise, Row } kind = Single;
  std::vector<Op*> ops;
  int64_t numel = 0;  // of what it works on
  int64_t width = 0;  // of a row; 0: no reduction yet
  int64_t group = 0;  // of the dimension that holds pairs; 0: none are read
  ir::Section section = ir::Section::Init;
  std::string block;
  bool open = true;  // ops may join: nobody outside has read a result, nothing was started or waited for
};

class Fuser {
 public:
  Fuser(Graph& graph, FuseScope scope) : graph_(graph), scope_(scope), index_(graph), accesses_(graph) {}

  void run() {
    for (const auto& op : graph_.ops()) place(op.get());
  }

  // Numbers the kernels by where they run, and puts their ops together. Returns whether anything changed.
  bool write() {
    std::unordered_map<const Op*, int64_t> key;
    for (const auto& op : graph_.ops()) key[op.get()] = static_cast<int64_t>(index_.position(op.get()));
    std::vector<const Kernel*> order;
    for (const Kernel& kernel : kernels_) {
      for (const Op* op : kernel.ops) key[op] = static_cast<int64_t>(index_.position(kernel.ops.back()));
      order.push_back(&kernel);
    }
    for (const auto& op : graph_.ops())  // views of what a kernel makes come after it
      if (ir::aliased_operand(*op) >= 0) key[op.get()] = std::max(key[op.get()], key[op->operands[0]->producer()]);
    std::ranges::sort(order, {}, [&](const Kernel* k) { return key.at(k->ops.back()); });
    bool changed = ir::order_by(graph_, [&](const Op& op) { return key.at(&op); });
    for (size_t k = 0; k < order.size(); ++k)
      for (Op* op : order[k]->ops) {
        const ir::Attr number = static_cast<int64_t>(k);
        const auto had = op->attrs.find("kernel");
        changed |= had == op->attrs.end() || !(had->second == number);
        op->attrs["kernel"] = number;
      }
    return changed;
  }

  const std::deque<Kernel>& kernels() const { return kernels_; }

 private:
  void place(Op* op) {
    const Class kind = cost::class_of(*op);
    if (kind == Class::Communication || ir::is_wait(*op)) close_all();
    if (kind == Class::Communication || kind == Class::Free || is_packed_cast(*op)) return;
    Kernel* kernel = packed_for(*op);
    if (!kernel && scope_ != FuseScope::None) kernel = find(*op, kind);
    close_read(*op, kernel);
    if (!kernel) kernel = &begin(*op, kind);
    if (op->is("pack")) take_casts(*op, *kernel);
    kernel->ops.push_back(op);
    made_by_[op] = kernel;
    const ir::OpAccess& access = accesses_.of(*op);
    if (kind == Class::Reduction && kernel->kind == Kernel::Pointwise) {
      kernel->kind = Kernel::Row;
      kernel->width = access.rows().width;
    }
    if (access.group() > 0) kernel->group = access.group();
    if (ir::is_update(*op)) close(*kernel);
  }

  Kernel& begin(const Op& op, Class kind) {
    Kernel& kernel = kernels_.emplace_back();
    kernel.section = op.section;
    kernel.block = ir::block_of(op.module_path);
    kernel.numel = op.result()->type().numel();
    const ir::OpAccess& access = accesses_.of(op);
    switch (kind) {
      case Class::Product: kernel.kind = Kernel::Product; break;
      case Class::Pointwise: kernel.kind = access.is_by_place() ? Kernel::Pointwise : Kernel::Single; break;
      case Class::Reduction:
        kernel.width = access.rows().width;
        kernel.numel = access.rows().numel;
        kernel.kind = kernel.width > 0 ? Kernel::Row : Kernel::Single;
        break;
      default: break;
    }
    kernel.open = kernel.kind != Kernel::Single;
    if (kernel.open) open_.push_back(&kernel);
    return kernel;
  }

  // The copy into the reduction's buffer casts on its way: such a cast waits for the pack.
  bool is_packed_cast(const Op& op) const {
    if (!op.is("cast")) return false;
    const Op* reader = index_.only_reader(op.result());
    return reader && reader->is("pack");
  }
  void take_casts(const Op& pack, Kernel& kernel) {
    for (const Value* operand : pack.operands)
      if (Op* cast = operand->producer(); is_packed_cast(*cast)) {
        close_read(*cast, &kernel);
        kernel.ops.push_back(cast);
        made_by_[cast] = &kernel;
      }
  }

  // The kernel that packs what a sum over micro-batches adds, for nobody else.
  Kernel* packed_for(const Op& sum) {
    if (!sum.is("accumulate") || !sum.operands[0]->producer()->is("pack")) return nullptr;
    const Op* pack = sum.operands[0]->producer();
    return index_.only_reader(pack->result()) == &sum ? made_by_.at(pack) : nullptr;
  }

  // The kernel that `op` joins: the last one that it reads from, or the last one that reads the same.
  Kernel* find(const Op& op, Class kind) {
    Kernel* best = nullptr;
    for (const Value* operand : op.operands)
      if (Kernel* kernel = operand ? maker_of(operand) : nullptr; kernel && can_join(op, kind, *kernel))
        if (!best || last_position(*kernel) > last_position(*best)) best = kernel;
    if (best) return best;
    for (size_t k = open_.size(); k-- > 0;)
      if (open_[k]->kind != Kernel::Product && reads_alike(op, *open_[k]) && can_join(op, kind, *open_[k]))
        return open_[k];
    return nullptr;
  }

  size_t last_position(const Kernel& kernel) const { return index_.position(kernel.ops.back()); }

  // The open kernel that makes the memory of a value.
  Kernel* maker_of(const Value* value) const {
    const auto found = made_by_.find(ir::storage_of(value)->producer());
    return found != made_by_.end() && found->second->open ? found->second : nullptr;
  }

  bool reads_alike(const Op& op, const Kernel& kernel) const {
    for (const Value* operand : op.operands)
      for (const Op* other : kernel.ops)
        for (const Value* read : other->operands)
          if (operand && read && ir::storage_of(operand) == ir::storage_of(read) &&
              operand->type().numel() == kernel.numel)
            return true;
    return false;
  }

  bool can_join(const Op& op, Class kind, const Kernel& kernel) {
    if (!kernel.open || ir::is_once(op) != ir::is_once(*kernel.ops[0])) return false;
    // What it writes over, other blocks of the kernel may still have to read.
    for (const int64_t donated : ir::donated_operands(op))
      if (reads(kernel, ir::storage_of(op.operands[static_cast<size_t>(donated)]))) return false;
    // Inductor calls libraries for products, and fuses nothing into them.
    if (scope_ == FuseScope::Module &&
        (kernel.kind == Kernel::Product || kernel.block.empty() || ir::block_of(op.module_path) != kernel.block))
      return false;
    if (ir::is_update(op))
      return scales_gradient(op, kernel) && (scope_ == FuseScope::All || op.section == kernel.section);
    if (op.section != kernel.section) return false;
    const ir::OpAccess& access = accesses_.of(op);
    const int64_t numel = numel_read(op, kernel);
    int64_t width = kernel.width;
    if (kind == Class::Reduction) {
      const ir::Rows& rows = access.rows();
      if (kernel.kind == Kernel::Product || rows.width == 0 || (width > 0 && rows.width != width)) return false;
      if (rows.numel != kernel.numel) return false;
      width = rows.width;
    } else if (kind != Class::Pointwise || !access.is_by_place() || !fits(op.result()->type(), numel, width)) {
      return false;
    }
    if (!is_in_groups(access, kernel, width)) return false;
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (const Value* operand = op.operands[k]; operand && maker_of(operand) == &kernel)
        if (!is_read_where_made(*operand, numel, width) || !reads_own(access.reads(k), kind)) return false;
    return true;
  }

  // Pairs are turned whole: those of a kernel lie in dimensions of one size, which rows hold whole.
  static bool is_in_groups(const ir::OpAccess& access, const Kernel& kernel, int64_t width) {
    const int64_t own = access.group(), group = own > 0 ? own : kernel.group;
    return group == 0 || ((own == 0 || kernel.group == 0 || own == kernel.group) && width % group == 0);
  }

  // Whether what a kernel has of its own place, or of its row, is all that is read.
  static bool reads_own(const ir::Access& access, Class kind) {
    using ir::Reads;
    if (access.reads == Reads::Row || access.reads == Reads::AllRows) return kind == Class::Reduction;
    return access.reads == Reads::Nothing || access.reads == Reads::Element || access.reads == Reads::Group;
  }

  // Results that are whole only once all rows have been: nothing in the kernel may read them.
  bool is_over_rows(const Value& made) {
    const Op& op = *made.producer();
    return cost::class_of(op) == Class::Reduction &&
           accesses_.of(op).is_after_all_rows(static_cast<size_t>(made.result_index()));
  }

  // Elements of what `op` would work on. A product of several results has blocks of columns of one of them, where they are not
  // all as wide: what joins reads one. 0: it reads several.
  int64_t numel_read(const Op& op, const Kernel& kernel) const {
    const auto& results = kernel.ops[0]->results();
    const bool alike =
        std::ranges::all_of(results, [&](const auto& r) { return r->type().numel() == results[0]->type().numel(); });
    if (kernel.kind != Kernel::Product || alike) return kernel.numel;
    const Value* part = nullptr;
    for (const Value* operand : op.operands) {
      if (!operand || maker_of(operand) != &kernel) continue;
      const Value* own = part_of(ir::storage_of(operand), kernel);
      if (part && own != part) return 0;
      part = own;
    }
    return part ? part->type().numel() : 0;
  }

  // The result of the kernel's product that `value`, made in the kernel, was made of.
  const Value* part_of(const Value* value, const Kernel& kernel) const {
    while (value->producer() != kernel.ops[0])
      value = ir::storage_of(*std::ranges::find_if(
          value->producer()->operands, [&](const Value* operand) { return operand && maker_of(operand) == &kernel; }));
    return value;
  }

  // As many elements as the kernel works on, or one for each row.
  static bool fits(const ir::Type& type, int64_t numel, int64_t width) {
    return type.numel() == numel ||
           (width > 1 && type.numel() * width == numel && !type.dims.empty() && type.dims.back().size == 1);
  }

  // Whether an update's gradient is what the kernel scales.
  bool scales_gradient(const Op& update, const Kernel& kernel) {
    const Value* gradient = update.operands[ir::gradient_operand(update)];
    return kernel.kind == Kernel::Pointwise && kernel.ops.size() == 1 && kernel.ops[0]->is("scale") &&
           kernel.ops[0]->result() == ir::storage_of(gradient) && is_read_where_made(*gradient, kernel.numel, 0);
  }

  // Element by element, or a row's number in the row.
  bool is_read_where_made(const Value& value, int64_t numel, int64_t width) {
    const Value* made = ir::storage_of(&value);
    if (is_over_rows(*made)) return false;
    const Value* seen = &value;
    while (seen && seen != made) seen = ir::reshaped_operand(*seen);
    return seen && made->type().strides.empty() && fits(value.type(), numel, width);
  }

  // What reads a result, or overwrites what a kernel reads, comes after the kernel.
  void close_read(const Op& op, const Kernel* joined) {
    for (const Value* operand : op.operands)
      if (Kernel* kernel = operand ? maker_of(operand) : nullptr; kernel && kernel != joined) close(*kernel);
    for (const int64_t donated : ir::donated_operands(op)) {
      const Value* lost = ir::storage_of(op.operands[static_cast<size_t>(donated)]);
      for (Kernel* kernel : std::vector<Kernel*>(open_.begin(), open_.end()))
        if (kernel != joined && reads(*kernel, lost)) close(*kernel);
    }
  }
  static bool reads(const Kernel& kernel, const Value* storage) {
    return std::ranges::any_of(kernel.ops, [&](const Op* op) {
      return std::ranges::any_of(op->operands, [&](const Value* v) { return v && ir::storage_of(v) == storage; });
    });
  }

  void close(Kernel& kernel) {
    kernel.open = false;
    std::erase(open_, &kernel);
  }
  void close_all() {
    for (Kernel* kernel : open_) kernel->open = false;
    open_.clear();
  }

  Graph& graph_;
  const FuseScope scope_;
  const ir::Index index_;
  ir::Accesses accesses_;
  std::deque<Kernel> kernels_;
  std::vector<Kernel*> open_;  // in the order in which they began
  std::unordered_map<const Op*, Kernel*> made_by_;
};

}  // namespace

const std::vector<Field<FuseOptions>>& FuseOptions::fields() {
  static const std::vector<Field<FuseOptions>> kFields = {
      field("scope", &FuseOptions::scope, kScopes, "none, module or all")};
  return kFields;
}

bool fuse(Graph& graph, const FuseOptions& options, PassContext& ctx) {
  bool changed = ir::order_by_part(graph);
  for (const auto& op : graph.ops()) changed |= op->attrs.erase("inside") > 0;  // of other kernels
  Fuser fuser(graph, options.scope);
  fuser.run();
  for (const Kernel& kernel : fuser.kernels()) {
    ctx.metrics.add("kernels", 1);
    ctx.metrics.add("ops_joined", std::ssize(kernel.ops) - 1);
  }
  return fuser.write() || changed;
}

}  // namespace sfsdp::passes
