// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/sweep.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/passes/canonical/canonicalise.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/tools/simulate_report.h"
#include "sfsdp/tools/simulate_step.h"
#include "sfsdp/tools/sweep_cases.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/config/step_setup.h"

namespace sfsdp::tools {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMostCaptures = 16;  // that are kept: 8B's has 3 MB of ops
constexpr const char* kFirstPass = "canonicalise";

// Captures by what they depend on, canonicalised where the pipeline would begin with that. For all threads.
class Captures {
 public:
  explicit Captures(const CaptureJob& capture) : capture_(capture) {}

  struct Entry {
    std::mutex mutex;
    std::optional<train::CapturedJob> job;
  };

  std::shared_ptr<const Entry> get(const train::JobConfig& config, bool canonical) {
    const std::shared_ptr<Entry> entry = find(concat(canonical ? "canonical/" : "", train::capture_key(config)));
    const std::lock_guard lock(entry->mutex);
    if (entry->job) return entry;
    {
      const std::lock_guard one(capturing_);
      entry->job = capture_(config);
    }
    passes::PassContext ignored;
    if (canonical) passes::canonicalise(entry->job->graph, ignored);
    return entry;
  }

 private:
  std::shared_ptr<Entry> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    auto& entry = entries_[key];
    if (entry) return entry;
    entry = std::make_shared<Entry>();
    order_.push_back(key);
    auto found = entry;
    if (order_.size() > kMostCaptures) {
      entries_.erase(order_.front());
      order_.pop_front();
    }
    return found;
  }

  const CaptureJob& capture_;
  std::mutex mutex_, capturing_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::deque<std::string> order_;  // oldest first
};

std::string simulate_case(const std::vector<std::string>& args, Captures& captures) {
  const Request request = parse_request(find_command("simulate"), args);
  for (const char* option : {"sweep", "trace", "html", "simulate.memory_depth"})
    if (request.has(option))
      throw UserError(concat("--", option, " in a case of a sweep\n  expected it without --sweep, for one step"));
  const train::JobConfig config = config_of(request);
  const SimulateSetup setup = simulate_setup(request, config);
  train::StepSetup made = train::step_setup(config, request.world);
  made.options.pipeline.fuse.scope = setup.fuse_scope();
  auto& disabled = made.options.pipeline.disable;
  const bool canonical =
      made.options.pipeline.loss_chunks == 1 && std::ranges::find(disabled, kFirstPass, trim) == disabled.end();
  const auto capture = captures.get(config, canonical);
  if (!capture->job->draws_wrong.empty() && made.strategy.data_ranks() * made.options.micro_batches > 1)
    throw UserError(capture->job->draws_wrong);
  if (canonical) disabled.push_back(kFirstPass);  // done
  made.options.target = cost::target_of(setup.machine);
  const plan::StepPlan plan =
      step::complete_step(capture->job->graph.clone(), made.strategy, made.options, capture->job->half_precision);
  std::optional<ir::Graph> executed;
  if (setup.options.execution == cost::Execution::Reference) executed = passes::decomposed(plan.graph);
  const SimulateReport report =
      simulate_step(executed ? *executed : plan.graph, executed ? reference_memory(*executed) : plan.memory, setup,
                    {.model = config.model.name + " " + config.model.flavor,
                     .mesh = to_string(made.strategy.mesh),
                     .world = request.world,
                     .tokens = made.shares.local * made.shares.accumulation * config.training.seq_len,
                     .flops_per_token = capture->job->flops_per_token});
  std::ostringstream text;
  print_report_json(text, report);
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

int run_sweep(const Request& request, const CaptureJob& capture, std::ostream& out, std::ostream& err) {
  const std::string file = request.get("sweep");
  const std::vector<SweepCase> cases = read_sweep(read_text_file(file, kMaxFileBytes), file);
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t threads = request.has("threads") ? number_of("--threads", request.get("threads"), 1, 1024) : cores;
  const std::vector<std::string> shared = shared_args(request);
  Captures captures(capture);
  Lines lines(out, cases.size());
  std::atomic<size_t> next = 0, refused = 0;
  const auto work = [&] {
    for (size_t i = next++; i < cases.size(); i = next++) {
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
    }
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (int64_t t = 1; t < std::min<int64_t>(threads, static_cast<int64_t>(cases.size())); ++t)
    workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  err << with_commas(static_cast<int64_t>(cases.size())) << " configurations, " << refused << " refused, in "
      << with_commas(seconds, 2) << " s: " << with_commas(static_cast<double>(cases.size()) / seconds, 1)
      << " a second\n";
  return 0;
}

}  // namespace sfsdp::tools
