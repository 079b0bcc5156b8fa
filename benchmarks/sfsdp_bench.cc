// SPDX-License-Identifier: BSD-3-Clause
// sfsdp-bench compiler [--repeat N]: how long capture, passes, memory plan and simulation take, and what they need.
// sfsdp-bench search: what search gains over units by name, in the simulator.
// sfsdp-bench agreement [ranks]: how long ranks take to agree before a step, beside a step of a small model. Ranks are
// threads; under sfsdp launch --exec they are processes.
// sfsdp-bench collectives [tcp]: collective_bench.h, under sfsdp launch --exec; tcp: without shared memory.
// sfsdp-bench checkpoint [MiB [FOLDER]]: checkpoint_bench.h.
// sfsdp-bench attention: attention_bench.h.
// sfsdp-bench products_of_job FLAG...: product_bench.h; under sfsdp launch --exec on several ranks.
// sfsdp-bench products LIBRARY DTYPE SECONDS SHAPE...: product_bench.h, which products.py calls.
#include <sys/resource.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "benchmarks/attention_bench.h"
#include "benchmarks/call_bench.h"
#include "benchmarks/checkpoint_bench.h"
#include "benchmarks/collective_bench.h"
#include "benchmarks/product_bench.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/agent/torchrun_agent.h"
#include "sfsdp/comm/init.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/train/job.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kMachine = "machines/dgx_h100.toml";

double seconds_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What all threads took of the processor: other programs make it longer by far less than the wall clock.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

struct Sample {
  std::vector<double> seconds;
  void print(const char* what) {
    std::ranges::sort(seconds);
    std::printf("  %-36s median %7.3f ms   (%.3f to %.3f)\n", what, 1e3 * seconds[seconds.size() / 2],
                1e3 * seconds.front(), 1e3 * seconds.back());
  }
};

// wrap: how units are chosen: manual, auto, search
void measure(const std::string& config, int64_t world, const std::string& wrap, int64_t repeat) {
  const std::string machine_file = kMachine;
  const auto job_config = sfsdp::train::load_config(
      std::vector<std::string>{"--job.config_file", config, "--parallelism.fsdp_wrap", wrap,
                               "--parallelism.fsdp_machine", machine_file, "--activation_checkpoint.mode", "none"});
  const auto machine = sfsdp::cost::load_machine(machine_file);
  Sample capture, complete, memory, simulate, all, processor;
  size_t ops = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    const double before = processor_seconds();
    const auto job = sfsdp::train::make_job(job_config, world);
    const auto variant = job.program->first();
    processor.seconds.push_back(processor_seconds() - before);
    ops = variant->graph.ops().size();
    capture.seconds.push_back(variant->capture_ms / 1e3);
    complete.seconds.push_back(variant->complete_ms / 1e3);
    memory.seconds.push_back(seconds_of([&] { sfsdp::plan::plan_memory(variant->graph); }));
    simulate.seconds.push_back(seconds_of([&] { sfsdp::sim::simulate(variant->graph, machine); }));
    all.seconds.push_back(capture.seconds.back() + complete.seconds.back());
  }
  double load = 0;
  getloadavg(&load, 1);
  std::printf("%s on %lld ranks, units %s: %zu ops, %lld runs, load average %.1f\n", config.c_str(),
              static_cast<long long>(world), wrap.c_str(), ops, static_cast<long long>(repeat), load);
  capture.print("capture");
  complete.print("sharding, passes, plan, verification");
  all.print("from capture to a proved plan");
  processor.print("processor time of it");
  memory.print("memory plan alone, a second time");
  simulate.print("simulation");
  std::printf("  peak memory of the process so far  %.2f GiB\n", peak_gib());
}

// No order of these collectives and kernels can be faster: all of one kind in a row, after the first gather and before
// the last reduction, which nothing can hide.
double bound_of(const sfsdp::sim::Simulation& s) {
  double communication = 0, first = 0, last = 0, first_at = INFINITY, last_at = -1;
  for (const auto& [kind, seconds] : s.communication_seconds) communication += seconds;
  for (const sfsdp::sim::Event& e : s.events) {
    if (e.kind != sfsdp::sim::Event::Collective) continue;
    const auto kind = sfsdp::ir::collective_kind(*e.op);
    if (kind == "all_gather" && e.begin < first_at) {
      first_at = e.begin;
      first = e.end - e.begin;
    }
    if (kind == "reduce_scatter" && e.begin > last_at) {
      last_at = e.begin;
      last = e.end - e.begin;
    }
  }
  return std::max(s.compute_seconds, communication) + first + last;
}

