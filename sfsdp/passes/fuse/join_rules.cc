// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/join_rules.h"

#include <algorithm>
#include <array>

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

using cost::Class;
using ir::Op, ir::Value;

namespace {

constexpr std::array<std::string_view, kAparts> kReasons = {
    "nothing stands against it",
    "a product, attention or copy begins a kernel",
    "a collective starts or is waited for between the two",
    "another kernel reads the result before",
    "another op writes over what the kernel reads before",
    "an update ends its kernel",
    "nothing joins attention, library calls, sums over rows and copies",
    "the scope of fuse leaves it out",
    "one runs once a step, the other in each micro-batch",
    "each of forward, loss, backward, clip and update has its own kernels",
    "an update takes only what scales its gradient",
    "it joined the kernel of another operand",
    "it writes over what the kernel reads",
    "it reads other places than its own, or has no access map",
    "a tile of a product holds no whole row",
    "it reduces other dimensions than the last ones",
    "it has rows of another width",
    "it works on another number of elements",
    "it reads several results of a product, which other blocks make",
    "it turns pairs of elements that another block of the kernel makes",
    "what it reads is complete only after all rows",
    "it sees the elements in another order",
    "it reads elements that other blocks make",
};

// As many elements as the kernel works on, or one for each row, in the order of rows.
bool fits(const ir::Type& type, int64_t numel, int64_t width) {
  return type.numel() == numel ||
         (width > 1 && type.numel() * width == numel && !type.dims.empty() && type.dims.back().size == 1);
}

// Whether broadcasting to `whole` gives all elements of a row the same one of `type`: it has the dimensions of `whole` up to
// those of the row, and 1 for these. That there is one for each row is not enough: [3, 4, 2] * [4, 1] has rows of 6, and reads
// each of the four numbers in three of them.
bool is_one_per_row(const ir::Type& type, const ir::Type& whole, int64_t width) {
  const size_t rank = whole.dims.size();
  if (type.dims.size() > rank) return false;
  const auto size = [&](size_t d) {
    const size_t missing = rank - type.dims.size();
    return d < missing ? 1 : type.dims[d - missing].size;
  };
  int64_t of_row = 1;
  size_t d = rank;
  for (; d > 0 && of_row < width; --d) {
    if (size(d - 1) != 1) return false;
    of_row *= whole.dims[d - 1].size;
  }
  for (; d > 0; --d)
    if (size(d - 1) != whole.dims[d - 1].size) return false;
  return of_row == width;
}

// What the op makes or reads as a whole, element by element of its kernel; nullptr: only numbers of rows.
const ir::Type* whole_of(const Op& op, int64_t numel) {
  const auto is_whole = [&](const ir::Type& type) { return type.numel() == numel; };
  for (const auto& result : op.results())
    if (is_whole(result->type())) return &result->type();
  for (const Value* operand : op.operands)
    if (operand && is_whole(operand->type())) return &operand->type();
  return nullptr;
}

// Pairs are turned whole: those of a kernel lie in dimensions of one size, which rows hold whole.
bool is_in_groups(const ir::OpAccess& access, const Kernel& kernel, int64_t width) {
  const int64_t own = access.group(), group = own > 0 ? own : kernel.group;
  return group == 0 || ((own == 0 || kernel.group == 0 || own == kernel.group) && width % group == 0);
}

// Whether what a kernel has of its own place, or of its row, is all that is read.
bool reads_own(const ir::Access& access, Class kind) {
  using ir::Reads;
  if (access.reads == Reads::Row || access.reads == Reads::AllRows) return kind == Class::Reduction;
  return access.reads == Reads::Nothing || access.reads == Reads::Element || access.reads == Reads::Group;
}

}  // namespace

std::string_view to_string(Apart why) { return kReasons.at(static_cast<size_t>(why)); }

Kernel* JoinRules::maker_of(const Value* value) const {
  const auto found = made_by_.find(ir::storage_of(value)->producer());
  return found != made_by_.end() ? found->second : nullptr;
}

bool JoinRules::reads(const Kernel& kernel, const Value* storage) {
  return std::ranges::any_of(kernel.ops, [&](const Op* op) {
    return std::ranges::any_of(op->operands, [&](const Value* v) { return v && ir::storage_of(v) == storage; });
  });
}

bool JoinRules::reads_alike(const Op& op, const Kernel& kernel) {
  return std::ranges::any_of(op.operands, [&](const Value* operand) {
    return operand && operand->type().numel() == kernel.numel && reads(kernel, ir::storage_of(operand));
  });
}

