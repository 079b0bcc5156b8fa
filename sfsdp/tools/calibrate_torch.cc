// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/agent/torchrun_agent.h"
#include "sfsdp/cost/calibration.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/cost/product_times.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/exec/planned/measure_products.h"
#include "sfsdp/exec/planned/products.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/step/step.h"
#include "sfsdp/tools/calibrate_plan.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/launch.h"
#include "sfsdp/tools/timed_tasks.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/run_facts.h"

namespace sfsdp::tools {
namespace {

struct Settings {
  double seconds = 20;
  int64_t max_bytes = 256 << 20;
};

// The ranks that measure together.
class Ranks {
 public:
  Ranks() {
    if (!std::getenv("WORLD_SIZE")) return;
    const comm::TcpOptions options = comm::tcp_options_from_env();
    if (options.world_size == 1) return;
    world_ = comm::make_launched_world(options);
    group_ = world_->all_ranks("calibrate");
  }
  int64_t size() const { return world_ ? world_->world_size() : 1; }
  int64_t rank() const { return world_ ? world_->rank() : 0; }
  comm::CommWorld* world() const { return world_.get(); }
  comm::Communicator* group() const { return group_.get(); }
  double largest(double mine) const { return largest_of(mine, group()); }
  void abort(const std::string& why) const {
    if (world_) world_->abort(why);
  }

 private:
  std::unique_ptr<comm::CommWorld> world_;
  std::shared_ptr<comm::Communicator> group_;
};

int64_t memory_of_a_rank(const Ranks& ranks) { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / ranks.size(); }

// One op of a graph with operands of its own, as the executor runs it.
class Bench {
 public:
  explicit Bench(const ir::Op& op) : op_(op) {
    if (ir::is_aten(op.opcode))
      aten_.emplace(op);
    else
      kernel_ = exec::find_kernel(op.opcode);
  }
  bool can_run() const { return aten_ || kernel_; }

  // Values do not matter to time as long as they are ordinary; indices must be inside whatever they pick from.
  void make_operands() {
    int64_t rows = 1 << 30;
    for (const ir::Value* operand : op_.operands)
      if (operand && !is_index(*operand))
        for (const int64_t extent : operand->type().shape()) rows = std::min(rows, extent);
    for (const ir::Value* operand : op_.operands) {
      at::Tensor& t = operands_.emplace_back();
      if (!operand) continue;
      const ir::Type& type = operand->type();
      const auto options = at::TensorOptions(capture::scalar_type_of(type.dtype));
      t = type.strides.empty() ? at::empty(type.shape(), options)
                               : at::empty_strided(type.shape(), type.strides, options);
      if (is_index(*operand))
        t.copy_(at::arange(t.numel(), options).remainder(rows).view(t.sizes()));
      else
        t.fill_(0.5);
    }
  }

  void run() {
    std::vector<at::Tensor> operands = operands_;
    std::vector<at::Tensor> results = aten_ ? aten_->run(operands) : kernel_({op_, operands, scalars_, nullptr});
  }
  const ir::Op& op() const { return op_; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const ir::Value* operand : op_.operands) sum += operand ? operand->type().bytes() : 0;
    return sum;
  }

 private:
  static bool is_index(const ir::Value& value) {
    return value.type().dtype == ir::DType::i64 || value.type().dtype == ir::DType::i32;
  }

