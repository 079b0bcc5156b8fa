// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <ostream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_pipe(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode);
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
  const bool out_is_live = is_live_terminal(STDOUT_FILENO);
  const char* launchers_columns = is_pipe(STDOUT_FILENO) ? std::getenv("SFSDP_TERMINAL_COLUMNS") : nullptr;
  if (!config.metrics.disable_color_printing && isatty(STDOUT_FILENO)) options.color = Color::On;
  if (options.console && (out_is_live || is_live_terminal(STDERR_FILENO))) {
    options.terminal = out_is_live ? &std::cout : &std::cerr;
    options.columns = [fd = out_is_live ? STDOUT_FILENO : STDERR_FILENO] { return terminal_columns(fd); };
  }
  if (options.console && !options.terminal && launchers_columns) {  // sfsdp launch passes live lines on
    options.terminal = &std::cout;
    options.columns = [columns = parse_int(launchers_columns).value_or(80)] { return static_cast<int>(columns); };
  }
  options.log_freq = config.metrics.log_freq;
  if (rank == 0 && config.metrics.enable_jsonl) options.dump_folder = config.job.dump_folder;
  if (config.metrics.enable_tensorboard && (rank == 0 || config.metrics.save_for_all_ranks))
    options.tensorboard_folder = config.job.dump_folder + "/" + config.metrics.save_tb_folder;
  if (config.metrics.save_for_all_ranks) options.tensorboard_rank = rank;
  return options;
}

RunLog::RunLog(RunLogOptions options, std::ostream& out) : options_(std::move(options)), out_(out) {
  if (!options_.now) options_.now = steady_seconds;
  if (options_.terminal) progress_.emplace(*options_.terminal, options_.columns, options_.now);
}

void RunLog::notice(const std::string& text) {
  if (!options_.console) return;
  if (progress_) progress_->clear();
  out_.clear();  // a full disk under a redirected console loses lines, not all that follow
  out_ << text << std::endl;
}

void RunLog::start(RunFacts facts) {
  facts_ = std::move(facts);
  if (options_.console) out_ << start_text(facts_) << std::flush;
  open_files();
  started_ = last_end_ = interval_begin_ = options_.now();
}

void RunLog::open_files() {
  const Say say = [this](const std::string& line) { notice(line); };
  if (!options_.dump_folder.empty()) {
    const std::string metrics = options_.dump_folder + "/metrics.jsonl", run = options_.dump_folder + "/run.jsonl";
    if (facts_.last_step == 0)
      if (const std::string other = move_aside(options_.dump_folder); !other.empty())
        notice(concat(metrics, " of an earlier run is now ", other));
    file_.emplace(metrics, facts_.last_step, say);
    AppendFile(run, say).write(json_line(facts_) + "\n");
  }
  if (!options_.tensorboard_folder.empty()) {
    std::string folder = options_.tensorboard_folder + "/" + minute_text(facts_.start_seconds);
    if (options_.tensorboard_rank) folder += concat("/rank_", *options_.tensorboard_rank);
    tensorboard_.emplace(folder, facts_.last_step, say);
  }
}

double RunLog::memory_percent(double gib) const {
  return 100 * gib * (1 << 30) / static_cast<double>(facts_.device_bytes);
}

void RunLog::step(StepMetrics metrics) {
  const double now = options_.now();
  metrics.tps =
      static_cast<double>(facts_.tokens_per_step()) / metrics.step_time_s / static_cast<double>(facts_.world_size);
  metrics.between_s = std::max(0.0, now - last_end_ - metrics.step_time_s);
  if (file_) file_->write(metrics);
  tps_.push_back(metrics.tps);
  last_losses_.push_back(metrics.loss);
  if (last_losses_.size() > 10) last_losses_.pop_front();
  // The first step warms up, so the average begins with the second; from the 101st on it forgets.
  const auto done = static_cast<double>(tps_.size());
  seconds_per_step_ += (now - last_end_ - seconds_per_step_) / std::clamp(done - 1, 1.0, 100.0);
  last_end_ = now;
  metrics.eta_s = seconds_per_step_ * static_cast<double>(facts_.config.training.steps - metrics.step);

  ++interval_steps_;
  interval_data_s_ += metrics.data_s;
  interval_memory_gib_ = std::max(interval_memory_gib_, metrics.memory_gib);
  if (reports(metrics.step)) report(metrics, now);
  if (progress_)
    progress_->show(concat("step ", metrics.step, "/", facts_.config.training.steps, "  loss ",
                           with_commas(metrics.loss, 4), "  tps ", with_commas(metrics.tps, 0), "  eta ",
                           duration_text(*metrics.eta_s)));
}