Apart JoinRules::ask(const Op& op, Class kind, const Kernel& kernel) {
  if (!cost::is_fusible(kind) && !ir::is_update(op)) return Apart::BeginsItsOwn;
  if (!kernel.open()) return kernel.ended;
  if (scope_ == FuseScope::None) return Apart::Scope;
  if (ir::is_once(op) != ir::is_once(*kernel.ops[0])) return Apart::Once;
  // What it writes over, other blocks of the kernel may still have to read.
  for (const int64_t donated : ir::donated_operands(op))
    if (reads(kernel, ir::storage_of(op.operands[static_cast<size_t>(donated)]))) return Apart::WritesWhatIsRead;
  // Inductor calls libraries for products, and fuses nothing into them.
  if (scope_ == FuseScope::Module &&
      (kernel.kind == Kernel::Product || kernel.block.empty() || ir::block_of(op.module_path) != kernel.block))
    return Apart::Scope;
  if (ir::is_update(op)) {
    if (!scales_gradient(op, kernel)) return Apart::OtherUpdate;
    return scope_ == FuseScope::All || op.section == kernel.section ? Apart::No : Apart::Section;
  }
  if (op.section != kernel.section) return Apart::Section;
  return ask_size(op, kind, kernel);
}

// Whether it works on what the kernel works on, then whether it reads of the kernel what its own block has.
Apart JoinRules::ask_size(const Op& op, Class kind, const Kernel& kernel) {
  const ir::OpAccess& access = accesses_.of(op);
  const int64_t numel = numel_read(op, kernel);
  int64_t width = kernel.width;
  if (kind == Class::Reduction) {
    const ir::Rows& rows = access.rows();
    if (kernel.kind == Kernel::Product) return Apart::RowsOfTiles;
    if (rows.width == 0) return Apart::NotInRows;
    if (width > 0 && rows.width != width) return Apart::OtherWidth;
    if (rows.numel != kernel.numel) return Apart::OtherSize;
    width = rows.width;
  } else {
    if (!access.is_by_place()) return Apart::NotByPlace;
    if (!fits(op.result()->type(), numel, width)) return numel == 0 ? Apart::PartsOfProduct : Apart::OtherSize;
  }
  if (!is_in_groups(access, kernel, width)) return Apart::Pairs;
  return ask_reads(op, kind, kernel, numel, width);
}

Apart JoinRules::ask_reads(const Op& op, Class kind, const Kernel& kernel, int64_t numel, int64_t width) {
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Value* operand = op.operands[k];
    if (!operand || maker_of(operand) != &kernel) continue;
    if (const Apart why = ask_place(op, *operand, numel, width); why != Apart::No) return why;
    if (!reads_own(accesses_.of(op).reads(k), kind)) return Apart::OtherElements;
  }
  return Apart::No;
}

// Element by element, or a row's number in the row.
Apart JoinRules::ask_place(const Op& reader, const Value& value, int64_t numel, int64_t width) {
  const Value* made = ir::storage_of(&value);
  if (is_over_rows(*made)) return Apart::AfterAllRows;
  const Value* seen = &value;
  while (seen && seen != made) seen = ir::reshaped_operand(*seen);
  if (!seen || !made->type().strides.empty()) return Apart::OtherOrder;
  if (!fits(value.type(), numel, width)) return Apart::OtherElements;
  const ir::Type* whole = value.type().numel() == numel ? nullptr : whole_of(reader, numel);
  return !whole || is_one_per_row(value.type(), *whole, width) ? Apart::No : Apart::OtherElements;
}

// Results that are whole only once all rows have been: nothing in the kernel may read them.
bool JoinRules::is_over_rows(const Value& made) {
  const Op& op = *made.producer();
  return cost::class_of(op) == Class::Reduction &&
         accesses_.of(op).is_after_all_rows(static_cast<size_t>(made.result_index()));
}

// Elements of what `op` would work on. A product of several results has blocks of columns of one of them, where they are not
// all as wide: what joins reads one. 0: it reads several.
int64_t JoinRules::numel_read(const Op& op, const Kernel& kernel) const {
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
const Value* JoinRules::part_of(const Value* value, const Kernel& kernel) const {
  while (value->producer() != kernel.ops[0])
    value = ir::storage_of(*std::ranges::find_if(
        value->producer()->operands, [&](const Value* operand) { return operand && maker_of(operand) == &kernel; }));
  return value;
}

// Whether an update's gradient is what the kernel scales.
bool JoinRules::scales_gradient(const Op& update, const Kernel& kernel) {
  const Value* gradient = update.operands[ir::gradient_operand(update)];
  return kernel.kind == Kernel::Pointwise && kernel.ops.size() == 1 && kernel.ops[0]->is("scale") &&
         kernel.ops[0]->result() == ir::storage_of(gradient) &&
         ask_place(update, *gradient, kernel.numel, 0) == Apart::No;
}

}  // namespace sfsdp::passes
