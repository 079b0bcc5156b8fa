// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/decompose.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

struct Family {
  std::string_view opcode;
  std::vector<Term> (*decompose)(const CanonicalCall& call, Body& body);
};

constexpr std::array kFamilies = {
    Family{"cross_entropy", &decompose_cross_entropy},
    Family{"cross_entropy_backward", &decompose_cross_entropy_backward},
    Family{"embedding", &decompose_embedding},
    Family{"embedding_backward", &decompose_embedding_backward},
    Family{"layer_norm", &decompose_layer_norm},
    Family{"layer_norm_backward", &decompose_layer_norm_backward},
    Family{"linear", &decompose_linear},
    Family{"linear_dw", &decompose_linear_dw},
    Family{"linear_dx", &decompose_linear_dx},
    Family{"rms_norm", &decompose_rms_norm},
    Family{"rms_norm_backward", &decompose_rms_norm_backward},
    Family{"rope", &decompose_rope},
    Family{"rope_inverse", &decompose_rope_inverse},
    Family{"sdpa", &decompose_sdpa},
    Family{"sdpa_backward", &decompose_sdpa_backward},
};

const Family* find_family(std::string_view opcode) {
  const auto* found = std::ranges::find(kFamilies, opcode, &Family::opcode);
  return found == kFamilies.end() ? nullptr : found;
}

}  // namespace

bool is_canonical(std::string_view opcode) { return find_family(opcode) != nullptr; }

std::vector<Term> decompose(const CanonicalCall& call, Emitter& emitter) {
  const Family* family = find_family(call.opcode);
  SFSDP_CHECK(family, call.opcode, " has no decomposition");
  Body body(emitter);
  return family->decompose(call, body);
}

}  // namespace sfsdp::ir