// `metrics` of one step become those of all steps since the line before, but for what TorchTitan has of the step itself:
// loss, grad_norm, lr.
void RunLog::report(StepMetrics metrics, double now) {
  const double seconds = now - interval_begin_;
  metrics.tps = static_cast<double>(interval_steps_ * facts_.tokens_per_step()) / seconds /
                static_cast<double>(facts_.world_size);
  metrics.memory_gib = interval_memory_gib_;
  metrics.memory_percent = memory_percent(metrics.memory_gib);
  metrics.data_s = interval_data_s_ / static_cast<double>(interval_steps_);
  set_flops(metrics, facts_.flops_per_token, facts_.peak_flops);
  notice(console_line(metrics, options_.color));
  if (tensorboard_) write_scalars(metrics, seconds / static_cast<double>(interval_steps_));
  interval_begin_ = now;
  interval_steps_ = 0;
  interval_data_s_ = interval_memory_gib_ = 0;
}

// TorchTitan's tags. There is no allocator that keeps memory for later here: what is reserved is what is active, and nothing
// is tried again.
void RunLog::write_scalars(const StepMetrics& metrics, double seconds_per_step) {
  const Scalar scalars[] = {{"loss_metrics/global_avg_loss", metrics.loss},
                            {"loss_metrics/global_max_loss", metrics.max_loss.value_or(metrics.loss)},
                            {"grad_norm", metrics.grad_norm},
                            {"throughput(tps)", metrics.tps},
                            {"tflops", metrics.tflops},
                            {"mfu(%)", metrics.mfu_percent.value_or(0)},
                            {"time_metrics/end_to_end(s)", seconds_per_step},
                            {"time_metrics/data_loading(s)", metrics.data_s},
                            {"time_metrics/data_loading(%)", 100 * metrics.data_s / seconds_per_step},
                            {"time_metrics/forward_backward(s)", metrics.forward_backward_s},
                            {"time_metrics/optimizer(s)", metrics.optimizer_s},
                            {"time_metrics/exposed_communication(s)", metrics.comm_exposed_s},
                            {"memory/max_active(GiB)", metrics.memory_gib},
                            {"memory/max_active(%)", metrics.memory_percent},
                            {"memory/max_reserved(GiB)", metrics.memory_gib},
                            {"memory/max_reserved(%)", metrics.memory_percent},
                            {"memory/num_alloc_retries", 0},
                            {"memory/num_ooms", 0},
                            {"n_tokens_seen", static_cast<double>(metrics.tokens)},
                            {"lr", metrics.lr}};
  tensorboard_->write(metrics.step, scalars);
}

void RunLog::validation(ValidationMetrics metrics) {
  metrics.tps = static_cast<double>(metrics.tokens) / metrics.seconds / static_cast<double>(facts_.world_size);
  metrics.memory_percent = memory_percent(metrics.memory_gib);
  interval_begin_ += metrics.seconds;
  if (file_) file_->write(metrics);
  notice(console_line(metrics, options_.color));
  if (!tensorboard_) return;
  const Scalar scalars[] = {{"validation_metrics/loss", metrics.loss},
                            {"validation_metrics/throughput(tps)", metrics.tps},
                            {"validation_metrics/memory/max_active(GiB)", metrics.memory_gib},
                            {"validation_metrics/memory/max_active(%)", metrics.memory_percent},
                            {"validation_metrics/memory/max_reserved(GiB)", metrics.memory_gib},
                            {"validation_metrics/memory/max_reserved(%)", metrics.memory_percent}};
  tensorboard_->write(metrics.step, scalars);
}

void RunLog::completed(std::optional<double> entropy) {
  if (tps_.empty()) return notice(concat("Training completed before: step ", facts_.last_step, " is done"));
  double mean = 0;
  for (double loss : last_losses_) mean += loss / static_cast<double>(last_losses_.size());
  notice(concat("Training completed: ", tps_.size(), " steps in ", with_commas(options_.now() - started_, 1),
                " s, median tps ", with_commas(tps_.empty() ? 0 : median(tps_), 0), "; mean loss of the last ",
                last_losses_.size(), " steps ", with_commas(mean, 4),
                entropy ? concat(", unigram entropy of this rank's targets ", with_commas(*entropy, 4), " (",
                                 with_commas(*entropy - mean, 4), " below)")
                        : ""));
  if (const int64_t dropped = (file_ ? file_->dropped() : 0) + (tensorboard_ ? tensorboard_->dropped() : 0))
    notice(concat("The disk was full: ", dropped, " records of metrics are missing"));
}

}  // namespace sfsdp::train
