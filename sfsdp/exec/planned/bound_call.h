// SPDX-License-Identifier: BSD-3-Clause
// One call of a kernel with its arguments: what computes an op, or several, and the tensors that it reads and writes. What stays from
// step to step is filled in once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/canonical_call.h"
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/plan/copied_bytes.h"

namespace sfsdp::exec {

struct BoundCall {
  //   op:     its first; must outlive the call
  //   given:  its results
  BoundCall(const ir::Op& first, std::vector<const ir::Value*> given, std::optional<OpCall> by = {})
      : op(&first), results(std::move(given)), call(std::move(by)), in_place(results.size(), false) {}

  const ir::Op* op;
  std::vector<const ir::Value*> results;
  std::optional<OpCall> call;
  std::optional<CanonicalCall> canonical;
  std::unique_ptr<OwnCall> own;  // none of the three: accumulate
  std::vector<const ir::Value*> reads;

  // By result: whether it is written where it lies.
  std::vector<bool> in_place;
  // Where the one result of `call`, of a pack whose parts come there, or of an accumulate goes; undefined: a new tensor.
  at::Tensor out;
  bool packs = false;    // it is a pack, and its result is put together where it lies
  bool is_done = false;  // a view of what does not move: once and for all

  std::vector<at::Tensor> operands;  // by `reads`: those that stay, and while it runs the others
  std::vector<size_t> late;          // operands that do not stay

  // Sets `operands` and `late`.
  //   place:  of a value, undefined if it has none
  //   moves:  by id of a value: whether it is made anew in each step
  void bind(const std::vector<at::Tensor>& place, const std::vector<bool>& moves);
  // Whether it reads memory as it is, and not by a tensor's lazy bits: negated, conjugated.
  bool reads_memory() const { return own || canonical; }
  // What it has made, by result, until the next run, and the caller may take what has no place; nothing where all of it lies in place.
  // Throws as what computes it; std::logic_error where a result is not of its type.
  //   copied: to which it adds what it copies into a bucket or out of one
  std::span<at::Tensor> run(const StepScalars& scalars, DataPosition position, ir::Part part, int64_t micro_batches,
                            plan::CopiedBytes& copied);

 private:
  void accumulate(ir::Part part, int64_t micro_batches);

  std::vector<at::Tensor> given_;  // by `call`
  bool is_checked_ = false;
};

}  // namespace sfsdp::exec
