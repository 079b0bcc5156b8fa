// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>
#include <ostream>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/cores.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/exit_code.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/agent/rank_threads.h"
#include "sfsdp/comm/agent/torchrun_agent.h"
#include "sfsdp/comm/mpi/mpi_world.h"
#include "sfsdp/comm/null/null_world.h"
#include "sfsdp/comm/progress_page.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/cost/product_times.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/exec/planned/measure_products.h"
#include "sfsdp/exec/planned/products.h"
#include "sfsdp/ir/canonical/product_shape.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/data/dataset.h"
#include "sfsdp/train/data/validation.h"
#include "sfsdp/train/imagined_ranks.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/job_data.h"
#include "sfsdp/train/lr_schedule.h"
#include "sfsdp/train/machine_memory.h"
#include "sfsdp/train/non_finite.h"
#include "sfsdp/train/product_peak.h"
#include "sfsdp/train/run_log.h"
#include "sfsdp/train/skipped_steps.h"
#include "sfsdp/train/stop_signals.h"
#include "sfsdp/train/watched_step.h"
#include "sfsdp/train/weights/hf_folder.h"

namespace sfsdp::train {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t number_from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? parse_int(text).value_or(otherwise) : otherwise;
}

//   by_mpi: mpirun or srun has started the ranks
std::unique_ptr<comm::CommWorld> make_world(const JobConfig& config, std::shared_ptr<comm::FlightRecorder> recorder,
                                            bool by_mpi) {
  if (config.comm.mode == "fake_backend") return comm::make_null_world(static_cast<int>(imagined_ranks(std::getenv)));
  if (by_mpi)
    return comm::make_mpi_world(std::make_shared<comm::Mpi>(), config.comm.init_timeout_seconds * 1000,
                                std::move(recorder));
  if (!std::getenv("WORLD_SIZE")) return nullptr;
  comm::TcpOptions options = comm::tcp_options_from_env();
  options.init_timeout_ms = config.comm.init_timeout_seconds * 1000;
  options.timeout_ms = config.comm.init_timeout_seconds * 1000;  // until the first step is done
  if (options.world_size == 1) return nullptr;
  options.shared_memory = config.comm.shared_memory;
  if (!config.comm.listen.empty()) options.listen = config.comm.listen;
  return comm::make_launched_world(std::move(options), std::move(recorder));
}

// What this rank has been doing, for `sfsdp doctor --flight`. That it cannot be written is said, but is not the failure.
void write_flight_record(const JobConfig& config, const comm::CommWorld& world, const comm::FlightRecorder& recorder,
                         const std::string& reason, std::ostream& err) {
  if (config.comm.trace_buf_size == 0) return;
  const std::string path = concat(config.job.dump_folder, "/", config.comm.save_traces_folder, "/",
                                  config.comm.save_traces_file_prefix, world.rank(), ".json");
  try {
    comm::write_flight_record(path, recorder.record(world.rank(), world.world_size(), reason));
  } catch (const std::exception& error) {
    err << "no flight record of rank " << world.rank() << ": " << error.what() << std::endl;
  }
}

// Before anything else is exchanged; Step compares what the configurations have become.
void check_same_configuration(const JobConfig& config, comm::CommWorld* world) {
  if (!world) return;
  const comm::RankText text = {"configurations", to_toml(config),
                               "expected the same config file and flags on all ranks; compare their command lines"};
  comm::expect_same_texts(*world, {&text, 1});
}

// Seconds that all threads of this process have computed for.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// In flops per second of this rank's threads, each as fast as one by itself.
//   kernels: that the planned executor computes products by here
double peak_of(at::ScalarType dtype, const std::set<exec::ProductKernel>& kernels) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  double best = 0;
  for (const exec::ProductKernel kernel : kernels) {
    at::Tensor x, y, z;
    best = std::max(best, measure_peak_flops([&](int64_t n) {
                      if (!x.defined() || x.size(0) != n) {
                        x = at::ones({n, n}, at::TensorOptions(dtype));
                        y = x.clone();
                        z = at::empty_like(x);
                      }
                      const double before = processor_seconds();
                      exec::multiply(kernel, x, y, z, 0);
                      return processor_seconds() - before;
                    }));
  }
  at::set_num_threads(threads);
  return best * threads;
}