  const ir::Op& op_;
  std::optional<exec::AtenCall> aten_;
  exec::Kernel kernel_ = nullptr;
  exec::StepScalars scalars_;
  std::vector<at::Tensor> operands_;
};

// Those that run and fit in a quarter of the memory, with operands.
std::vector<std::unique_ptr<Bench>> make_benches(const std::vector<const ir::Op*>& ops, const Ranks& ranks) {
  const int64_t room = memory_of_a_rank(ranks) / 4;
  std::vector<std::unique_ptr<Bench>> benches;
  int64_t bytes = 0;
  for (const ir::Op* op : ops) {
    auto bench = std::make_unique<Bench>(*op);
    if (!bench->can_run() || bytes + bench->bytes() > room) continue;
    bytes += bench->bytes();
    bench->make_operands();
    benches.push_back(std::move(bench));
  }
  return benches;
}

void add_tasks(std::vector<TimedTask>& tasks, const std::vector<std::unique_ptr<Bench>>& benches) {
  for (const auto& bench : benches) tasks.push_back({.run = [&op = *bench] { op.run(); }});
}

void add_points(std::vector<cost::MeasuredOp>& points, const std::vector<std::unique_ptr<Bench>>& benches,
                std::span<const double> seconds) {
  for (size_t i = 0; i < benches.size(); ++i) {
    if (std::isnan(seconds[i])) continue;
    const ir::Op& op = benches[i]->op();
    points.push_back({op.opcode, cost::types_of(op), cost::flops_of(op), cost::bytes_moved(op), seconds[i]});
  }
}

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

// As exec/kernels.cc runs them: the result is memory of its own.
void run_collective(comm::Communicator& group, const std::string& kind, const at::Tensor& whole,
                    const at::Tensor& part) {
  if (kind == "all_gather") {
    const at::Tensor result = at::empty_like(whole);
    group.all_gather(bytes_of(part), bytes_of(result), {kind, ""});
  } else if (kind == "reduce_scatter") {
    const at::Tensor result = at::empty_like(part);
    group.reduce_scatter(bytes_of(whole), bytes_of(result), ir::DType::f32, comm::ReduceOp::Sum, {kind, ""});
  } else {
    const at::Tensor result = whole.clone();
    group.all_reduce(bytes_of(result), ir::DType::f32, comm::ReduceOp::Sum, {kind, ""});
  }
}

// What they send lies in memory since before, as a step's shards and gradients do, and is not in the caches any more.
void add_tasks(std::vector<TimedTask>& tasks, const std::vector<cost::CollectiveSize>& collectives,
               const Ranks& ranks) {
  std::map<int64_t, std::pair<at::Tensor, at::Tensor>> tensors;  // part and whole, by elements of the part
  for (const cost::CollectiveSize& size : collectives) {
    const int64_t shard = std::max<int64_t>(size.second / 4 / ranks.size(), 1);
    const auto [place, fresh] = tensors.try_emplace(shard);
    auto& [part, whole] = place->second;
    if (fresh) part = at::ones({shard}), whole = at::ones({shard * ranks.size()});
    tasks.push_back({.run = [kind = size.first, sent = place->second,
                             &ranks] { run_collective(*ranks.group(), kind, sent.second, sent.first); },
                     .together = true});
  }
}

void add_points(std::vector<cost::MeasuredCollective>& points, const std::vector<cost::CollectiveSize>& collectives,
                const Ranks& ranks, std::span<const double> seconds) {
  for (size_t i = 0; i < collectives.size(); ++i)
    points.push_back({collectives[i].first, ranks.size(), static_cast<double>(collectives[i].second), seconds[i]});
}

// Seconds of an op that moves no data: a view, through the dispatcher.
double measure_dispatch(const Ranks& ranks) {
  const ir::Graph graph = ir::parse_or_throw(
      "graph mesh [dp_shard=1] view local\n  %x = input name=x : f32[8, 8]\nfwd:\n"
      "  %y = aten.view %x size=[64] : f32[64]\n");
  Bench bench(*graph.ops().back());
  bench.make_operands();
  constexpr int kRuns = 100;
  const TimedTask task = {.run = [&] {
    for (int i = 0; i < kRuns; ++i) bench.run();
  }};
  return time_in_sweeps({&task, 1}, ranks.group(), 1, 20)[0] / kRuns;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  return "CPU";
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : std::nan("");
}

// The step that is measured, as it runs and as it is predicted.
struct StepCheck {
  double predicted_seconds = 0, seconds = 0;  // seconds: not a number where it did not run
  int64_t predicted_peak = 0, peak = 0;  // bytes of the rank that needs most; peak: 0 for a plan, which has no other
};

// The step itself, on ordinary numbers.
class StepRun {
 public:
  StepRun(const train::CompiledJob& job, const Ranks& ranks)
      : step_(job.program, ranks.world()), batches_(ordinary_batches(job)) {
    own_bytes_ = exec::allocated_bytes();
  }
  void run() {
    const int64_t others = exec::allocated_bytes() - own_bytes_;
    exec::restart_most_allocated();
    step_(batches_);
    most_bytes_ = std::max(most_bytes_, exec::most_allocated_bytes() - others);
    own_bytes_ = exec::allocated_bytes() - others;
  }
  int64_t peak_bytes() const { return most_bytes_; }

