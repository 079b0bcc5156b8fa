// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/plan_search.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/tools/search_space.h"
#include "sfsdp/tools/sweep.h"
#include "sfsdp/tools/workers.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/plan_summary.h"
#include "sfsdp/tune/scaled_step.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::tools {
namespace {

struct Found {
  Candidate candidate;
  tune::ScaledEstimate step;  // estimated, then of the best simulated
  bool fits = false;
  bool refused = false;  // its axes do not fit the model
};

bool names_system(const Request& request) {
  return std::ranges::any_of(request.own.options,
                             [](const GivenOption& option) { return option.name.starts_with("--simulate."); });
}

// Our plan, unless options name a system, whatever a config says of PyTorch's compiler.
Request of_our_plan(Request request) {
  if (!names_system(request)) request.own.options.push_back({"--simulate.execution", "fused"});
  return request;
}

double exposed(const tune::ScaledEstimate& step) {
  double sum = 0;
  for (const auto& [kind, seconds] : step.exposed_seconds) sum += seconds;
  return sum;
}

std::string ms(double seconds) { return with_commas(seconds * 1e3, 1); }

class Search {
 public:
  Search(const Request& request, const CaptureJob& capture)
      : request_(of_our_plan(request)),
        estimates_(!names_system(request)),
        base_(config_of(request)),
        world_(request.world),
        threads_(threads_of(request)),
        machine_(cost::load_machine(request.get("machine"), train::attention_of(base_.model))),
        tune_(train::tune_of(base_)),
        captures_(capture) {}

  void estimate() {
    if (!estimates_) {  // what a mesh changes of another system's step is not known
      const bool third_alone = request_.get("simulate.system") == "deepspeed3";  // which has no other stage
      for (const Candidate& c : search_space(base_, world_, model_axes_of(base_)))
        if (!third_alone || c.stage == 3) found_.push_back({c, {}});
      on_threads(threads_, found_.size(), [&](size_t i) { simulate(found_[i]); });
      sort(found_);
      return;
    }
    const ModelAxes axes = choose_axes();
    std::erase_if(found_, [&](const Found& f) { return f.candidate.axes == axes; });
    estimate(search_space(base_, world_, axes));
  }

  // The fastest that fit, in the simulator's order.
  std::vector<Found> best(size_t count) {
    std::vector<Found> out(found_.begin(), found_.begin() + static_cast<ptrdiff_t>(std::min(2 * count, found_.size())));
    if (estimates_) on_threads(threads_, out.size(), [&](size_t i) { simulate(out[i]); });
    sort(out);
    if (out.size() > count) out.resize(count);
    return out;
  }

  // Bytes that a rank may use.
  double memory_for(const Candidate& c) const { return tune::memory_of(tune_, machine_, mesh_of(c)); }
  const std::vector<Found>& found() const { return found_; }
  const cost::Machine& machine() const { return machine_; }
  const train::JobConfig& config() const { return base_; }
  int64_t world() const { return world_; }
  bool estimates() const { return estimates_; }
  double estimate_seconds() const { return estimate_seconds_; }
  // Numbers of ranks that an axis cannot have, by its name, and why.
  const std::map<std::string, std::string>& left_out() const { return left_out_; }

 private:
  // What the command line, or a config other than by 1, says of an axis holds; so does what no plan of the model cuts.
  bool varies(const char* option, int64_t degree) const {
    return degree == 1 &&
           std::ranges::none_of(request_.config_args, [&](const std::string& arg) { return arg.starts_with(option); });
  }
  bool has_tensor_plan() const {
    train::JobConfig two = base_;
    two.parallelism.tensor_parallel_degree = 2;
    try {
      return !train::tensor_parallel_of(two).rules.empty();
    } catch (const UserError&) {
      return false;
    }
  }