// Libraries of products that may be asked for: to load one changes the environment, so no thread may run yet that reads it.
void find_libraries(const JobConfig& config) {
  const std::string& products = config.exec.products;
  if (config.exec.executor == "planned" && (products == "measured" || products == "openblas"))
    exec::has_product(exec::ProductKernel::OpenBlas);
}

// Those of a graph's products in float32; at::mm where there is none.
std::set<exec::ProductKernel> product_kernels_of(const ir::Graph& graph) {
  std::set<exec::ProductKernel> kernels;
  for (const auto& op : graph.ops())
    if (ir::product_of(*op)) kernels.insert(*exec::product_kernel(op->attr_or<std::string>("product_kernel", "")));
  if (kernels.empty()) kernels.insert(exec::ProductKernel::Aten);
  return kernels;
}

// How many ranks share this host's memory.
int64_t local_ranks(const comm::CommWorld* world) {
  return world ? std::max<int64_t>(1, number_from_environment("LOCAL_WORLD_SIZE", world->ranks_of_host())) : 1;
}

// Ranks whose configurations differ are told so before they exchange anything else. A collective call.
CompiledJob job_of_rank(const JobConfig& config, comm::CommWorld* world) {
  check_same_configuration(config, world);
  std::vector<std::string> notes;
  JobOptions options;
  if (world) options.rank = world->rank();
  options.cores = {.count = world ? world->cores_of_host() : usable_cores(),
                   .ranks = world ? world->ranks_of_host() : 1,
                   .threads = at::get_num_threads()};
  options.choose_products = [&](const std::vector<ir::ProductShape>& shapes, const std::string& rule) {
    exec::ProductChoice choice = exec::choose_products(shapes, {rule, cost::cache_folder()}, world);
    notes = std::move(choice.notes);
    return std::move(choice.table);
  };
  CompiledJob job = make_job(config, world ? world->world_size() : 1, options);
  job.notices.insert(job.notices.end(), notes.begin(), notes.end());
  return job;
}

PlannedMemory memory_of(const Program& program) {
  const Held<const Program::Variant> first = program.first();
  return program.options().executor == ExecutorKind::Planned ? planned_memory(first->plan)
                                                             : planned_memory(first->graph);
}

// Which samples the rank has: ranks along a model axis have the same.
int64_t data_rank_of(const CompiledJob& job, int64_t rank) {
  const Strategy& strategy = job.program->strategy();
  return strategy.mesh.group_rank(rank, strategy.data_axes());
}

// Adds up a number that each rank has of its samples, over all samples. A collective call.
int64_t sum_of_samples(comm::CommWorld* world, const CompiledJob& job, int64_t value, const char* what) {
  if (!world) return value;
  int64_t sum = 0;
  for (const uint64_t number : comm::gather_numbers(*world, {static_cast<uint64_t>(value)}, what))
    sum += static_cast<int64_t>(number);
  return sum * job.program->strategy().data_ranks() / world->world_size();
}

// A collective call.
double largest_of_ranks(comm::CommWorld* world, double value) {
  if (!world) return value;
  double largest = value;
  for (const uint64_t bits : comm::gather_numbers(*world, {std::bit_cast<uint64_t>(value)}, "largest loss")) {
    const auto other = std::bit_cast<double>(bits);
    if (std::isnan(other)) return other;
    largest = std::max(largest, other);
  }
  return largest;
}

// A collective call: rank 0's clock, so that the files of all ranks are named after one moment.
int64_t start_seconds(comm::CommWorld* world) {
  const auto now = static_cast<uint64_t>(std::time(nullptr));
  return static_cast<int64_t>(world ? comm::gather_numbers(*world, {now}, "start time")[0] : now);
}

JobDataOptions data_options(const CompiledJob& job) {
  return {job.model.vocab_size, libtorch_include_dir(),
          [](const std::string& text) { std::cerr << text << std::endl; }};
}

constexpr size_t kTargets = 1, kLabels = 2;  // in token_layout

// Targets of rows that the loss counts.
//   layout: of the source that they are from
int64_t counted_targets(const CompiledJob& job, const MicroBatch& rows, const std::vector<SampleTensor>& layout) {
  if (!job.shifts_labels) return count_targets(ids_of(rows, kTargets));
  const std::span<const int64_t> labels = ids_of(rows, kLabels);
  int64_t count = 0;
  const auto row = static_cast<size_t>(layout.at(kLabels).shape.at(0));
  for (size_t first = 0; first < labels.size(); first += row)
    count += count_targets(labels.subspan(first + 1, row - 1));
  return count;
}

