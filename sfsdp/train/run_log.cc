// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool prints(int64_t rank, int64_t world_size) {
  const char* listed = std::getenv("LOG_RANK");
  if (world_size == 1 || !listed) return rank == 0;
  const std::vector<std::string> ranks = split(listed, ',');
  return std::ranges::find(ranks, std::to_string(rank)) != ranks.end();
}

// The middle of the sorted values, the upper one of an even number.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RunLogOptions run_log_options(const JobConfig& config, int64_t rank, int64_t world_size) {
  RunLogOptions options;
  options.console = prints(rank, world_size);
  if (!config.metrics.disable_color_printing && isatty(STDOUT_FILENO)) options.color = Color::On;
  options.log_freq = config.metrics.log_freq;
  if (rank == 0 && config.metrics.enable_jsonl) options.metrics_file = config.job.dump_folder + "/metrics.jsonl";
  return options;
}

RunLog::RunLog(RunLogOptions options, std::ostream& out) : options_(std::move(options)), out_(out) {
  if (!options_.now) options_.now = steady_seconds;
}

void RunLog::notice(const std::string& text) {
  if (options_.console) out_ << text << std::endl;
}

void RunLog::start(RunFacts facts) {
  facts_ = std::move(facts);
  if (options_.console) out_ << start_text(facts_) << std::flush;
  if (!options_.metrics_file.empty() && facts_.last_step > 0) cut_metrics(options_.metrics_file, facts_.last_step);
  if (!options_.metrics_file.empty()) file_.emplace(options_.metrics_file);
  started_ = interval_begin_ = options_.now();
}

void RunLog::step(StepMetrics metrics) {
  const auto data_ranks = static_cast<double>(facts_.data_ranks);
  metrics.tps = static_cast<double>(facts_.tokens_per_step()) / metrics.step_time_s / data_ranks;
  if (file_) file_->write(metrics);
  tps_.push_back(metrics.tps);
  last_losses_.push_back(metrics.loss);
  if (last_losses_.size() > 10) last_losses_.pop_front();
  interval_tokens_ += facts_.tokens_per_step();
  interval_memory_gib_ = std::max(interval_memory_gib_, metrics.memory_gib);
  if (metrics.step != facts_.last_step + 1 && metrics.step % options_.log_freq != 0) return;

  const double now = options_.now();
  metrics.tps = static_cast<double>(interval_tokens_) / (now - interval_begin_) / data_ranks;
  metrics.memory_gib = interval_memory_gib_;
  metrics.memory_percent = 100 * metrics.memory_gib * (1 << 30) / static_cast<double>(facts_.device_bytes);
  set_flops(metrics, facts_.flops_per_token, facts_.peak_flops);
  notice(console_line(metrics, options_.color));
  interval_begin_ = now;
  interval_tokens_ = 0;
  interval_memory_gib_ = 0;
}

void RunLog::completed(double entropy) {
  if (tps_.empty()) return notice(concat("Training completed before: step ", facts_.last_step, " is done"));
  double mean = 0;
  for (double loss : last_losses_) mean += loss / static_cast<double>(last_losses_.size());
  notice(concat("Training completed: ", tps_.size(), " steps in ", with_commas(options_.now() - started_, 1),
                " s, median tps ", with_commas(tps_.empty() ? 0 : median(tps_), 0), "; mean loss of the last ",
                last_losses_.size(), " steps ", with_commas(mean, 4), ", unigram entropy of this rank's targets ",
                with_commas(entropy, 4), " (", with_commas(entropy - mean, 4), " below)"));
}

}  // namespace sfsdp::train
