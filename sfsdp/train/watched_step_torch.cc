// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/train/checkpoint/files.h"
#include "sfsdp/train/checkpoint/shard_file.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/non_finite.h"
#include "sfsdp/train/watched_step.h"

namespace sfsdp::train {
namespace {

ValueCounts count(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).reshape({-1});
  const at::Tensor finite = at::isfinite(values);
  ValueCounts counts;
  counts.numel = values.numel();
  counts.nan = at::isnan(values).sum().item<int64_t>();
  counts.plus_inf = at::isposinf(values).sum().item<int64_t>();
  counts.minus_inf = at::isneginf(values).sum().item<int64_t>();
  if (counts.not_finite() > 0) counts.first = finite.logical_not().nonzero()[0].item<int64_t>();
  const at::Tensor others = values.masked_select(finite);
  if (others.numel() == 0) return counts;
  counts.min = others.min().item<double>();
  counts.max = others.max().item<double>();
  counts.mean_abs = others.abs().mean().item<double>();
  return counts;
}

// nullopt where there is nothing that could be not finite. Without a bad value only their number is counted.
std::optional<ValueCounts> count_bad(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return std::nullopt;
  ValueCounts counts;
  counts.numel = tensor.numel();
  if (at::isfinite(tensor).all().item<bool>()) return counts;
  return count(tensor);
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes that this rank's threads read and write in a second: the median of some copies that no cache holds. 0: there is no
// room for them.
double measure_copies() try {
  constexpr int64_t kBytes = 128 << 20;
  constexpr size_t kRounds = 7;
  const at::Tensor from = at::ones({kBytes}, at::kByte), to = at::ones({kBytes}, at::kByte);
  std::array<double, kRounds> us = {};
  for (double& of_one : us) {
    const double begin = now_us();
    to.copy_(from);
    of_one = now_us() - begin;
  }
  std::ranges::nth_element(us, us.begin() + kRounds / 2);
  return 2.0 * kBytes / (us[kRounds / 2] * 1e-6);
} catch (const std::exception&) {
  return 0;
}

// Runs the step with `on_op` called after each op.
template <class OnOp>
StepResult run_with(Step& step, const std::vector<Batch>& micro_batches, const OnOp& on_op) {
  struct Reset {
    std::shared_ptr<exec::Executor> executor;
    ~Reset() { executor->on_op = nullptr; }
  } const reset{step.executor(micro_batches[0])};
  reset.executor->on_op = on_op;
  return step(micro_batches);
}

// The text of the rank whose number is the smallest, with the ranks that have the same number: a collective call.
std::string text_of_first(comm::CommWorld& world, int64_t number, const std::string& text) {
  constexpr size_t kWords = 512;
  std::vector<uint64_t> mine(1 + kWords);
  mine[0] = static_cast<uint64_t>(number);
  std::memcpy(&mine[1], text.data(), std::min(text.size(), (kWords - 1) * 8));  // ends with a zero
  const std::vector<uint64_t> all = comm::gather_numbers(world, mine, "first value that is not finite");
  uint64_t smallest = mine[0];
  for (size_t r = 0; r * mine.size() < all.size(); ++r) smallest = std::min(smallest, all[r * mine.size()]);
  std::vector<std::string> ranks;
  std::string found;
  for (size_t r = 0; r * mine.size() < all.size(); ++r) {
    if (all[r * mine.size()] != smallest) continue;
    ranks.push_back(std::to_string(r));
    if (ranks.size() == 1) found = reinterpret_cast<const char*>(&all[r * mine.size() + 1]);
  }
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "), ": ", found);
}

}  // namespace

WatchedStep::WatchedStep(const JobConfig& config, std::shared_ptr<Program> program, comm::CommWorld* world,
                         std::function<void(const std::string&)> say)
    : config_(config),
      program_(std::move(program)),
      world_(world),
      say_(std::move(say)),
      trace_(world ? world->rank() : 0) {}

StepResult WatchedStep::run(Step& step, const std::vector<Batch>& micro_batches) {
  const bool watches = config_.debug.nan == "dump" && !explained_;
  if (watches) keep_buffers(step, micro_batches[0]);
  const StepResult result = run_traced(step, micro_batches);
  if (watches && (result.skipped || !std::isfinite(result.loss) || !std::isfinite(result.grad_norm)))
    explain(step, micro_batches, result);
  return result;
}

StepResult WatchedStep::run_traced(Step& step, const std::vector<Batch>& micro_batches) {
  const int64_t k = step.step + 1;
  const ProfilePhase phase = profile_phase(config_.profiling, k);
  if (phase == ProfilePhase::Wait) return step(micro_batches);
  const auto executor = step.executor(micro_batches[0]);  // whose graph must be there until all is told
  StepRuns runs(executor->graph());
  runs.begin(k, now_us());
  const auto ran = [&](const ir::Op& op, const std::vector<at::Tensor>&) { runs.ran(op, now_us()); };
  const StepResult result = run_with(step, micro_batches, ran);
  runs.end(now_us());
  if (phase == ProfilePhase::WarmUp) return result;
  trace_.add(runs);
  table_.add(runs);
  if (phase == ProfilePhase::ActiveAndWrite) keep_trace(k);
  return result;
}

// A trace is no reason to end a run: a disk that is full now may have room for the next one.
void WatchedStep::keep_trace(int64_t step) {
  traced_ = step;
  try {
    write_trace(trace_path(config_, step, rank()), trace_.json());
  } catch (const UserError& error) {
    say_(concat("step ", step, " leaves no trace: ", error.what()));
  }
  trace_.clear();
}

std::string WatchedStep::profile(double peak_flops) {
  if (table_.empty()) return "";
  const std::string text = table_.text(rank(), {.flops = peak_flops, .bytes = measure_copies()});
  if (traced_ == 0) return text;  // stopped before the round's last step
  const std::string path = table_path(config_, traced_, rank());
  try {
    write_trace(path, text);
  } catch (const UserError& error) {
    say_(concat(path, " is not written: ", error.what()));
  }
  return text;
}

void WatchedStep::keep_buffers(const Step& step, const Batch& batch) {
  buffers_.clear();
  const auto state = step.state_dict();
  const auto variant = program_->training(batch);
  for (const ir::Carry& carry : variant->graph.carries) {
    if (!ir::is_repeated(carry.next->producer()->section)) continue;
    const auto& name = carry.current->producer()->attr<std::string>("name");
    if (const auto found = state.find(name); found != state.end()) buffers_[name] = found->second.clone();
  }
}

void WatchedStep::explain(Step& step, const std::vector<Batch>& micro_batches, const StepResult& result) {
  explained_ = true;
  const int64_t rank = world_ ? world_->rank() : 0;
  const std::string folder = concat(config_.job.dump_folder, "/nan-step-", step.step);
  const std::string mine = concat(folder, "/rank-", rank);
  checkpoint::make_folders(mine);
  step.load_state_dict(buffers_);
  dump(step, micro_batches, mine);
  if (rank == 0) write_atomically(folder + "/config.toml", printed(config_));
  int64_t number = INT64_MAX;
  std::string found = replay(step, micro_batches, &number);
  report(step, result, found, mine);
  found = world_ ? text_of_first(*world_, number, found) : concat("rank 0: ", found);
  say_(concat("step ", step.step, ": the loss is ", number_text(result.loss), ", the gradient norm ",
              number_text(result.grad_norm), "\n  the first value that is not finite is of ", found,
              "\n  batch and state", result.skipped ? "" : ", as the update left it,", " are in ", folder));
}

void WatchedStep::dump(Step& step, const std::vector<Batch>& micro_batches, const std::string& folder) const {
  std::vector<at::Tensor> kept;  // contiguous ones, whose bytes are written
  std::vector<checkpoint::Piece> batch;
  for (size_t m = 0; m < micro_batches.size(); ++m)
    for (size_t i = 0; i < micro_batches[m].size(); ++i) {
      const at::Tensor& t = kept.emplace_back(micro_batches[m][i].contiguous());
      batch.push_back({.name = concat(m, ".inputs.", i),
                       .dtype = capture::dtype_of(t.scalar_type()),
                       .shape = t.sizes().vec(),
                       .end = t.numel(),
                       .data = static_cast<std::byte*>(t.mutable_data_ptr())});
    }
  checkpoint::Manifest unused;
  checkpoint::write_shard(folder, "batch.safetensors", batch, unused);
  checkpoint::write_shard(folder, "state.safetensors", checkpoint_pieces(step, world_ ? world_->rank() : 0), unused);
}

void WatchedStep::report(const Step& step, const StepResult& result, const std::string& found,
                         const std::string& folder) const {
  write_atomically(folder + "/report.json",
                   concat("{\n  \"step\": ", step.step, ",\n  \"lr\": ", shortest(step.lr), ",\n  \"seed\": ",
                          step.program().options().seed, ",\n  \"loss\": ", json_quoted(number_text(result.loss)),
                          ",\n  \"grad_norm\": ", json_quoted(number_text(result.grad_norm)),
                          ",\n  \"state\": ", json_quoted(result.skipped ? "before the step" : "after the step"),
                          ",\n  \"found\": ", json_quoted(found), "\n}\n"));
}

// Twice, as what the op read is known only once it is found: the second time its operands are counted.
std::string WatchedStep::replay(Step& step, const std::vector<Batch>& micro_batches, int64_t* number) {
  const auto executor = step.executor(micro_batches[0]);
  NonFiniteWatch watch(executor->graph());
  std::map<const ir::Op*, int64_t> times;  // that it ran: once per micro-batch, or once
  const auto again = [&](const auto& on_op) {
    step.load_state_dict(buffers_);
    --step.step;
    run_with(step, micro_batches, on_op);
  };
  again([&](const ir::Op& op, const std::vector<at::Tensor>& results) {
    if (watch.fault()) return;
    ++times[&op];
    std::vector<std::optional<ValueCounts>> counts;
    for (const at::Tensor& t : results) counts.push_back(count_bad(t));
    watch.see(op, counts);
  });
  const auto& fault = watch.fault();
  std::map<const ir::Value*, ValueCounts> operands;
  int64_t seen = 0;
  again([&](const ir::Op& op, const std::vector<at::Tensor>& results) {
    if (!fault || seen++ >= fault->number) return;
    for (size_t i = 0; i < results.size(); ++i) {
      const ir::Value* value = op.result(static_cast<int>(i));
      const bool reads = std::ranges::find(fault->op->operands, value) != fault->op->operands.end();
      if (reads && results[i].defined() && results[i].is_floating_point()) operands[value] = count(results[i]);
    }
  });
  if (!fault) return "no op: run again, every value was finite";
  *number = fault->number;
  return describe(*fault, operands, times.at(fault->op) - 1);
}

}  // namespace sfsdp::train