// What this rank trains on: its rows of each step, and how often each id was a target.
class TrainingData {
 public:
  TrainingData(const JobConfig& config, const CompiledJob& job, int64_t rank)
      : config_(config),
        job_(job),
        loader_(open_job_sources(config, data_options(job)),
                {given_rows(config.parallelism, config.training.local_batch_size), job.shares.accumulation,
                 data_rank_of(job, rank), job.program->strategy().data_ranks()}),
        id_counts_(static_cast<size_t>(job.model.vocab_size)) {}

  Loader& loader() { return loader_; }
  const Loader& loader() const { return loader_; }
  int64_t own_targets() const { return own_targets_; }  // those of this rank's rows of the step that the loss counts
  std::optional<double> entropy() const {
    return id_counts_.empty() ? std::nullopt : std::optional(unigram_entropy(id_counts_));
  }

  // This rank's rows of step k.
  std::vector<Batch> next(int64_t k, RunLog& log) {
    const LoadedStep loaded = loader_.next();
    for (const Samples* source : loaded.wrapped) log.notice(wrap_notice(*source, k));
    std::vector<Batch> batches;
    own_targets_ = 0;
    for (const MicroBatch& rows : loaded.micro_batches) {
      if (counts_targets(config_.training)) own_targets_ += counted_targets(job_, rows, loader_.layout());
      for (const int64_t id : targets_of(rows))
        if (id != kIgnoredTarget) ++id_counts_[static_cast<size_t>(id)];
      batches.push_back(to_batch(job_, rows, loader_.layout()));
    }
    return batches;
  }

 private:
  // Ids that a model of the vocabulary is to predict; none where samples are other tensors.
  std::span<const int64_t> targets_of(const MicroBatch& rows) const {
    return id_counts_.empty() ? std::span<const int64_t>() : ids_of(rows, kTargets);
  }

  const JobConfig& config_;
  const CompiledJob& job_;
  Loader loader_;
  int64_t own_targets_ = 0;
  std::vector<int64_t> id_counts_;  // how often this rank has trained on each id as a target
};

class Trainer {
 public:
  Trainer(JobConfig config, comm::CommWorld* world, std::ostream& out)
      : config_(std::move(config)),
        world_(world),
        log_(run_log_options(config_, rank(), world_size()), out),
        job_(job_of_rank(config_, world_)),
        data_(config_, job_, rank()),
        schedule_(schedule_of(config_)),
        watched_(config_, job_.program, world_, [this](const std::string& line) { log_.notice(line); }) {
    if (config_.validation.enable) validation_ = open_validation_source(config_, data_options(job_));
    at::globalContext().setDeterministicAlgorithms(config_.debug.deterministic, config_.debug.deterministic_warn_only);
    check_memory();
    step_.emplace(job_.program, world_);
    checkpoint::CheckpointOptions options = checkpoint_options(config_, job_);
    options.frozen.read = [this](const checkpoint::WeightSource& source) { load_weights_of(source, job_, *step_); };
    checkpoints_.emplace(
        std::move(options), world_, [this] { return checkpoint_pieces(*step_, rank()); },
        [this](const std::string& line) { log_.notice(line); });
    begin();
    if (rank() == 0) save_config_file();
  }

  // Opens what the run writes to.
  void start() { log_.start(facts()); }

  // Returns the exit code of this rank.
  int run(const StopSignals& stop_signals) {
    auto progress = rank() == 0 ? comm::ProgressPage::from_environment() : std::nullopt;
    if (config_.checkpoint.create_seed_checkpoint) return save_seed();
    for (int64_t k = last_step_ + 1; k <= config_.training.steps; ++k) {
      const StepMetrics metrics = train_step(k);
      log_.step(metrics);
      if (validation_is_due(config_.validation, k, global_batch() * config_.training.seq_len)) validate_after(k);
      if (k == last_step_ + 1 && world_) world_->set_timeout_ms(config_.comm.train_timeout_seconds * 1000);
      if (!std::isfinite(metrics.loss))
        throw UserError(concat("the loss is ", number_text(metrics.loss), " at step ", k,
                               "\n  expected a finite loss; debug.nan = dump names the op; lower optimizer.lr, or raise"
                               " lr_scheduler.warmup_steps"));
      skipped_.check(k);
      if (config_.debug.recapture_every > 0 && k % config_.debug.recapture_every == 0)
        job_.program->check_recapture(job_.example);
      checkpoints_->after_step(run_state(k));
      if (progress) progress->report(k);
      if (const int signal = stop_signals.agreed(world_); signal != 0 && k < config_.training.steps)
        return stop(signal, k);
    }
    checkpoints_->finish();
    if (!last_hf_folder(config_, step_->step).empty()) save_in_hf();
    say_profile();
    log_.completed(data_.entropy());
    return 0;
  }