  // ep, tp beside it, cp beside both, and ep once more: all numbers of ranks of each, by a few configurations.
  ModelAxes choose_axes() {
    const ModelAxes given = model_axes_of(base_);
    ModelAxes best = given;
    const bool varies_experts = varies("--parallelism.expert_parallel_degree", given.expert);
    const int64_t experts = varies_experts ? captures_.experts(base_) : 0;
    const auto choose = [&](int64_t ModelAxes::*axis, const std::vector<int64_t>& degrees) {
      std::vector<Candidate> looks;
      for (const int64_t degree : degrees) {
        ModelAxes axes = best;
        axes.*axis = degree;
        if (varies_experts) axes.expert = std::gcd(axes.expert, world_ / axes.ranks());  // of fewer shards
        const auto seen = [&](const Found& f) { return f.candidate.axes == axes; };
        if (std::ranges::any_of(found_, seen)) continue;
        // Fewer sequences than ranks that would have their own, which other axes may mend.
        try {
          for (const Candidate& c : first_look(base_, world_, axes)) looks.push_back(c);
        } catch (const UserError& error) {
          leave_out(axes, error.what());
        }
      }
      estimate(looks);
      if (!found_.empty()) best = found_.front().candidate.axes;
    };
    const auto choose_experts = [&] {
      if (experts > 0) choose(&ModelAxes::expert, expert_degrees(best, world_, experts));
    };
    const auto in_node = [&](int64_t other) { return degrees_beside(other, world_, machine_.devices_per_node); };
    choose_experts();
    if (varies("--parallelism.tensor_parallel_degree", given.tensor) && has_tensor_plan())
      choose(&ModelAxes::tensor, in_node(best.context));
    if (varies("--parallelism.context_parallel_degree", given.context))
      choose(&ModelAxes::context, in_node(best.tensor));
    choose_experts();
    return best;
  }

  // Those whose axes do not fit the model are left out, but for what the user has asked for.
  void estimate(const std::vector<Candidate>& candidates) {
    std::map<std::string, std::vector<size_t>> by_structure;
    for (const Candidate& c : candidates) {
      by_structure[structure_of(c)].push_back(found_.size());
      found_.push_back({c, {}});
    }
    std::vector<std::vector<size_t>> groups;
    for (auto& [structure, members] : by_structure) groups.push_back(std::move(members));
    on_threads(threads_, groups.size(), [&](size_t g) {
      const ModelAxes axes = found_[groups[g][0]].candidate.axes;
      try {
        estimate_group(groups[g]);
      } catch (const UserError& error) {
        if (axes == model_axes_of(base_)) throw;
        leave_out(axes, error.what());
        for (const size_t i : groups[g]) found_[i].refused = true;
      }
    });
    std::erase_if(found_, [](const Found& f) { return f.refused; });
    sort(found_);
  }

  void leave_out(const ModelAxes& axes, const std::string& why) {
    const std::lock_guard lock(mutex_);
    left_out_.emplace(
        concat(axes.expert > 1 ? concat("ep=", axes.expert, ",") : "", "cp=", axes.context, ",tp=", axes.tensor),
        why.substr(0, why.find('\n')));
  }

  // Those that fit first, by time; then by memory.
  void sort(std::vector<Found>& all) const {
    std::ranges::stable_sort(all, [&](const Found& a, const Found& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.step.seconds < b.step.seconds : a.step.peak_bytes < b.step.peak_bytes;
    });
  }

  // All gradients are copied into their buckets; which copies a mesh saves depends on its peak, so that meshes would not have
  // the same kernels.
  plan::StepPlan compile(const Candidate& c) {
    const train::JobConfig config = config_of(base_, c);
    train::StepSetup setup = train::step_setup(config, world_);
    setup.options.target = cost::target_of(machine_);
    setup.options.needs_product_sites = false;
    setup.options.pipeline.disable.emplace_back("write_in_buckets");
    return captures_.compile(config, std::move(setup)).plan;
  }

  // They differ in their meshes alone: the fewest shards and the most are compiled.
  void estimate_group(const std::vector<size_t>& members) {
    const auto shards = [&](size_t i) { return found_[i].candidate.shard; };
    const auto [least, most] = std::ranges::minmax_element(members, {}, shards);
    const plan::StepPlan a = compile(found_[*least].candidate);
    std::optional<plan::StepPlan> b;
    if (shards(*least) != shards(*most)) b = compile(found_[*most].candidate);
    tune::ScaledStep step(a, b ? *b : a, machine_);
    std::vector<std::vector<ir::MeshAxis>> meshes;
    for (const size_t i : members) meshes.push_back(mesh_of(found_[i].candidate));
    const auto start = std::chrono::steady_clock::now();
    for (size_t m = 0; m < members.size(); ++m)
      estimated(found_[members[m]], step.at(meshes[m], found_[members[m]].candidate.accumulation));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const std::lock_guard lock(mutex_);
    estimate_seconds_ += took.count();
  }