// One way to choose units, simulated.
struct Choice {
  double step_seconds = 0, bound = 0, compile_seconds = 0;
  bool fits = false;
};

Choice choose(const std::string& model, int64_t world, const std::string& wrap) {
  std::vector<std::string> args = {"--job.config_file",
                                   "configs/llama3_" + model + ".toml",
                                   "--training.local_batch_size",
                                   "1",
                                   "--training.global_batch_size",
                                   "-1",
                                   "--training.mixed_precision_param",
                                   "bfloat16",
                                   "--parallelism.fsdp_wrap",
                                   wrap,
                                   "--parallelism.fsdp_machine",
                                   kMachine,
                                   "--activation_checkpoint.mode",
                                   model == "8b" ? "selective" : "full"};
  if (model == "8b") args.insert(args.end(), {"--activation_checkpoint.selective_ac_option", "op"});
  if (wrap != "manual") args.insert(args.end(), {"--parallelism.fsdp_reshard_after_forward", "auto"});
  const auto machine = sfsdp::cost::load_machine(kMachine);
  const auto job = sfsdp::train::make_job(sfsdp::train::load_config(args), world);
  const auto variant = job.program->first();
  Choice choice;
  choice.compile_seconds = (variant->capture_ms + variant->complete_ms) / 1e3;
  const auto simulation = sfsdp::sim::simulate(variant->graph, machine);
  choice.step_seconds = simulation.step_seconds;
  choice.bound = bound_of(simulation);
  const auto memory = sfsdp::plan::plan_memory(variant->graph);
  choice.fits = static_cast<double>(memory.peak()) <= machine.memory_bytes;
  return choice;
}

void compare_choices() {
  std::printf(
      "| model | GPUs | manual ms | auto ms | search ms | bound ms | of the gap closed | search compiles in |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  double closed_sum = 0;
  int rows = 0, slower = 0;
  for (const char* model : {"8b", "70b", "405b"})
    for (const int64_t world : {8, 16, 32, 64, 128, 256, 512, 1024}) {
      const Choice manual = choose(model, world, "manual"), greedy = choose(model, world, "auto"),
                   search = choose(model, world, "search");
      if (!search.fits && !manual.fits) continue;
      const auto ms = [](const Choice& c) {
        return c.fits ? sfsdp::with_commas(c.step_seconds * 1e3, 1) : std::string("out of memory");
      };
      const double bound = manual.bound;
      const double gap = manual.step_seconds - bound;
      const double closed = (manual.step_seconds - search.step_seconds) / gap;
      const bool both = search.fits && manual.fits;
      if (both) {
        closed_sum += closed;
        ++rows;
        slower += search.step_seconds > manual.step_seconds ? 1 : 0;
      }
      std::printf("| %s | %lld | %s | %s | %s | %s | %s | %.1f s |\n", model, static_cast<long long>(world),
                  ms(manual).c_str(), ms(greedy).c_str(), ms(search).c_str(),
                  sfsdp::with_commas(bound * 1e3, 1).c_str(),
                  both ? (sfsdp::with_commas(100 * closed, 0) + " %").c_str() : "", search.compile_seconds);
      std::fflush(stdout);
    }
  std::printf("mean of the gap closed where both fit: %.0f %% (%d rows); search slower in %d\n",
              100 * closed_sum / rows, rows, slower);
}

// 64 -> 256 -> 10, as in examples/own_model.
struct SmallImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256)),
                    down = register_module("down", torch::nn::Linear(256, 10));
};
TORCH_MODULE(Small);