 private:
  int stop(int signal, int64_t step) {
    const bool saved = checkpoints_->save(run_state(step), checkpoint::Checkpointer::When::Now);
    say_profile();
    log_.notice(concat("Stopped by SIG", sigabbrev_np(signal), " after step ", step,
                       saved ? ", which is saved" : ", nothing is saved"));
    return saved ? kExitStopped : 128 + signal;
  }
  void say_profile() {
    if (const std::string table = watched_.profile(peak_flops_); !table.empty()) log_.notice(std::string(trim(table)));
  }
  // The run does not need the file: a disk that is full must not keep a restart from going on.
  void save_config_file() {
    try {
      save_config(config_);
    } catch (const PassingError& error) {
      log_.notice(concat("job.save_config_file is not written: ", error.what()));
    }
  }
  // Where the folder cannot be written, whatever the reason, the state is saved as a checkpoint: what the cure needs is not
  // lost. The first of two errors is the cause.
  void save_in_hf() {
    try {
      log_.notice(export_last(config_, job_, *step_, world_));
    } catch (const std::exception&) {
      try {
        checkpoints_->save(run_state(step_->step), checkpoint::Checkpointer::When::Now);
      } catch (const std::exception& error) {
        log_.notice(concat("nor is step ", step_->step, " saved as a checkpoint: ", error.what()));
      }
      throw;
    }
  }
  // Before the step's tensors are made.
  void check_memory() {
    machine_ = read_machine_memory();
    planned_ = memory_of(*job_.program);
    const std::string note = check_planned_memory(planned_.total(), local_ranks(world_), machine_);
    if (!note.empty()) job_.notices.push_back(note);
  }
  // Goes on from a checkpoint, or starts with the weights that the config names.
  void begin() {
    const std::string last = last_hf_folder(config_, config_.training.steps);
    if (std::filesystem::exists(last))
      throw UserError(
          concat(last, " is there already, but checkpoint.last_save_in_hf = true would write it after step ",
                 config_.training.steps, "\n  expected no folder of that name; move it, or train more steps"));
    if (!last.empty()) {
      export_config(config_, job_);  // said now, not after the last step
      if (const std::string note = check_hf_assets(config_.model.hf_assets_path); !note.empty())
        job_.notices.push_back(note);
    }
    const auto loaded = config_.checkpoint.create_seed_checkpoint ? std::nullopt : checkpoints_->load();
    if (!loaded || !loaded->has_model) weight_notes_ = load_initial_weights(job_, *step_);
    if (!loaded) return;
    step_->load_state_dict({});
    step_->step = last_step_ = loaded->run.step;
    tokens_ = loaded->run.tokens;
    lr_offset_ = loaded->run.lr_offset;
    if (!loaded->run.data.empty()) data_.loader().restore(loaded->run.data);
    skipped_ = SkippedSteps(loaded->run.skipped);
    const std::vector<std::string>& without = loaded->left_out;
    weight_notes_.push_back(
        concat("State of ", loaded->path, without.empty() ? "" : " without " + join(without, ", ")));
  }
  // After step k.
  checkpoint::RunState run_state(int64_t k) const {
    return {.step = k,
            .tokens = tokens_,
            .seed = job_.program->options().seed,
            .lr_offset = lr_offset_,
            .skipped = skipped_.in_a_row(),
            .data = data_.loader().state()};
  }
  int save_seed() {
    if (world_)
      throw UserError(concat("checkpoint.create_seed_checkpoint = true on ", world_size(),
                             " ranks\n  expected one rank: start sfsdp train without a launcher"));
    checkpoints_->save(run_state(0), checkpoint::Checkpointer::When::Now);
    checkpoints_->finish();
    return 0;
  }
  int64_t rank() const { return world_ ? world_->rank() : 0; }
  int64_t world_size() const { return world_ ? world_->world_size() : 1; }
  int64_t data_ranks() const { return job_.program->strategy().data_ranks(); }
  int64_t global_batch() const { return job_.shares.global; }

