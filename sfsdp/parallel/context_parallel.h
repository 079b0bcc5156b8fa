// SPDX-License-Identifier: BSD-3-Clause
// The user's options of the axis cp, which cuts the sequence: each of its ranks has some tokens of every sample.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sfsdp {

// What ranks exchange for attention over a sequence of which each has a part.
enum class RotateMethod : uint8_t {
  AllGather,  // keys and values: each rank has the queries of its tokens, and all heads
  AllToAll,  // heads: each rank has all tokens of its heads, whose number cp · tp divides. Source: DeepSpeed-Ulysses, arXiv:2309.14509
  Ring,      // keys and values, of one rank after the other (ring_attention.h)
  Auto,  // of each attention what is fastest on the machine that costs are counted on (compile/choose_attention.h); where no machine
         // is named what sends less, keys and values at once or heads
};
// As parallelism.context_parallel_rotate_method has it: "allgather".
constexpr const char* to_string(RotateMethod method) {
  constexpr std::array<const char*, 4> kNames = {"allgather", "alltoall", "ring", "auto"};
  return kNames.at(static_cast<size_t>(method));
}

struct ContextParallelOptions {
  // Head-tail: of 2 · cp chunks of the sequence rank r has chunk r and chunk 2 · cp - 1 - r, so that causal attention is as much work
  // on every rank. false: each rank has one range.
  // Source: Llama 3, arXiv:2407.21783, section 3.3.2.
  bool load_balance = true;
  RotateMethod rotate_method = RotateMethod::AllGather;
  // Which dimension of each tensor of the batch is the sequence, -1: none; empty: dimension 1 of those that have it. A model
  // and its loss see the whole tensors; each rank computes its part of what follows from them.
  std::vector<int64_t> sequence_dims = {};
  // With Auto: of single attentions, by the name of the first result of sdpa and of sdpa_backward in the captured graph, canonical.
  // What is not named is chosen by what it sends.
  std::map<std::string, RotateMethod> methods = {};
};

}  // namespace sfsdp
