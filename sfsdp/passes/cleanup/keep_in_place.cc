// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/keep_in_place.h"

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::passes {
namespace {

using ir::Carry, ir::Graph, ir::Op, ir::Value;

// The last op that reads a value, itself, through views, or until its wait; nullptr: none does.
const Op* last_reader(const ir::Index& index, const Value& value) {
  const Op* last = nullptr;
  const auto later = [&](const Op* op) {
    if (op && (!last || index.position(op) > index.position(last))) last = op;
  };
  for (const Op* reader : index.readers(&value)) {
    later(reader);
    if (ir::aliased_operand(*reader) >= 0 || ir::is_start(*reader))
      for (const auto& result : reader->results()) later(last_reader(index, *result));
  }
  return last;
}

// Whether `carry.next` is one more than the step count that it replaces: an op that can do so where the count lies.
bool counts_in_place(const Carry& carry, const ir::Index& index) {
  const Op& maker = *carry.next->producer();
  return maker.is("step_count") && maker.operands[0] == carry.current && last_reader(index, *carry.current) == &maker;
}

// Where `store` may stand: after what makes the value, and after the last op that reads the one it replaces.
//   repeats: of several micro-batches, each hands its value on to the next one
Op* place_of(const Carry& carry, const ir::Index& index, bool repeats) {
  const Op* maker = carry.next->producer();
  const Op* reader = last_reader(index, *carry.current);
  const Op* last = reader && index.position(reader) > index.position(maker) ? reader : maker;
  if (repeats && ir::is_repeated(maker->section) && !ir::is_repeated(last->section))
    throw UserError(concat(ir::name_of(*last), " reads %", carry.current->name(),
                           " after all micro-batches, each of which replaces it",
                           "\n  expected it read in forward, loss or backward alone; make the value a result of that"));
  // the batch is read in a section, and what a graph is given stands above all of these
  if (maker->is("input") && last->section == ir::Section::Init)
    for (size_t next = index.position(last) + 1; next < index.size(); ++next)
      if (index.at(next)->section == ir::Section::Init) last = index.at(next);
  return index.at(index.position(last));
}

void check_not_needed(const Graph& graph, const Carry& carry, const ir::Index& index) {
  if (const Op* reader = last_reader(index, *carry.current))
    for (const int64_t k : ir::donated_operands(*reader))
      if (k >= 0 && ir::memory_of(reader->operands[static_cast<size_t>(k)]) == carry.current)
        throw UserError(
            concat(ir::name_of(*reader), " takes the memory of %", carry.current->name(), ", where %",
                   carry.next->name(), " is left for the next step",
                   "\n  expected what that op makes there to be carried on; or take the operand out of donates="));
  if (ir::memory_of(carry.next) == carry.current)
    throw UserError(concat("%", carry.next->name(), ", which the next step reads as %", carry.current->name(),
                           ", shows the same memory in another order\n  expected a copy of it; insert aten.clone"));
  for (const Value* output : graph.outputs)
    if (ir::memory_of(output) == carry.current)
      throw UserError(concat("the step returns %", output->name(), ", which lies where %", carry.next->name(),
                             " is left for the next step\n  expected a copy, or what replaces it"));
}

void check_in_place(const Graph& graph) {
  for (const Carry& carry : graph.carries)
    SFSDP_CHECK(ir::is_in_place(carry), '%', carry.next->name(), " lies elsewhere than %", carry.current->name());
}

}  // namespace

bool keep_in_place(Graph& graph, PassContext& ctx) {
  const ir::Index index(graph);
  ir::Builder build(graph);
  bool changed = false;
  for (Carry& carry : graph.carries) {
    if (ir::is_in_place(carry)) continue;
    changed = true;
    if (counts_in_place(carry, index)) {
      carry.next->producer()->attrs["donates"] = std::vector<int64_t>{0};
      ctx.metrics.add("made_in_place", 1);
      continue;
    }
    check_not_needed(graph, carry, index);
    Op* last = place_of(carry, index, graph.micro_batches > 1);
    const auto place = build.after(last).like(*last).at("");
    const bool of_batch = carry.next->producer()->is("input") && last->section == ir::Section::Init;
    carry.next = (of_batch ? place.in(ir::Section::Fwd) : place)
                     .value("store", {carry.current, carry.next}, carry.current->type(),
                            carry.current->name() + ".stored", {{"donates", std::vector<int64_t>{0}}});
    ctx.metrics.add("stores", 1);
  }
  build.apply();
  check_in_place(graph);
  return changed;
}

}  // namespace sfsdp::passes
