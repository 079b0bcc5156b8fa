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
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/gloo/gloo_world.h"
#include "sfsdp/cost/calibration.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/tools/calibrate.h"
#include "sfsdp/tools/launch.h"
#include "sfsdp/tools/request.h"
#include "sfsdp/train/job.h"

namespace sfsdp::tools {
namespace {

constexpr const char* kHelp =
    "usage: sfsdp calibrate [--config F] [--ranks N] [--out F] [--section.key value ...]\n"
    "  --config F              whose step is measured: its matrix products, attention and other kernels, op by op\n"
    "  --ranks N               that measure at once, as in training (default 2); collectives are measured among them\n"
    "  --out F                 the machine file (default outputs/cpu_local.toml)\n"
    "  --calibrate.seconds S   to spend on kernels, and as much on collectives (default 20)\n"
    "  --calibrate.max_mib M   largest collective and copy (default 256)\n"
    "Every key of train is taken. Then: sfsdp simulate --machine F --simulate.execution reference --world N ...\n";

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The 10th percentile: other programs on the machine only ever add to a sample.
double undisturbed(std::vector<double> samples) {
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 10);
  std::ranges::nth_element(samples, at);
  return *at;
}

struct Settings {
  double seconds = 20;
  int64_t max_bytes = 256 << 20;
};

// The ranks that measure together.
class Ranks {
 public:
  Ranks() {
    if (!std::getenv("WORLD_SIZE")) return;
    const comm::GlooOptions options = comm::gloo_options_from_env();
    if (options.world_size == 1) return;
    world_ = comm::make_gloo_world(options);
    std::vector<int> all;
    for (int r = 0; r < world_->world_size(); ++r) all.push_back(r);
    group_ = world_->group("dp_shard", all);
  }
  int64_t size() const { return world_ ? world_->world_size() : 1; }
  int64_t rank() const { return world_ ? world_->rank() : 0; }
  comm::Communicator* group() const { return group_.get(); }
  // All come here before any goes on; the largest of their numbers.
  double largest(double mine) const {
    if (group_)
      group_->all_reduce(std::as_writable_bytes(std::span(&mine, 1)), ir::DType::f64, comm::ReduceOp::Max,
                         {"largest", ""});
    return mine;
  }
  // The mean over the ranks, element by element.
  std::vector<double> mean(std::vector<double> mine) const {
    if (!group_ || mine.empty()) return mine;
    group_->all_reduce(std::as_writable_bytes(std::span(mine)), ir::DType::f64, comm::ReduceOp::Sum, {"mean", ""});
    for (double& value : mine) value /= static_cast<double>(size());
    return mine;
  }
  void abort(const std::string& why) const {
    if (world_) world_->abort(why);
  }

 private:
  std::unique_ptr<comm::CommWorld> world_;
  std::shared_ptr<comm::Communicator> group_;
};

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
    const auto start = Clock::now();
    std::vector<at::Tensor> operands = operands_;
    std::vector<at::Tensor> results = aten_ ? aten_->run(operands) : kernel_({op_, operands, groups_, scalars_, {}});
    operands.clear();
    results.clear();
    times_.push_back(seconds_since(start));
  }
  const ir::Op& op() const { return op_; }
  // Not a number where time was over before it ran.
  double seconds() const {
    if (times_.empty()) return std::nan("");
    return times_.size() == 1 ? times_[0]
                              : undisturbed({times_.begin() + 1, times_.end()});  // the first one fetches code
  }
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
  exec::Groups groups_;
  exec::StepScalars scalars_;
  std::vector<at::Tensor> operands_;
  std::vector<double> times_;
};

