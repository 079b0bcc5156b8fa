// SPDX-License-Identifier: BSD-3-Clause
// Ops of LibTorch that are a canonical op under another name. Left alone: attention of separate products and a softmax, or
// with dropout inside.
#include <array>

#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/canonical/proposals.h"

namespace sfsdp::passes {
namespace {

struct Name {
  const char* aten;
  const char* canonical;
};
constexpr std::array kNames = {
    Name{"aten.embedding", "embedding"},
    Name{"aten.embedding_dense_backward", "embedding_backward"},
    Name{"aten.native_layer_norm", "layer_norm"},
    Name{"aten.native_layer_norm_backward", "layer_norm_backward"},
    Name{"aten._scaled_dot_product_flash_attention_for_cpu", "sdpa"},
    Name{"aten._scaled_dot_product_flash_attention_for_cpu_backward", "sdpa_backward"},
};

}  // namespace

std::vector<Proposal> propose_renamed(ir::Op* op, const OpFinder&) {
  if (ir::is_random(*op)) return {};
  for (const Name& name : kNames)
    if (op->is(name.aten)) return {{name.canonical, op->operands, op->attrs}};
  return {};
}

}  // namespace sfsdp::passes
