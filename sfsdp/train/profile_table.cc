// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/profile_table.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/fixed.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/measured.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/sim/report/op_classes.h"

namespace sfsdp::train {
namespace {

constexpr size_t kMostShown = 10;
constexpr size_t kMostModules = 2;
constexpr const char* kExposed = "communication, exposed";

struct Kind {
  const char* name;
  const char* of_kernel;  // sim::class_of_kernel
};
constexpr std::array<Kind, 7> kKinds = {{{"products", "product"},
                                         {"attention", "attention"},
                                         {"rows", "row"},
                                         {"elements", "pointwise"},
                                         {"copies", "copy"},
                                         {"others", "library"},
                                         {"optimizer", "optimizer"}}};

// Clipping is part of the optimizer, whatever its kernels are.
std::string kind_of(const StepTask& task) {
  if (task.lane > 0) return kExposed;
  const ir::Section section = task.ops[0]->section;
  if (section == ir::Section::Clip || section == ir::Section::Opt) return "optimizer";
  const std::string_view of_kernel = sim::class_of_kernel(task.ops);
  return std::ranges::find(kKinds, of_kernel, &Kind::of_kernel)->name;
}

// "linear 512 x 2048 x 768 and 2 more", "all_gather over dp_shard".
std::string name_of_task(const StepTask& task, const std::vector<std::string>& lanes) {
  if (task.lane > 0) return concat(ir::collective_kind(*task.ops[0]), " over ", lanes[task.lane]);
  const ir::Op* arithmetic = cost::arithmetic_op(task.ops);
  std::string name((arithmetic ? arithmetic : task.ops[0])->opcode);
  if (arithmetic && cost::class_of(*arithmetic) == cost::Class::Product) {
    const cost::ProductShape shape = cost::product_shape(*arithmetic);
    if (shape.batch > 1) name += concat(' ', shape.batch, " times");
    name += concat(' ', shape.m, " x ", shape.n, " x ", shape.k);
  }
  return task.ops.size() > 1 ? concat(name, " and ", task.ops.size() - 1, " more") : name;
}

std::string right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}
std::string left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string heads() {
  return concat(right("ms a step", 10), right("share", 9), right("runs", 8), right("rate", 14),
                right("of the machine's", 18));
}

}  // namespace

void ProfileTable::Sum::add(double more_us, double more_flops, double more_bytes) {
  us += more_us;
  flops += more_flops;
  bytes += more_bytes;
  ++runs;
}

void ProfileTable::add(const StepRuns& step) {
  steps_.push_back(step.step());
  us_ += step.end_us() - step.begin_us();
  std::set<size_t> seen;
  for (const TaskRun& run : step.runs()) {
    const StepTask& task = step.tasks()[run.task];
    const double bytes = task.bytes - (seen.insert(run.task).second ? task.sum_bytes : 0);  // there is no sum yet
    const double us = run.end_us - run.begin_us;
    const std::string kind = kind_of(task), name = name_of_task(task, step.lanes());
    kinds_[kind].add(us, task.flops, bytes);
    Alike& alike = alike_[concat(kind, ' ', name, ' ', cost::ops_of(task.ops))];
    alike.name = name;
    alike.sum.add(us, task.flops, bytes);
    const std::string module = with_stars(task.ops[0]->module_path);
    if (!module.empty() && std::ranges::find(alike.modules, module) == alike.modules.end())
      alike.modules.push_back(module);
  }
}

std::string ProfileTable::row(const Sum& sum, const MachineRates& rates) const {
  const auto steps = static_cast<double>(steps_.size());
  std::string text = concat(right(fixed(sum.us / 1e3 / steps, 3), 10), right(fixed(100 * sum.us / us_, 1) + " %", 9));
  if (sum.runs == 0) return text;
  text += right(fixed(static_cast<double>(sum.runs) / steps, 0), 8);
  if (sum.us <= 0) return text;
  const bool computes = sum.flops > 0;
  const double rate = (computes ? sum.flops : sum.bytes) / (sum.us * 1e-6), most = computes ? rates.flops : rates.bytes;
  text += right(fixed(rate / 1e9, 1) + (computes ? " GF/s" : " GB/s"), 14);
  return most > 0 ? text + right(fixed(100 * rate / most, 0) + " %", 18) : text;
}

std::string ProfileTable::text(int64_t rank, const MachineRates& rates) const {
  SFSDP_CHECK(!empty(), "a table of no step");
  const auto line = [](const std::string& begin, const std::string& end) {
    std::string whole = begin + end;
    return whole.substr(0, whole.find_last_not_of(' ') + 1) + "\n";
  };
  std::vector<std::string> steps;
  for (const int64_t step : steps_) steps.push_back(std::to_string(step));
  std::string text = concat("Profile of rank ", rank, ", the mean of ", steps.size() == 1 ? "step " : "steps ",
                            join(steps, ", "), ": ", fixed(us_ / 1e3 / static_cast<double>(steps.size()), 3), " ms\n");
  text += line(left("", 24), heads());
  Sum rest = {.us = us_};
  const auto add = [&](const std::string& name) {
    const auto found = kinds_.find(name);
    if (found == kinds_.end()) return;
    rest.us -= found->second.us;
    text += line(left(name, 24), row(found->second, rates));
  };
  for (const Kind& kind : kKinds) add(kind.name);
  add(kExposed);
  if (kinds_.contains(kExposed)) text += line(left("communication, hidden", 24), row({}, rates));
  text += line(left("rest", 24), row(rest, rates));
  if (kinds_.contains(kExposed))
    text += "A step that is profiled runs its lanes one after the other: nothing hides communication.\n";
  if (rates.flops > 0 && rates.bytes > 0)
    text += concat("The machine's: ", fixed(rates.flops / 1e9, 1), " GF/s in products, ", fixed(rates.bytes / 1e9, 1),
                   " GB/s read and written in copies, of this rank while all ranks measured it.\n");
  std::vector<const Alike*> longest;
  for (const auto& [key, alike] : alike_) longest.push_back(&alike);
  std::ranges::stable_sort(longest, [](const Alike* a, const Alike* b) { return a->sum.us > b->sum.us; });
  if (longest.size() > kMostShown) longest.resize(kMostShown);
  text += line(heads(), "  what takes the longest, of its kind");
  for (const Alike* alike : longest) {
    std::vector<std::string> modules = alike->modules;
    const size_t more = modules.size() - std::min(modules.size(), kMostModules);
    modules.resize(modules.size() - more);
    const std::string of =
        modules.empty() ? "" : concat(" of ", join(modules, ", "), more > 0 ? concat(" and ", more, " more") : "");
    text += line(left(row(alike->sum, rates), 59), concat("  ", alike->name, of));
  }
  return text;
}

}  // namespace sfsdp::train
