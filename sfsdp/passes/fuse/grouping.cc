// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/grouping.h"

#include <algorithm>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

using cost::Class;
using ir::Op, ir::Value;

Grouping::Grouping(const ir::Graph& graph, FuseScope scope, std::vector<Refusal>* refusals)
    : scope_(scope), index_(graph), rules_(graph, scope, made_by_), refusals_(refusals) {
  for (const auto& op : graph.ops()) place(op.get());
}

void Grouping::place(Op* op) {
  const Class kind = cost::class_of(*op);
  if (kind == Class::Communication || ir::is_wait(*op))
    while (!open_.empty()) end(*open_.back(), Apart::Collective);
  if (kind == Class::Communication || kind == Class::Free || is_packed_cast(*op)) return;
  Kernel* kernel = packed_for(*op);
  if (!kernel && scope_ != FuseScope::None) kernel = find(*op, kind);
  note_refusals(*op, kind, kernel);
  end_what_is_read(*op, kernel);
  if (!kernel) kernel = &begin(*op, kind);
  if (op->is("pack")) take_casts(*op, *kernel);
  kernel->ops.push_back(op);
  made_by_[op] = kernel;
  const ir::OpAccess& access = rules_.access(*op);
  if (kind == Class::Reduction && kernel->kind == Kernel::Pointwise) {
    kernel->kind = Kernel::Row;
    kernel->width = access.rows().width;
  }
  if (access.group() > 0) kernel->group = access.group();
  if (ir::is_update(*op)) end(*kernel, Apart::AfterUpdate);
}

Kernel& Grouping::begin(const Op& op, Class kind) {
  Kernel& kernel = kernels_.emplace_back();
  kernel.section = op.section;
  kernel.block = ir::block_of(op.module_path);
  kernel.numel = op.result()->type().numel();
  const ir::OpAccess& access = rules_.access(op);
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
  if (kernel.kind == Kernel::Single)
    kernel.ended = Apart::EndsWithItsOp;
  else
    open_.push_back(&kernel);
  return kernel;
}

// The copy into the reduction's buffer casts on its way: such a cast waits for the pack.
bool Grouping::is_packed_cast(const Op& op) const {
  if (!op.is("cast")) return false;
  const Op* reader = index_.only_reader(op.result());
  return reader && reader->is("pack");
}

void Grouping::take_casts(const Op& pack, Kernel& kernel) {
  for (const Value* operand : pack.operands)
    if (Op* cast = operand->producer(); is_packed_cast(*cast)) {
      end_what_is_read(*cast, &kernel);
      kernel.ops.push_back(cast);
      made_by_[cast] = &kernel;
    }
}

// The kernel that packs what a sum over micro-batches adds, for nobody else.
Kernel* Grouping::packed_for(const Op& sum) {
  if (!sum.is("accumulate") || !sum.operands[0]->producer()->is("pack")) return nullptr;
  const Op* pack = sum.operands[0]->producer();
  return index_.only_reader(pack->result()) == &sum ? made_by_.at(pack) : nullptr;
}

// The kernel that `op` joins: the last one that it reads from, or the last one that reads the same.
Kernel* Grouping::find(const Op& op, Class kind) {
  Kernel* best = nullptr;
  const auto last = [&](const Kernel& kernel) { return index_.position(kernel.ops.back()); };
  for (const Value* operand : op.operands)
    if (Kernel* kernel = operand ? rules_.maker_of(operand) : nullptr;
        kernel && rules_.ask(op, kind, *kernel) == Apart::No)
      if (!best || last(*kernel) > last(*best)) best = kernel;
  if (best) return best;
  for (size_t k = open_.size(); k-- > 0;)
    if (open_[k]->kind != Kernel::Product && JoinRules::reads_alike(op, *open_[k]) &&
        rules_.ask(op, kind, *open_[k]) == Apart::No)
      return open_[k];
  return nullptr;
}

// Once per kernel: of those that make what `op` reads; and where it joined none, of those that read the same.
void Grouping::note_refusals(const Op& op, Class kind, const Kernel* joined) {
  if (!refusals_) return;
  std::vector<const Kernel*> told;
  const auto note = [&](const Kernel& kernel, const Op* other) {
    if (&kernel == joined || std::ranges::find(told, &kernel) != told.end()) return;
    told.push_back(&kernel);
    const Apart why = rules_.ask(op, kind, kernel);
    refusals_->push_back({&op, other, why == Apart::No ? Apart::JoinedAnother : why});
  };
  for (const Value* operand : op.operands)
    if (const Kernel* kernel = operand ? rules_.maker_of(operand) : nullptr)
      note(*kernel, ir::storage_of(operand)->producer());
  if (joined || (kind != Class::Pointwise && kind != Class::Reduction)) return;
  for (const Kernel* kernel : open_)
    if (kernel->kind != Kernel::Product && JoinRules::reads_alike(op, *kernel)) note(*kernel, kernel->ops.back());
}

// What reads a result, or overwrites what a kernel reads, comes after the kernel.
void Grouping::end_what_is_read(const Op& op, const Kernel* joined) {
  for (const Value* operand : op.operands)
    if (Kernel* kernel = operand ? rules_.maker_of(operand) : nullptr; kernel && kernel->open() && kernel != joined)
      end(*kernel, Apart::ReadByAnother);
  for (const int64_t donated : ir::donated_operands(op)) {
    const Value* lost = ir::storage_of(op.operands[static_cast<size_t>(donated)]);
    for (Kernel* kernel : std::vector<Kernel*>(open_.begin(), open_.end()))
      if (kernel != joined && JoinRules::reads(*kernel, lost)) end(*kernel, Apart::WrittenOver);
  }
}

void Grouping::end(Kernel& kernel, Apart why) {
  kernel.ended = why;
  std::erase(open_, &kernel);
}

}  // namespace sfsdp::passes
