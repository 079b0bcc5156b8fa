// SPDX-License-Identifier: BSD-3-Clause
// What is reported of a step: TorchTitan's console line, and a line of JSON in metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sfsdp::train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;         // of this very step
  int64_t tokens = 0;    // trained on so far, over all ranks
  double step_time_s = 0;
  double tps = 0;  // tokens per second and device
  double memory_gib = 0;
  double memory_percent = 0;  // of the device's memory
  double tflops = 0;          // per device
  std::optional<double> mfu_percent = std::nullopt;
};

enum class Color : uint8_t { Off, On };

// step:  1  loss:  8.04910  grad_norm:  1.2345  memory:  1.00GiB(1.25%)  tps: 12,345  tflops: 1.23  mfu: 0.12%
// Without mfu when mfu_percent is unset. No newline.
std::string console_line(const StepMetrics& metrics, Color color);

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

// One object: step, loss, grad_norm, lr, tokens, step_time_s, tps, memory_gib. Doubles have 17 digits, so they read back
// exactly; those JSON has no number for are the strings "nan", "inf", "-inf".
std::string json_line(const StepMetrics& metrics);

// Cuts the lines of steps after `step` off a file of such lines, and a half line at its end: a run that goes on from
// `step` writes them again. No file: nothing to do.  throws: UserError
void cut_metrics(const std::string& path, int64_t step);

// Appends lines to a file, each in one write, so that what was written survives a crash of the process. A half line that
// an earlier run left at the end is closed first.
//   throws: UserError if the file cannot be opened or written
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // makes the folders it needs
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void write(const StepMetrics& metrics);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace sfsdp::train