  std::vector<ir::MeshAxis> mesh_of(const Candidate& c) const {
    return train::make_mesh(config_of(base_, c).parallelism, world_).axes();
  }

  void estimated(Found& f, tune::ScaledEstimate step) const {
    f.step = std::move(step);
    f.fits = static_cast<double>(f.step.peak_bytes) <= memory_for(f.candidate);
  }

  void simulate(Found& f) {
    const SimulatedConfig simulated = simulate_config(request_, config_of(base_, f.candidate), captures_);
    const SimulateReport& report = simulated.simulated.report;
    const sim::Simulation& s = report.simulation;
    f.step = {s.step_seconds, s.compute_seconds, s.exposed_seconds, report.peak_bytes()};
    f.fits = report.fits();
    if (estimates_) f.fits = f.fits && static_cast<double>(f.step.peak_bytes) <= memory_for(f.candidate);
  }

  const Request request_;
  const bool estimates_;  // our plan: scaled from few that are compiled
  const train::JobConfig base_;
  const int64_t world_, threads_;
  const cost::Machine machine_;
  const tune::TuneOptions tune_;
  Captures captures_;
  std::vector<Found> found_;
  std::mutex mutex_;
  double estimate_seconds_ = 0;
  std::map<std::string, std::string> left_out_;
};

std::string padded(const std::string& text, size_t width) {
  size_t length = 0;  // in characters: × has two bytes
  for (const char c : text) length += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return text + std::string(width > length ? width - length : 1, ' ');
}

// What another one waits for or computes more, the largest part first: "250.0 ms more compute".
std::string difference(const tune::ScaledEstimate& other, const tune::ScaledEstimate& best) {
  std::vector<std::pair<double, std::string>> parts = {{other.compute_seconds - best.compute_seconds, "compute"}};
  for (const auto& [kind, seconds] : other.exposed_seconds) {
    const auto found = best.exposed_seconds.find(kind);
    parts.emplace_back(seconds - (found == best.exposed_seconds.end() ? 0 : found->second), "exposed " + kind);
  }
  std::ranges::sort(parts, std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [seconds, what] : parts)
    if (seconds > 0.0005 * best.seconds) texts.push_back(concat(ms(seconds), " ms more ", what));
  return texts.empty() ? "alike" : join(texts, ", ");
}

void print_best(std::ostream& out, const Search& search, const std::vector<Found>& best) {
  std::array<size_t, 5> widths = {0, 11, 13, 7, 9};
  for (const Found& f : best) widths[0] = std::max(widths[0], choices_of(f.candidate)[0].second.size() + 1);
  size_t column = 0;
  for (const auto& [name, value] : choices_of(best[0].candidate)) out << padded(name, widths.at(column++));
  out << "     step ms  tokens/s   exposed ms  peak GiB\n";
  const auto sequences = [](const Candidate& c) {  // of a device
    return static_cast<double>(c.local * c.accumulation) / static_cast<double>(c.axes.ranks());
  };
  for (const Found& f : best) {
    column = 0;
    for (const auto& [name, value] : choices_of(f.candidate)) out << padded(value, widths.at(column++));
    const double tokens =
        sequences(f.candidate) * static_cast<double>(search.config().training.seq_len) / f.step.seconds;
    const auto right = [](const std::string& text, size_t width) {
      return std::string(width > text.size() ? width - text.size() : 1, ' ') + text;
    };
    out << right(ms(f.step.seconds), 12) << right(with_commas(tokens, 0), 10) << right(ms(exposed(f.step)), 13)
        << right(with_commas(static_cast<double>(f.step.peak_bytes) / (1 << 30), 1), 10)
        << (f.fits ? "" : "  out of memory") << "\n";
  }
}

// For each choice the best that chooses otherwise, estimated as it is, and what it loses.
void print_why(std::ostream& out, const Search& search, const Candidate& winner) {
  const Choices chosen = choices_of(winner);
  const auto is = [&](const Found& f, size_t i, const std::string& value) {
    return choices_of(f.candidate).at(i).second == value;
  };
  const auto& all = search.found();
  const auto best = std::ranges::find_if(all, [&](const Found& f) { return choices_of(f.candidate) == chosen; });
  out << "Compute " << with_commas(100 * best->step.compute_seconds / best->step.seconds, 1)
      << " % of the step of the first. The best with another choice, estimated:\n";
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::vector<std::string> seen = {chosen.at(i).second};
    for (const Found& f : all) {  // fitting ones first, the fastest first
      const auto [name, value] = choices_of(f.candidate).at(i);
      if (std::ranges::find(seen, value) != seen.end()) continue;
      seen.push_back(value);
      out << "  " << name << " " << value << ": ";
      if (!f.fits) {
        out << "does not fit, at least " << train::bytes_text(f.step.peak_bytes) << "\n";
        continue;
      }
      out << ms(f.step.seconds) << " ms, " << difference(f.step, best->step);
      const auto alone = std::ranges::find_if(all, [&, &value = value](const Found& g) {
        for (size_t k = 0; k < chosen.size(); ++k)
          if (!is(g, k, k == i ? value : chosen.at(k).second)) return false;
        return true;
      });
      if (alone != all.end() && !alone->fits)
        out << "; with all else as the first it needs " << train::bytes_text(alone->step.peak_bytes);
      out << "\n";
    }
  }
}

