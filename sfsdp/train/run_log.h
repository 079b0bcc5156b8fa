// SPDX-License-Identifier: BSD-3-Clause
// Everything that a run reports: lines of the console, a live line of a terminal, metrics.jsonl and run.jsonl, TensorBoard's
// files. The trainer hands over what it measured. docs/metrics.md says what each figure means.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/train/metrics.h"
#include "sfsdp/train/metrics_file.h"
#include "sfsdp/train/progress_line.h"
#include "sfsdp/train/run_facts.h"
#include "sfsdp/train/tensorboard.h"

namespace sfsdp::train {

struct RunLogOptions {
  bool console = true;  // this rank prints
  Color color = Color::Off;
  std::ostream* terminal = nullptr;     // where the live line goes; null: nowhere
  std::function<int()> columns = {};    // of it; needed where there is one
  int64_t log_freq = 10;                // steps between two lines; the first of a start is always reported
  std::string dump_folder = {};         // of metrics.jsonl and run.jsonl; "": none
  std::string tensorboard_folder = {};  // made of it: <tensorboard_folder>/YYYYMMDD-HHMM[/rank_N]; "": none
  std::optional<int64_t> tensorboard_rank = std::nullopt;  // set: each rank has a folder of its own
  std::function<double()> now = {};                        // seconds of a steady clock; unset: the system's
};

// What the config, LOG_RANK and the terminal ask of this rank. Rank 0 prints, or the ranks that LOG_RANK lists, as in
// TorchTitan's run_train.sh; rank 0 writes files, or all ranks those of TensorBoard with metrics.save_for_all_ranks.
RunLogOptions run_log_options(const JobConfig& config, int64_t rank, int64_t world_size);

// From notices to start(), step() and validation() as they are done, and completed(). One thread at a time.
class RunLog {
 public:
  RunLog(RunLogOptions options, std::ostream& out);

  // A line of its own on the console of a rank that prints.
  void notice(const std::string& text);
  // Before the first step: opens the files, prints what the run is.  throws: UserError for a file that cannot be opened. What
  // a full disk has no room for is dropped then and later; the console says so.
  void start(RunFacts facts);
  // Whether this step is one that the console and TensorBoard report: the first of a start, and every log_freq-th.
  bool reports(int64_t step) const { return step == facts_.last_step + 1 || step % options_.log_freq == 0; }
  // After each step. `metrics` comes with what was measured; what follows of it is filled in.
  void step(StepMetrics metrics);
  // After each validation, with what was measured; its time is not counted in the tps of steps.
  void validation(ValidationMetrics metrics);
  // After the last one; entropy: of this rank's targets, nats.
  void completed(std::optional<double> entropy);

 private:
  void open_files();
  void report(StepMetrics metrics, double now);
  void write_scalars(const StepMetrics& metrics, double seconds_per_step);
  double memory_percent(double gib) const;

  RunLogOptions options_;
  std::ostream& out_;
  RunFacts facts_;
  std::optional<MetricsFile> file_;
  std::optional<TensorBoardFile> tensorboard_;
  std::optional<ProgressLine> progress_;
  std::deque<double> last_losses_;
  std::vector<double> tps_;  // of each step
  double started_ = 0;
  double last_end_ = 0;          // when the last step ended
  double seconds_per_step_ = 0;  // a running average of the wall, checkpoints and validations included
  // Since the last console line.
  double interval_begin_ = 0;
  double interval_data_s_ = 0;
  double interval_memory_gib_ = 0;
  int64_t interval_steps_ = 0;
};

}  // namespace sfsdp::train
