// SPDX-License-Identifier: BSD-3-Clause
// What:   names what several ops of LibTorch compute together by one canonical op (ir/canonical/): linear, rms_norm, …,
//         however the model spells it, and what autograd made of it.
// Why:    all that follows (remat, kernels, memory, time on another device) speaks of a norm, not of seven CPU ops.
// How:    a family proposes a call; its decomposition is looked up op by op. Only what is there to the last attribute is
//         replaced, so the executor, which runs the decomposition, computes the same bits.
// Needs:  nothing. The first of several ops that compute the same is found, and a match leaves the others.
// Leaves: ops of a match that others read too stay, and the match is dropped unless these are casts. What was not
//         recognised runs as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/options.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct CanonicaliseOptions {
  int64_t document_tokens =
      0;  // that costs take a document to have, where attention stays within one; 0: all of a sample

  static const std::vector<Field<CanonicaliseOptions>>& fields();
};

bool canonicalise(ir::Graph& graph, const CanonicaliseOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