  // Targets of step k that the loss counts, over all ranks: a mean over none would be no number. A collective call.
  int64_t expect_targets(int64_t k) {
    const int64_t targets = sum_of_samples(world_, job_, data_.own_targets(), "targets that the loss counts");
    if (targets == 0)
      throw UserError(concat("the loss counts none of the ", global_batch() * config_.training.seq_len,
                             " targets of step ", k,
                             "\n  expected a completion in each global batch; raise training.global_batch_size or"
                             " training.seq_len, or leave out documents without one"));
    return targets;
  }

  StepMetrics train_step(int64_t k) {
    const auto start = Clock::now();
    exec::restart_most_allocated();
    const double state_gib = static_cast<double>(exec::allocated_bytes()) / (1 << 30);
    const std::vector<Batch> batches = data_.next(k, log_);
    StepMetrics metrics;
    metrics.data_s = seconds_since(start);
    if (counts_targets(config_.training)) metrics.targets = expect_targets(k);
    const double counting_s = seconds_since(start) - metrics.data_s;
    step_->lr = schedule_.lr(k - lr_offset_);
    const StepResult result = watched_.run(*step_, batches);
    if (const std::string line = skipped_.note(k, result.skipped); !line.empty()) log_.notice(line);
    metrics.step = k;
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = step_->lr;
    metrics.tokens = tokens_ += global_batch() * config_.training.seq_len;
    metrics.forward_backward_s = result.seconds.forward_backward;
    metrics.optimizer_s = result.seconds.update;
    metrics.comm_exposed_s = result.seconds.communication + counting_s;
    if (log_.reports(k)) {
      const auto asked = Clock::now();
      metrics.max_loss = largest_of_ranks(world_, result.own_loss);
      if (result.experts) {
        metrics.expert_tokens = largest_of_ranks(world_, result.experts->tokens);
        metrics.expert_rows = largest_of_ranks(world_, result.experts->rows);
        metrics.expert_rounds = largest_of_ranks(world_, static_cast<double>(result.experts->rounds));
      }
      metrics.comm_exposed_s += seconds_since(asked);
    }
    metrics.memory_gib = static_cast<double>(exec::most_allocated_bytes()) / (1 << 30);
    metrics.memory_state_gib = state_gib;
    metrics.step_time_s = seconds_since(start);
    return metrics;
  }

  // A collective call.
  void validate_after(int64_t k) {
    const auto& v = config_.validation;
    const auto start = Clock::now();
    exec::restart_most_allocated();
    std::function<int64_t(const MicroBatch&)> count;
    if (counts_targets(config_.training))
      count = [&](const MicroBatch& rows) {
        return sum_of_samples(world_, job_, counted_targets(job_, rows, validation_->layout()),
                              "targets of validation");
      };
    const ValidationResult result = validate(
        *validation_,
        {given_rows(config_.parallelism, v.local_batch_size), data_rank_of(job_, rank()), data_ranks(), v.steps},
        [&](const MicroBatch& rows) { return step_->eval(to_batch(job_, rows, validation_->layout())); }, count);
    ValidationMetrics metrics;
    metrics.step = k;
    metrics.loss = result.loss;
    metrics.tokens = result.tokens;
    metrics.seconds = seconds_since(start);
    metrics.memory_gib = static_cast<double>(exec::most_allocated_bytes()) / (1 << 30);
    log_.validation(metrics);
  }
  RunFacts facts() {
    RunFacts facts;
    facts.config = config_;
    for (const auto* notes : {&config_.notes, &job_.notices, &weight_notes_})
      facts.notes.insert(facts.notes.end(), notes->begin(), notes->end());
    facts.parameters = job_.program->num_parameters();
    facts.mesh = to_string(job_.program->strategy().mesh);
    facts.backend = world_ ? world_->transport() : "one rank, no communication";
    facts.data_ranks = data_ranks();
    facts.global_batch = global_batch();
    facts.micro_batches = job_.program->options().micro_batches;
    facts.flops_per_token = static_cast<int64_t>(job_.model.flops_per_token(config_.training.seq_len));
    const bool half = compute_dtype(config_.training) == "bfloat16";
    facts.device_bytes = machine_.ram_bytes;
    const Held<const Program::Variant> first = job_.program->first();
    peak_flops_ = facts.peak_flops =
        half ? peak_of(at::kBFloat16, {exec::ProductKernel::Aten})
             : peak_of(at::kFloat, product_kernels_of(first->graph));  // all ranks at once, as they train
    facts.plan = summarise(first->graph);
    facts.memory = planned_;
    facts.datasets = describe(data_.loader());
    facts.last_step = last_step_;
    facts.world_size = world_size();
    facts.libtorch = TORCH_VERSION;
    facts.start_seconds = start_seconds(world_);
    return facts;
  }