void print_search(std::ostream& out, const Search& search, const std::vector<Found>& best) {
  const auto list = [&](const std::vector<Found>& all) {
    std::string text;
    for (const Found& f : all) {
      text += concat(text.empty() ? "" : ", ", "{\"options\": ", json_of(search.config(), f.candidate),
                     ", \"step_seconds\": ", shortest(f.step.seconds),
                     ", \"compute_seconds\": ", shortest(f.step.compute_seconds),
                     ", \"exposed_seconds\": ", shortest(exposed(f.step)), ", \"peak_bytes\": ", f.step.peak_bytes,
                     ", \"fits\": ", f.fits ? "true" : "false", "}");
    }
    return concat('[', text, ']');
  };
  out << "{\"world\": " << search.world() << ", \"machine\": " << json_quoted(search.machine().name)
      << ", \"estimate_seconds\": " << shortest(search.estimate_seconds())
      << ", \"estimated\": " << list(search.found()) << ", \"best\": " << list(best) << "}\n";
}

}  // namespace

int run_search(const Request& request, const CaptureJob& capture, std::ostream& out, std::ostream&) {
  if (!request.has("machine"))
    throw UserError("--search needs --machine\n  expected --machine M, such as dgx_h100: what to count on");
  const int64_t top = number_of("--top", request.get("top", "10"), 1, 1000);
  const auto start = std::chrono::steady_clock::now();
  Search search(request, capture);
  search.estimate();
  const std::vector<Found> best = search.best(static_cast<size_t>(top));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (request.has("json")) {
    print_search(out, search, best);
    return 0;
  }
  const auto fitting = std::ranges::count_if(search.found(), &Found::fits);
  const Candidate& first = best[0].candidate;
  out << "Model " << train::title_of(search.config().model) << " on " << search.world() << " × "
      << search.machine().device << " (" << search.machine().name << "), "
      << first.local * first.accumulation * first.replicate * first.shard
      << " sequences a step: " << with_commas(static_cast<int64_t>(search.found().size()))
      << (search.estimates() ? " configurations estimated, " : " configurations simulated, ") << fitting << " fit into "
      << train::bytes_text(static_cast<int64_t>(search.memory_for(first))) << ", the best simulated, in "
      << with_commas(seconds, 1) << " s\n";
  print_best(out, search, best);
  print_why(out, search, first);
  for (const auto& [axes, why] : search.left_out()) out << "Left out " << axes << ": " << why << "\n";
  return 0;
}

}  // namespace sfsdp::tools
