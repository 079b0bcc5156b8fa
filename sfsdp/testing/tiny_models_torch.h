// SPDX-License-Identifier: BSD-3-Clause
// Language models of a few thousand parameters, their batches and optimizer, for tests that train.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "sfsdp/models/gpt/gpt.h"
#include "sfsdp/models/llama3/llama3.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/step/step.h"

namespace sfsdp::testing {

inline models::Llama3Args tiny_llama(int64_t dim = 24) {
  models::Llama3Args args;
  args.dim = dim;
  args.n_layers = 2;
  args.n_heads = 4;
  args.n_kv_heads = 2;
  args.head_dim = 6;
  args.vocab_size = 29;
  args.hidden_dim = 34;
  return args;
}

// Rows first to first + rows of the global batch of a step: inputs and targets.
inline Batch tokens(int64_t step, int64_t first, int64_t rows, int64_t seq = 12) {
  at::Tensor ids = at::empty({rows, seq + 1}, at::kLong);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i <= seq; ++i)
      ids.mutable_data_ptr<int64_t>()[r * (seq + 1) + i] = (7 * step + 5 * (first + r) + i * i + 3 * i) % 29;
  return {ids.narrow(1, 0, seq).contiguous(), ids.narrow(1, 1, seq).contiguous()};
}

inline models::GptArgs tiny_gpt() {
  models::GptArgs args;
  args.dim = 20;
  args.n_layers = 2;
  args.n_heads = 4;
  args.vocab_size = 29;
  args.max_positions = 16;
  return args;
}

inline const auto loss_of = [](auto& model, const Batch& b) {
  return models::cross_entropy(model->forward(b[0]), b[1]);
};
inline const auto make_llama = [] { return models::Llama3(tiny_llama()); };
inline const auto make_gpt = [] { return models::Gpt(tiny_gpt()); };

inline constexpr int64_t kGlobalBatch = 24;
// A rank's share of the global batch of a step, in `count` micro-batches.
inline std::vector<Batch> micro_batches_of(int64_t step, int64_t rank, int64_t ranks, int64_t count) {
  const int64_t rows = kGlobalBatch / ranks / count;
  std::vector<Batch> batches;
  for (int64_t m = 0; m < count; ++m) batches.push_back(tokens(step, (m * ranks + rank) * rows, rows));
  return batches;
}

inline const AdamW kAdamW{.lr = 2e-3, .weight_decay = 0.1};

}  // namespace sfsdp::testing
