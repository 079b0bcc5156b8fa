// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/sweep.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/tools/simulate_report.h"
#include "sfsdp/tools/sweep_cases.h"
#include "sfsdp/tools/workers.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/config/step_setup.h"

namespace sfsdp::tools {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

std::string simulate_case(const std::vector<std::string>& args, Captures& captures) {
  const Request request = parse_request(find_command("simulate"), args);
  for (const char* option : {"sweep", "trace", "html", "simulate.memory_depth"})
    if (request.has(option))
      throw UserError(concat("--", option, " in a case of a sweep\n  expected it without --sweep, for one step"));
  std::ostringstream text;
  print_report_json(text, simulate_config(request, config_of(request), captures).simulated.report);
  return text.str();
}

// "{\"case\": {…}, " and what `json`, an object, holds.
std::string with_case(const SweepCase& c, const std::string& json) {
  std::string text = "{\"case\": {";
  for (const SweepOption& option : c.options)
    text += concat(&option == c.options.data() ? "" : ", ", json_quoted(option.name), ": ", option.json);
  return concat(text, "}, ", json.substr(1));
}

std::string error_json(const std::string& text) {
  return concat("{\"error\": ", json_quoted(train::with_keys(text)), "}\n");
}

// The options of the command line that all cases share.
std::vector<std::string> shared_args(const Request& request) {
  std::vector<std::string> args;
  for (const GivenOption& option : request.own.options)
    if (option.name != "--sweep" && option.name != "--json" && option.name != "--threads")
      args.push_back(concat(option.name, '=', option.value));
  return args;
}

// Lines in order, whoever has made them.
class Lines {
 public:
  Lines(std::ostream& out, size_t count) : out_(out), lines_(count) {}
  void put(size_t index, std::string line) {
    const std::lock_guard lock(mutex_);
    lines_[index] = std::move(line);
    for (; next_ < lines_.size() && !lines_[next_].empty(); ++next_) {
      out_ << lines_[next_] << std::flush;
      lines_[next_].clear();
    }
  }

 private:
  std::ostream& out_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  size_t next_ = 0;
};

}  // namespace

// DeepSpeed's buckets follow from the parameters, which a step by the usual units names.
static train::JobConfig with_buckets(const SimulateSetup& setup, train::JobConfig config, int64_t world,
                                     Captures& captures) {
  if (setup.deepspeed)
    config.parallelism.fsdp_units =
        deepspeed_units(captures.compile(config, train::step_setup(config, world)).plan.graph, *setup.deepspeed);
  return config;
}

SimulatedConfig simulate_config(const Request& request, const train::JobConfig& config, Captures& captures) {
  const SimulateSetup setup = simulate_setup(request, config);
  const train::JobConfig bucketed = with_buckets(setup, config, request.world, captures);
  train::StepSetup made = train::step_setup(bucketed, request.world);
  made.options.pipeline.fuse.scope = setup.fuse_scope();
  made.options.target = cost::target_of(setup.machine);
  made.options.needs_product_sites = !request.has("search");  // one of many meshes
  SimulatedConfig out{captures.compile(bucketed, made), {}};
  out.simulated = simulate_step(
      out.step.plan, setup,
      {.model = train::title_of(config.model),
       .mesh = to_string(made.strategy.mesh),
       .world = request.world,
       .tokens = static_cast<double>(made.shares.global * config.training.seq_len) / static_cast<double>(request.world),
       .flops_per_token = out.step.flops_per_token});
  return out;
}

int run_sweep(const Request& request, const CaptureJob& capture, std::ostream& out, std::ostream& err) {
  const std::string file = request.get("sweep");
  const std::vector<SweepCase> cases = read_sweep(read_text_file(file, kMaxFileBytes), file);
  const std::vector<std::string> shared = shared_args(request);
  Captures captures(capture);
  Lines lines(out, cases.size());
  std::atomic<size_t> refused = 0;
  const auto run = [&](size_t i) {
    std::string json;
    try {
      if (!cases[i].error.empty()) throw UserError(cases[i].error);
      std::vector<std::string> args = shared;
      for (const SweepOption& option : cases[i].options) args.push_back(concat("--", option.name, '=', option.value));
      json = simulate_case(args, captures);
    } catch (const std::exception& error) {
      json = error_json(error.what());
      ++refused;
    }
    lines.put(i, with_case(cases[i], json));
  };
  const auto start = std::chrono::steady_clock::now();
  on_threads(threads_of(request), cases.size(), run);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  err << with_commas(static_cast<int64_t>(cases.size())) << " configurations, " << refused << " refused, in "
      << with_commas(seconds, 2) << " s: " << with_commas(static_cast<double>(cases.size()) / seconds, 1)
      << " a second\n";
  return !cases.empty() && refused == cases.size() ? 2 : 0;
}

}  // namespace sfsdp::tools