 private:
  Step step_;
  std::vector<Batch> batches_;
  // The bytes of the job and its step. Beside them lie the operands of the kernels that are measured.
  int64_t own_bytes_ = 0, most_bytes_ = 0;
};

ir::Graph graph_of(const Program& program) {
  const Held<const Program::Variant> first = program.first();
  return passes::decomposed(first->graph);
}

class Calibration {
 public:
  Calibration(const train::JobConfig& config, const Ranks& ranks, const Settings& settings)
      : ranks_(ranks),
        settings_(settings),
        job_(train::make_job(
            config, ranks.size(),
            {.choose_products =
                 [&](const auto& shapes, const std::string& rule) {
                   return exec::choose_products(shapes, {rule, cost::cache_folder()}, ranks.world()).table;
                 }})),
        graph_(graph_of(*job_.program)) {
    machine.name = "cpu_local";
    machine.device =
        concat(cpu_model(), ", ", at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads");
    machine.devices_per_node = ranks.size();
    machine.memory_bytes = static_cast<double>(memory_of_a_rank(ranks));
  }

  void run() {
    dispatch_ = measure_dispatch(ranks_);
    const auto collectives =
        ranks_.group() ? cost::collectives_of_step(graph_, settings_.max_bytes) : std::vector<cost::CollectiveSize>();
    // Apart: copies of 64 MiB would leave nothing of the step's operands in the caches.
    measure_sizes(collectives);
    const cost::Measured sizes = machine.measured;
    measure_step(sizes, collectives, nullptr, 3);  // how long a step is, roughly
    if (job_.program->options().executor == ExecutorKind::Planned) return measure_plan();
    meet_after_ = ranks_.largest(seconds_between_collectives());
    const auto plan = plan::plan_memory(graph_, {.blocking = true});
    check.predicted_peak = plan.state_bytes + plan.live_bytes;
    std::optional<StepRun> step;
    if (can_run_step()) step.emplace(job_, ranks_);
    measure_step(sizes, collectives, step ? &*step : nullptr, 100);
    check.predicted_seconds = predicted_seconds();
  }

  cost::Machine machine;
  StepCheck check;

 private:
  sim::Simulation simulate() const { return sim::simulate(graph_, machine, {.execution = cost::Execution::Reference}); }
  double predicted_seconds() const { return simulate().step_seconds; }
  double seconds_between_collectives() const {
    const sim::Simulation simulation = simulate();
    const auto collectives =
        std::ranges::count_if(simulation.events, [](const sim::Event& e) { return e.kind == sim::Event::Collective; });
    return simulation.compute_seconds / static_cast<double>(collectives + 1);
  }

  // Where a few fit into the time, and one into half of the memory: check.predicted_peak.
  bool can_run_step() {
    // By its products alone: of one or two samples each, what stops hit would count as often as the step has it.
    const double seconds = ranks_.largest(simulate().flops / (machine.peak_f32 * machine.matmul_efficiency));
    return seconds < settings_.seconds / 4 && check.predicted_peak < memory_of_a_rank(ranks_) / 2;
  }

  void measure_sizes(const std::vector<cost::CollectiveSize>& known) {
    const ir::Graph pointwise =
        ir::parse_or_throw(cost::pointwise_graph(std::min<int64_t>(settings_.max_bytes, 64 << 20)));
    const auto copies = make_benches(cost::ops_to_measure(pointwise), ranks_);
    const auto collectives =
        ranks_.group() ? cost::collectives_by_size(known, settings_.max_bytes) : std::vector<cost::CollectiveSize>();
    measure(copies, collectives, nullptr, settings_.seconds, 50);
  }

  // The plan's own steps. Ops by themselves, of which other plans may be made, stand in the file as well.
  void measure_plan() {
    machine.inline_collectives = true;
    const Held<const Program::Variant> first = job_.program->first();
    check.predicted_peak = train::planned_memory(first->plan).total();
    check.seconds = std::nan("");
    if (can_run_step()) {
      const PlanTimes times = time_plan(job_, ranks_.world(), ranks_.group(), settings_.seconds);
      check.seconds = times.step_seconds;
      machine.measured.kernels = times.kernels;
      for (const cost::MeasuredCollective& m : times.collectives) {
        std::erase_if(machine.measured.collectives, [&](const cost::MeasuredCollective& other) {
          return other.kind == m.kind && other.ranks == m.ranks && other.bytes == m.bytes;
        });
        machine.measured.collectives.push_back(m);
      }
    }
    cost::fit_products(machine, cost::price_kernels(first->graph, machine, cost::Execution::Fused).kernels);
    check.predicted_seconds = sim::simulate(first->graph, machine).step_seconds;
  }

  // Kernels and collectives of the step, and the step itself, in the same sweeps: what the machine's speed does
  // meanwhile, it does to all of them.
  void measure_step(const cost::Measured& sizes, const std::vector<cost::CollectiveSize>& collectives, StepRun* step,
                    size_t sweeps) {
    machine.measured = sizes;
    measure(make_benches(cost::ops_to_measure(graph_), ranks_), collectives, step, settings_.seconds, sweeps);
    cost::fit_formulas(machine, dispatch_);
    if (step) check.peak = static_cast<int64_t>(ranks_.largest(static_cast<double>(step->peak_bytes())));
  }

  void measure(const std::vector<std::unique_ptr<Bench>>& benches, const std::vector<cost::CollectiveSize>& collectives,
               StepRun* step, double seconds, size_t sweeps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;  // as the executor, which has captured by then
    std::vector<TimedTask> tasks;
    add_tasks(tasks, benches);
    add_tasks(tasks, collectives, ranks_);
    if (step) tasks.push_back({.run = [&] { step->run(); }, .together = true, .part = false});
    const std::vector<double> of_each = time_in_sweeps(tasks, ranks_.group(), seconds, sweeps, meet_after_);
    add_points(machine.measured.ops, benches, of_each);
    add_points(machine.measured.collectives, collectives, ranks_, std::span(of_each).subspan(benches.size()));
    check.seconds = step ? of_each.back() : std::nan("");
  }

  const Ranks& ranks_;
  const Settings settings_;
  train::CompiledJob job_;
  const ir::Graph graph_;  // as the executor runs it
  double dispatch_ = 0, meet_after_ = std::numeric_limits<double>::infinity();
};

std::string describe(const StepCheck& check) {
  const auto off = [](double predicted, double actual) {
    const double percent = 100 * (predicted / actual - 1);
    return concat(percent < 0 ? "" : "+", with_commas(percent, 2), " %");
  };
  const auto ms = [](double seconds) { return concat(with_commas(seconds * 1e3, 1), " ms"); };
  const auto mib = [](int64_t bytes) { return concat(with_commas(static_cast<double>(bytes) / (1 << 20), 2), " MiB"); };
  if (std::isnan(check.seconds))
    return concat("The step: predicted ", ms(check.predicted_seconds), ", ", mib(check.predicted_peak),
                  "; not run, as it needs too much memory or time\n");
  if (check.peak == 0)
    return concat("The step, run between the measurements: predicted ", ms(check.predicted_seconds), ", took ",
                  ms(check.seconds), " (", off(check.predicted_seconds, check.seconds), "); planned peak ",
                  mib(check.predicted_peak), "\n");
  return concat("The step, run between the measurements: predicted ", ms(check.predicted_seconds), ", took ",
                ms(check.seconds), " (", off(check.predicted_seconds, check.seconds), "); peak predicted ",
                mib(check.predicted_peak), ", needed ", mib(check.peak), " (",
                off(static_cast<double>(check.predicted_peak), static_cast<double>(check.peak)), ")\n");
}

void write_machine(const std::string& path, const cost::Machine& machine, const std::string& comment) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  std::ofstream file(path);
  file << cost::print_machine(machine, comment);
  file.close();
  if (!file) throw UserError(concat("--out ", path, " cannot be written\n  expected a file in a folder that may be"));
}

double number_of(const Request& request, const std::string& name, double fallback) {
  const std::string text = request.get(name, shortest(fallback));
  const auto value = parse_double(text);
  if (!value || !(*value > 0)) throw UserError(concat("--", name, " = ", text, "\n  expected a number above 0"));
  return *value;
}

// One of the ranks, or the only one.
int calibrate(const Request& request, std::ostream& out) {
  exec::count_memory();
  const auto start = std::chrono::steady_clock::now();
  const double load = load_average();
  Settings settings;
  settings.seconds = number_of(request, "calibrate.seconds", settings.seconds);
  settings.max_bytes = static_cast<int64_t>(number_of(request, "calibrate.max_mib", 256) * (1 << 20));
  const train::JobConfig config = train::load_config(request.config_args);
  exec::has_product(exec::ProductKernel::OpenBlas);  // loads it, before threads run that read the environment
  const Ranks ranks;
  try {
    Calibration calibration(config, ranks, settings);
    calibration.run();
    const cost::Machine& machine = calibration.machine;
    if (ranks.rank() != 0) return 0;
    const std::string path = request.get("out", "outputs/cpu_local.toml");
    write_machine(path, machine,
                  concat("Written by sfsdp calibrate: holds for this machine, this LibTorch (", TORCH_VERSION, "), ",
                         ranks.size(), ranks.size() == 1 ? " rank" : " ranks at once", " and the step of\n",
                         train::title_of(config.model), ", batch ", config.training.local_batch_size, " x ",
                         config.training.seq_len, ". Load average before: ", load, ". Run it again to overwrite it."));
    out << "Measured " << machine.measured.ops.size() << " ops, " << machine.measured.kernels.size() << " kernels and "
        << machine.measured.collectives.size() << " collectives of " << ranks.size()
        << (ranks.size() == 1 ? " rank in " : " ranks in ")
        << with_commas(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1)
        << " s: products " << with_commas(machine.peak_f32 / 1e9, 0) << " GFLOP/s, copies "
        << with_commas(machine.memory_bandwidth / 1e9, 1) << " GB/s, dispatch "
        << with_commas(machine.dispatch * 1e6, 2) << " us\n"
        << describe(calibration.check) << "Wrote " << path << "\n";
    return 0;
  } catch (const std::exception& error) {
    ranks.abort(error.what());
    throw;
  }
}

}  // namespace

int run_calibrate(const Request& request, std::ostream& out, std::ostream& err) {
  const std::string count = request.get("ranks", "2");
  number_of("--ranks", count, 1, kMaxRanks);
  if (std::getenv("WORLD_SIZE")) return calibrate(request, out);
  std::vector<std::string> launch = {"-n", count, "--log-rank", "0", "--", "calibrate"};
  launch.insert(launch.end(), request.args.begin(), request.args.end());
  return run_launch(parse_request(find_command("launch"), launch), out, err);
}

}  // namespace sfsdp::tools
