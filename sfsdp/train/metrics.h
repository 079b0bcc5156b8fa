// SPDX-License-Identifier: BSD-3-Clause
// What is reported of a step: TorchTitan's console line, and a line of JSON in metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sfsdp::train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;  // mean over the global batch
  // The largest of the ranks' own means; ranks ask each other in the steps that are reported, unset in the others.
  std::optional<double> max_loss = std::nullopt;
  // How uneven a mixture's choices were, of the fullest expert and rank, and the rounds that rows took (optim/expert_loads.h); the largest of
  // all ranks, in the steps that are reported.
  std::optional<double> expert_tokens = std::nullopt, expert_rows = std::nullopt, expert_rounds = std::nullopt;
  double grad_norm = 0;                           // before clipping
  double lr = 0;                                  // of this very step
  int64_t tokens = 0;                             // trained on so far, over all ranks
  std::optional<int64_t> targets = std::nullopt;  // with training.loss_mask: of the step, those that the loss counts
  double step_time_s = 0;
  // Where step_time_s went on this rank; the rest went into none of these.
  double data_s = 0;              // reading the batch
  double forward_backward_s = 0;  // without collectives, as the next
  double optimizer_s = 0;         // clipping and update
  double comm_exposed_s = 0;      // in collectives while nothing else ran, waiting for other ranks too
  double between_s = 0;           // from the last step's end to this one's begin: reports, validation, checkpoints
  double tps = 0;                 // tokens per second and device
  double memory_gib = 0;          // most that was allocated at once
  double memory_state_gib = 0;    // allocated as the step began: parameters, optimizer, what else outlives a step
  double memory_percent = 0;      // memory_gib, of the device's memory
  double tflops = 0;              // per device
  std::optional<double> mfu_percent = std::nullopt;
  std::optional<double> eta_s = std::nullopt;  // until the last step is done
};

struct ValidationMetrics {
  int64_t step = 0;    // done before it
  double loss = 0;     // mean over all of its tokens, over all ranks
  int64_t tokens = 0;  // over all ranks
  double seconds = 0;
  double tps = 0;             // tokens per second and device
  double memory_gib = 0;      // most that was allocated at once
  double memory_percent = 0;  // of the device's memory
};

enum class Color : uint8_t { Off, On };

// step:  1  loss:  8.04910  grad_norm:  1.2345  memory:  1.00GiB(1.25%)  tps: 12,345  tflops: 1.23  mfu: 0.12%
// Without mfu when mfu_percent is unset; with "  eta: 1:02:03" at the end when eta_s is set. No newline.
std::string console_line(const StepMetrics& metrics, Color color);
// validate step: 10  loss:  5.1234  memory:  1.00GiB(1.25%)  tps: 12,345
std::string console_line(const ValidationMetrics& metrics, Color color);
// "1:02:03"; "2d 01:02:03" from a day on. Rounded up, so that 0:00:00 is the end.
std::string duration_text(double seconds);

// Sizes that TorchTitan's FLOP formula asks for.
struct ModelSize {
  int64_t parameters = 0;
  int64_t embedding_parameters = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t dim = 0;
};
// 6 (N - N_emb) + 12 L H (dim / H) seq: forward and backward of one token. Attention counts in full although it is
// causal; what is computed again does not count.
int64_t flops_per_token(const ModelSize& size, int64_t seq_len);

// Fills tflops and mfu_percent from tps. `peak_flops`: of one device per second; unset when it is not known.
void set_flops(StepMetrics& metrics, int64_t flops_per_token, std::optional<double> peak_flops);

// One object on one line, beginning with "step"; docs/metrics.md lists the fields. Doubles have 17 digits, so they read
// back exactly; those JSON has no number for are the strings "nan", "inf", "-inf". No newline.
std::string json_line(const StepMetrics& metrics);
std::string json_line(const ValidationMetrics& metrics);
// A double as above.
std::string json_number(double value);

}  // namespace sfsdp::train