void measure_agreement(sfsdp::comm::CommWorld& world) {
  const auto net = sfsdp::meta_init([] { return Small(); });
  const auto loss = [](Small& m, const sfsdp::Batch& b) {
    return torch::nn::functional::cross_entropy(m->forward(b[0]), b[1]);
  };
  const sfsdp::Batch batch = {torch::ones({32, 64}), torch::zeros({32}, torch::kLong)};
  const auto mesh = sfsdp::init_device_mesh({{"dp_shard", world.world_size()}});
  auto step = sfsdp::compile(net, loss, sfsdp::AdamW{}, batch, sfsdp::data_parallel(mesh), &world);
  const sfsdp::comm::RankNumber numbers[] = {{"Step::lr", 0.1}, {"Step::step", 1}};
  Sample agreement, whole;
  for (int i = 0; i < 1000; ++i) {
    agreement.seconds.push_back(seconds_of([&] { sfsdp::comm::expect_same_hash(world, 1, {}, numbers); }));
    whole.seconds.push_back(seconds_of([&] { step(batch); }));
  }
  if (world.rank() != 0) return;
  std::printf("%d ranks, 1000 steps\n", world.world_size());
  agreement.print("agreement");
  whole.print("step, agreement included");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args[0] == "agreement") {
    if (std::getenv("WORLD_SIZE"))
      measure_agreement(*sfsdp::init());
    else
      sfsdp::testing::run_ranks(args.size() > 1 ? std::atoi(args[1].c_str()) : 2, measure_agreement);
    return 0;
  }
  if (!args.empty() && args[0] == "collectives" && std::getenv("WORLD_SIZE")) {
    auto options = sfsdp::comm::tcp_options_from_env();
    options.shared_memory = args.size() == 1;
    measure_collectives(*sfsdp::comm::make_launched_world(options));
    return 0;
  }
  if (args.size() == 1 && args[0] == "attention") {
    measure_attention();
    return 0;
  }
  if (args.size() == 1 && args[0] == "calls") {
    measure_calls();
    return 0;
  }
  if (args.size() >= 5 && args[0] == "products") {
    measure_products(args[1], args[2], std::stod(args[3]), {args.begin() + 4, args.end()});
    return 0;
  }
  if (args.size() > 1 && args[0] == "products_of_job") {
    measure_products_of_job({args.begin() + 1, args.end()});
    return 0;
  }
  if (!args.empty() && args[0] == "checkpoint" && args.size() <= 3) {
    const auto mib = sfsdp::parse_int(args.size() > 1 ? args[1] : "512");
    if (!mib || *mib < 64) {
      std::cerr << "error: " << args[1] << " MiB\n  expected a number, at least 64\n";
      return 2;
    }
    measure_checkpoints(*mib, 7, args.size() > 2 ? args[2] : "outputs/checkpoint_bench");
    return 0;
  }
  const bool compares = args.size() == 1 && args[0] == "search";
  const bool measures =
      !args.empty() && args[0] == "compiler" && (args.size() == 1 || (args.size() == 3 && args[1] == "--repeat"));
  if (!compares && !measures) {
    std::cerr
        << "usage: sfsdp-bench compiler [--repeat N]   how long capture, passes and plan take\n"
           "       sfsdp-bench search                  units by search against units by name, simulated\n"
           "       sfsdp-bench agreement [ranks]       what ranks compare before a step, beside a small step\n"
           "       sfsdp launch -n N --exec sfsdp-bench -- collectives [tcp] rates of ranks that exchange data\n"
           "       sfsdp-bench attention               LibTorch's kernel and sfsdp's\n"
           "       sfsdp-bench calls                   what the planned executor takes for a kernel beyond its call\n"
           "       sfsdp-bench products LIBRARY DTYPE SECONDS TOKENS,N,K...  GF/s of products on one thread\n"
           "       sfsdp launch -n N --exec sfsdp-bench -- products_of_job FLAG...  GF/s of a job's products, by "
           "library\n"
           "       sfsdp-bench checkpoint [MiB [FOLDER]]  saving and loading beside dd, on the folder's disk\n"
           "in the repository's root\n";
    return 2;
  }
  const auto repeat = args.size() == 3 ? sfsdp::parse_int(args[2]) : 5;
  if (!repeat || *repeat < 1) {
    std::cerr << "error: --repeat " << args[2] << "\n  expected a number, at least 1\n";
    return 2;
  }
  try {
    if (compares) {
      compare_choices();
      return 0;
    }
    for (const char* config : {"configs/llama3_8b.toml", "configs/llama3_405b.toml"})
      for (const char* wrap : {"manual", "auto", "search"}) measure(config, 512, wrap, *repeat);
  } catch (const sfsdp::UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
