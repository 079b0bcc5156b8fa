// SPDX-License-Identifier: BSD-3-Clause
// What might be a canonical op: each family walks from an op that is typical of it to the operands of a call. A proposal
// may be wrong: it counts only once its decomposition is found. One file per family, which says what it leaves alone.
#pragma once

#include <vector>

#include "sfsdp/passes/canonical/finder.h"

namespace sfsdp::passes {

struct Proposal {
  std::string opcode;
  std::vector<ir::Value*> operands;  // nullptr: absent
  ir::Emitter::Attributes attrs;
};

// Ways to read what begins at `op`, the likeliest first; the first that is found is taken.
using Propose = std::vector<Proposal> (*)(ir::Op* op, const OpFinder& finder);

std::vector<Proposal> propose_attention(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_cross_entropy(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_dropout(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_linear(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_renamed(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_rms_norm(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_rms_norm_backward(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_rope(ir::Op* op, const OpFinder& finder);
std::vector<Proposal> propose_rope_inverse(ir::Op* op, const OpFinder& finder);

}  // namespace sfsdp::passes
