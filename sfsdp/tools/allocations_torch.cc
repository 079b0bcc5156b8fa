// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/allocations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/null/null_world.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/step/step.h"
#include "sfsdp/tools/calibrate_plan.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

struct Asked {
  int64_t kernels = 0, count = 0, bytes = 0, largest = 0;  // largest: bytes of one kernel
};

// By op: the name of its kernel, "linear+add"; collectives are kernels too.
std::map<const ir::Op*, std::string> names_of_kernels(const ir::Graph& graph) {
  std::map<const ir::Op*, std::string> names;
  const cost::Kernels kernels = cost::kernels_of(graph);
  for (const auto& ops : kernels.ops) {
    std::vector<std::string> opcodes;
    for (const ir::Op* op : ops)
      if (opcodes.empty() || opcodes.back() != op->opcode.str()) opcodes.push_back(op->opcode.str());
    const size_t shown = std::min<size_t>(opcodes.size(), 3);
    std::string name = join(std::vector(opcodes.begin(), opcodes.begin() + static_cast<std::ptrdiff_t>(shown)), "+");
    if (shown < opcodes.size()) name += "+...";
    for (const ir::Op* op : ops) names[op] = name;
  }
  for (const auto& op : graph.ops())
    if (ir::is_collective(*op)) names[op.get()] = op->opcode.str();
  return names;
}

}  // namespace

void print_allocations(const train::CompiledJob& job, int64_t world, std::ostream& out) {
  exec::count_memory();
  const auto alone = world > 1 ? comm::make_null_world(static_cast<int>(world)) : nullptr;
  Step step(job.program, alone.get());
  const std::vector<Batch> batches = ordinary_batches(job);
  const auto executor = step.executor(batches[0]);
  const auto names = names_of_kernels(executor->graph());
  step(batches);
  std::map<std::string, Asked> asked;
  exec::Allocations last;
  executor->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>&) {
    const exec::Allocations now = exec::all_allocations();
    if (const auto found = names.find(&op); found != names.end() && now.count > last.count) {
      Asked& of = asked[found->second];
      ++of.kernels;
      of.count += now.count - last.count;
      of.bytes += now.bytes - last.bytes;
      of.largest = std::max(of.largest, now.bytes - last.bytes);
    }
    last = exec::all_allocations();
  };
  last = exec::all_allocations();
  step(batches);
  executor->on_op = nullptr;
  std::vector<std::pair<std::string, Asked>> rows(asked.begin(), asked.end());
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  Asked all;
  for (const auto& [name, of] : rows) {
    all.kernels += of.kernels;
    all.count += of.count;
    all.bytes += of.bytes;
  }
  out << "Beside the plan, " << with_commas(all.kernels) << " kernels ask for memory " << with_commas(all.count)
      << " times a step: " << train::bytes_text(all.bytes) << " in all\n";
  for (const auto& [name, of] : rows)
    out << "  " << name << ": " << with_commas(of.kernels) << (of.kernels == 1 ? " kernel, " : " kernels, ")
        << with_commas(of.count) << (of.count == 1 ? " time, " : " times, ") << train::bytes_text(of.bytes)
        << ", at most " << train::bytes_text(of.largest) << " in one\n";
}

}  // namespace sfsdp::tools
