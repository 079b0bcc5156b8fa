// SPDX-License-Identifier: BSD-3-Clause
// Everything that a run reports: lines of the console, metrics.jsonl. The trainer hands over what it measured.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/train/metrics.h"
#include "sfsdp/train/run_facts.h"

namespace sfsdp::train {

struct RunLogOptions {
  bool console = true;  // this rank prints
  Color color = Color::Off;
  int64_t log_freq = 10;             // steps between two lines; step 1 is always reported
  std::string metrics_file = {};     // "": none
  std::function<double()> now = {};  // seconds of a steady clock; unset: the system's
};

// What the config, LOG_RANK and the terminal ask of this rank. Rank 0 prints, or the ranks that LOG_RANK lists, as in
// TorchTitan's run_train.sh; rank 0 writes metrics.jsonl.
RunLogOptions run_log_options(const JobConfig& config, int64_t rank, int64_t world_size);

// From notices to start(), step() after each step, and completed(). One thread at a time.
class RunLog {
 public:
  RunLog(RunLogOptions options, std::ostream& out);

  // A line of its own on the console of a rank that prints.
  void notice(const std::string& text);
  // Before the first step: opens the files, prints what the run is.  throws: UserError for a file that cannot be written
  void start(RunFacts facts);
  // After each step. `metrics` comes with what was measured; tps, tflops, mfu and memory_percent are filled in here.
  void step(StepMetrics metrics);
  // After the last one; entropy: of this rank's targets, nats.
  void completed(double entropy);

 private:
  RunLogOptions options_;
  std::ostream& out_;
  RunFacts facts_;
  std::optional<MetricsFile> file_;
  std::deque<double> last_losses_;
  std::vector<double> tps_;  // of each step
  double started_ = 0;
  // Since the last console line.
  double interval_begin_ = 0;
  int64_t interval_tokens_ = 0;
  double interval_memory_gib_ = 0;
};

}  // namespace sfsdp::train
