// SPDX-License-Identifier: BSD-3-Clause
// sfsdp-bench compiler [--repeat N]: how long capture, passes, memory plan and simulation take, and what they need.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/train/job.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
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
    std::printf("  %-34s median %7.1f ms   (%.1f to %.1f)\n", what, 1e3 * seconds[seconds.size() / 2],
                1e3 * seconds.front(), 1e3 * seconds.back());
  }
};

void measure(const std::string& config, int64_t world, const std::string& machine_file, int64_t repeat) {
  const auto job_config = sfsdp::train::load_config_file(config);
  const auto machine = sfsdp::cost::load_machine(machine_file);
  Sample capture, complete, memory, simulate;
  size_t ops = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    const auto job = sfsdp::train::make_job(job_config, world);
    const auto& variant = job.program->training(job.example);
    ops = variant.graph.ops().size();
    capture.seconds.push_back(variant.capture_ms / 1e3);
    complete.seconds.push_back(variant.complete_ms / 1e3);
    memory.seconds.push_back(seconds_of([&] { sfsdp::plan::plan_memory(variant.graph); }));
    simulate.seconds.push_back(seconds_of([&] { sfsdp::sim::simulate(variant.graph, machine); }));
  }
  std::printf("%s on %lld ranks: %zu ops, %lld runs\n", config.c_str(), static_cast<long long>(world), ops,
              static_cast<long long>(repeat));
  capture.print("capture");
  complete.print("sharding, passes, verification");
  memory.print("memory plan");
  simulate.print("simulation");
  std::printf("  peak memory of the process so far  %.2f GiB\n", peak_gib());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty() || args[0] != "compiler" || (args.size() != 1 && (args.size() != 3 || args[1] != "--repeat"))) {
    std::cerr << "usage: sfsdp-bench compiler [--repeat N]   (in the repository's root)\n";
    return 2;
  }
  const auto repeat = args.size() == 3 ? sfsdp::parse_int(args[2]) : 5;
  if (!repeat || *repeat < 1) {
    std::cerr << "error: --repeat " << args[2] << "\n  expected a number, at least 1\n";
    return 2;
  }
  try {
    measure("configs/llama3_8b.toml", 512, "machines/dgx_h100.toml", *repeat);
    measure("configs/llama3_405b.toml", 512, "machines/dgx_h100.toml", *repeat);
  } catch (const sfsdp::UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