  JobConfig config_;
  comm::CommWorld* world_;
  RunLog log_;
  CompiledJob job_;
  TrainingData data_;
  std::shared_ptr<Samples> validation_;
  LrSchedule schedule_;
  MachineMemory machine_;
  PlannedMemory planned_;
  std::optional<Step> step_;
  std::optional<checkpoint::Checkpointer> checkpoints_;  // goes before the step
  WatchedStep watched_;
  double peak_flops_ = 0;  // of this rank, measured when the run starts
  std::vector<std::string> weight_notes_;
  int64_t last_step_ = 0;  // done before this start
  int64_t tokens_ = 0;     // trained on
  int64_t lr_offset_ = 0;  // steps before the schedule began
  SkippedSteps skipped_;
};

// What a rank would need, by the plan: nothing is allocated, and no other rank is asked.
int estimate_memory(const JobConfig& config, std::ostream& out) {
  if (number_from_environment("RANK", 0) != 0) return 0;
  const int64_t world_size = number_from_environment("WORLD_SIZE", 1);
  const CompiledJob job = make_job(config, world_size);
  const PlannedMemory memory = memory_of(*job.program);
  out << "Memory of each of " << world_size << (world_size == 1 ? " rank" : " ranks") << ", mesh "
      << to_string(job.program->strategy().mesh) << ": planned peak " << bytes_text(memory.total()) << "\n  parameters "
      << bytes_text(memory.parameters) << ", optimizer and buffers " << bytes_text(memory.optimizer) << ", gradients "
      << bytes_text(memory.gradients) << ", activations " << bytes_text(memory.activations) << ", gathered parameters "
      << bytes_text(memory.gathered) << ", other " << bytes_text(memory.other) << std::endl;
  return 0;
}

}  // namespace

int run_train(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  const bool by_mpi = comm::adopt_ranks_of_mpi();
  const char* rank = std::getenv("RANK");
  // From the first step to the end of the process: a launcher's SIGTERM must not cut short what is said of an error.
  std::optional<StopSignals> stop_signals;
  int status = kExitUserError;  // of a UserError: before the first step it is about what was given
  const auto tell = [&](const std::exception& error) {
    err << "error on rank " << (rank ? rank : "0") << ": " << with_keys(error.what()) << std::endl;
    if (dynamic_cast<const PassingError*>(&error)) return kExitFailed;
    return dynamic_cast<const UserError*>(&error) ? status : kExitFailed;
  };
  try {
    exec::count_memory();
    JobConfig config = load_config(args);
    if (config.memory_estimation.enable) return estimate_memory(config, out);
    check_trained(config);
    const auto recorder = std::make_shared<comm::FlightRecorder>(static_cast<size_t>(config.comm.trace_buf_size));
    find_libraries(config);
    const auto world = make_world(config, recorder, by_mpi);
    if (by_mpi && world)
      if (std::string note = comm::share_cores(*world); !note.empty()) config.notes.push_back(std::move(note));
    try {
      Trainer trainer(config, world.get(), out);
      trainer.start();
      status = kExitFailed;
      stop_signals.emplace();
      return trainer.run(*stop_signals);
    } catch (const std::exception& error) {
      const int code =
          tell(error);  // first: to tell the others takes seconds where rank 0, which has the store, is stopped
      if (world) {
        world->abort(with_keys(error.what()));  // the others need not wait for the timeout
        write_flight_record(config, *world, *recorder, with_keys(error.what()), err);
      }
      return code;
    }
  } catch (const std::exception& error) {
    return tell(error);
  }
}

}  // namespace sfsdp::train