// Sweeps over all ops, so that each finds the caches as others left them and a disturbance hits one sample of each.
// What time does not reach, in a step too large for this machine, has no point.
std::vector<cost::MeasuredOp> measure_ops(const std::vector<const ir::Op*>& ops, const Ranks& ranks, double seconds) {
  const auto start = Clock::now();
  const int64_t room = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / (4 * ranks.size());
  std::vector<Bench> benches;
  int64_t bytes = 0;
  for (const ir::Op* op : ops) {
    Bench bench(*op);
    if (!bench.can_run() || bytes + bench.bytes() > room) continue;
    bytes += bench.bytes();
    bench.make_operands();
    benches.push_back(std::move(bench));
  }
  for (int sweep = 0; sweep < 100 && (sweep == 0 || ranks.largest(seconds_since(start)) < seconds); ++sweep) {
    ranks.largest(0);
    for (Bench& bench : benches)
      if (seconds_since(start) < seconds) bench.run();
  }
  std::vector<double> of_each;
  for (const Bench& bench : benches) of_each.push_back(bench.seconds());
  of_each = ranks.mean(std::move(of_each));
  std::vector<cost::MeasuredOp> points;
  for (size_t i = 0; i < benches.size(); ++i) {
    if (std::isnan(of_each[i])) continue;  // on one rank at least
    const ir::Op& op = benches[i].op();
    points.push_back({op.opcode, cost::types_of(op), cost::flops_of(op), cost::bytes_moved(op), of_each[i]});
  }
  return points;
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

std::vector<cost::MeasuredCollective> measure_collectives(
    const std::vector<std::pair<std::string, int64_t>>& collectives, const Ranks& ranks, double seconds) {
  if (!ranks.group()) return {};
  std::vector<std::vector<double>> times(collectives.size());
  const auto start = Clock::now();
  for (int round = 0; round < 50 && (round < 2 || ranks.largest(seconds_since(start)) < seconds); ++round) {
    for (size_t i = 0; i < collectives.size(); ++i) {
      const auto& [kind, bytes] = collectives[i];
      const int64_t shard = std::max<int64_t>(bytes / 4 / ranks.size(), 1);
      const at::Tensor part = at::ones({shard}), whole = at::ones({shard * ranks.size()});
      ranks.largest(0);
      const auto begin = Clock::now();
      run_collective(*ranks.group(), kind, whole, part);
      times[i].push_back(seconds_since(begin));
    }
  }
  std::vector<double> of_each;
  for (const auto& samples : times) of_each.push_back(undisturbed(samples));
  of_each = ranks.mean(std::move(of_each));
  std::vector<cost::MeasuredCollective> points;
  for (size_t i = 0; i < collectives.size(); ++i)
    points.push_back({collectives[i].first, ranks.size(), static_cast<double>(collectives[i].second), of_each[i]});
  return points;
}

// Of an op that moves no data: a view, through the dispatcher.
double measure_dispatch(const Ranks& ranks) {
  const ir::Graph graph = ir::parse_or_throw(
      "graph mesh [dp_shard=1] view local\n  %x = input name=x : f32[8, 8]\nfwd:\n"
      "  %y = aten.view %x size=[64] : f32[64]\n");
  Bench bench(*graph.ops().back());
  bench.make_operands();
  for (int i = 0; i < 1000; ++i) bench.run();
  return ranks.mean({bench.seconds()})[0];
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

cost::Machine measure(const train::JobConfig& config, const Ranks& ranks, const Settings& settings) {
  train::CompiledJob job = train::make_job(config, ranks.size());
  const ir::Graph& graph = job.program->training(job.example).graph;
  const ir::Graph pointwise =
      ir::parse_or_throw(cost::pointwise_graph(std::min<int64_t>(settings.max_bytes, 64 << 20)));

  at::AutoDispatchBelowADInplaceOrView below_autograd;  // as the executor, which has captured by then
  cost::Machine machine;
  machine.name = "cpu_local";
  machine.device =
      concat(cpu_model(), ", ", at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads");
  machine.devices_per_node = ranks.size();
  machine.memory_bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
                         static_cast<double>(ranks.size());
  const double dispatch = measure_dispatch(ranks);
  // Apart: copies of 64 MiB would leave nothing of the step's operands in the caches.
  machine.measured.ops = measure_ops(cost::ops_to_measure(graph), ranks, settings.seconds);
  const auto copies = measure_ops(cost::ops_to_measure(pointwise), ranks, settings.seconds / 4);
  machine.measured.ops.insert(machine.measured.ops.end(), copies.begin(), copies.end());
  machine.measured.collectives =
      measure_collectives(cost::collectives_to_measure(graph, settings.max_bytes), ranks, settings.seconds);
  cost::fit_formulas(machine, dispatch);
  return machine;
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
  if (!value || !(*value > 0)) throw UserError(concat("--", name, " ", text, "\n  expected a number above 0"));
  return *value;
}

// One of the ranks, or the only one.
int calibrate(const Request& request, std::ostream& out) {
  const auto start = Clock::now();
  const double load = load_average();
  Settings settings;
  settings.seconds = number_of(request, "calibrate.seconds", settings.seconds);
  settings.max_bytes = static_cast<int64_t>(number_of(request, "calibrate.max_mib", 256) * (1 << 20));
  const train::JobConfig config = train::load_config(request.config_args);
  const Ranks ranks;
  try {
    const cost::Machine machine = measure(config, ranks, settings);
    if (ranks.rank() != 0) return 0;
    const std::string path = request.get("out", "outputs/cpu_local.toml");
    write_machine(
        path, machine,
        concat("Written by sfsdp calibrate: holds for this machine, this LibTorch (", TORCH_VERSION, "), ",
               ranks.size(), ranks.size() == 1 ? " rank" : " ranks at once", " and the step of\n", config.model.name,
               " ", config.model.flavor, ", batch ", config.training.local_batch_size, " x ", config.training.seq_len,
               ". Load average before: ", load, ". Run it again to overwrite it."));
    out << "Measured " << machine.measured.ops.size() << " ops and " << machine.measured.collectives.size()
        << " collectives of " << ranks.size() << (ranks.size() == 1 ? " rank in " : " ranks in ")
        << with_commas(seconds_since(start), 1) << " s: products " << with_commas(machine.peak_f32 / 1e9, 0)
        << " GFLOP/s, copies " << with_commas(machine.memory_bandwidth / 1e9, 1) << " GB/s, dispatch "
        << with_commas(machine.dispatch * 1e6, 2) << " us\nWrote " << path << "\n";
    return 0;
  } catch (const std::exception& error) {
    ranks.abort(error.what());
    throw;
  }
}

}  // namespace

int run_calibrate(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    out << kHelp;
    return 0;
  }
  try {
    const Request request = parse_request(args, {"ranks", "out", "calibrate.seconds", "calibrate.max_mib"}, {});
    const std::string count = request.get("ranks", "2");
    if (const auto ranks = parse_int(count); !ranks || *ranks < 1)
      throw UserError(concat("--ranks ", count, "\n  expected a number of ranks, at least 1"));
    if (std::getenv("WORLD_SIZE")) return calibrate(request, out);
    std::vector<std::string> launch = {"-n", count, "--log-rank", "0", "--", "calibrate"};
    launch.insert(launch.end(), args.begin(), args.end());
    return run_launch(launch, out, err);
  } catch (const std::exception& error) {
    err << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace sfsdp::tools
