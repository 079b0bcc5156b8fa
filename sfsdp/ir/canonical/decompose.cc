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
  std::optional<LeftForBackward> left = std::nullopt;
  bool keeps_nothing = false;
};

constexpr std::array kFamilies = {
    Family{"cross_entropy", &decompose_cross_entropy, LeftForBackward{2, &lse_of, "cross_entropy_backward", 4}},
    Family{"cross_entropy_backward", &decompose_cross_entropy_backward},
    Family{"dropout", &decompose_dropout, LeftForBackward{1, &dropout_state, "dropout_backward", 1}},
    Family{"dropout_backward", &decompose_dropout_backward},
    Family{"embedding", &decompose_embedding},
    Family{"embedding_backward", &decompose_embedding_backward},
    Family{"joined_linear", &decompose_joined_linear},
    Family{"joined_linear_dw", &decompose_joined_linear_dw},
    Family{"joined_linear_dx", &decompose_joined_linear_dx},
    Family{"layer_norm", &decompose_layer_norm},
    Family{"layer_norm_backward", &decompose_layer_norm_backward},
    Family{"linear", &decompose_linear},
    Family{"linear_dw", &decompose_linear_dw},
    Family{"linear_dx", &decompose_linear_dx},
    Family{"matmul", &decompose_matmul},
    Family{"rms_norm", &decompose_rms_norm},
    Family{"rms_norm_backward", &decompose_rms_norm_backward},
    Family{"rope", &decompose_rope},
    Family{"rope_inverse", &decompose_rope_inverse},
    Family{"sdpa", &decompose_sdpa, std::nullopt, true},
    Family{"sdpa_backward", &decompose_sdpa_backward, std::nullopt, true},
};

const Family* find_family(std::string_view opcode) {
  const auto* found = std::ranges::find(kFamilies, opcode, &Family::opcode);
  return found == kFamilies.end() ? nullptr : found;
}

}  // namespace

bool is_canonical(std::string_view opcode) { return find_family(opcode) != nullptr; }

bool is_canonical(const Op& op) { return !op.has_attr("axis") && is_canonical(std::string_view(op.opcode)); }

const LeftForBackward* left_for_backward(std::string_view opcode) {
  const Family* family = find_family(opcode);
  return family && family->left ? &*family->left : nullptr;
}

bool keeps_nothing(std::string_view opcode) {
  const Family* family = find_family(opcode);
  return family && family->keeps_nothing;
}

std::optional<size_t> operand_left_by_forward(std::string_view opcode) {
  for (const Family& family : kFamilies)
    if (family.left && family.left->reader == opcode) return family.left->operand;
  return std::nullopt;
}

std::vector<Term> decompose(const CanonicalCall& call, Emitter& emitter) {
  const Family* family = find_family(call.opcode);
  SFSDP_CHECK(family, call.opcode, " has no decomposition");
  Body body(emitter);
  return family->decompose(call, body);
}

}  // namespace sfsdp::ir
