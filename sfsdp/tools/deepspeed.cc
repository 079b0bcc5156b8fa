// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/deepspeed.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::tools {
namespace {

int64_t elements_of(const Request& request, const char* name, int64_t usual) {
  return number_of(concat("--", name), request.get(name, concat(usual)), 1, std::numeric_limits<int64_t>::max());
}

}  // namespace

DeepSpeed deepspeed_of(const Request& request, const train::JobConfig& config) {
  const auto& p = config.parallelism;
  if (p.zero_stage != 3)
    throw UserError(concat("--simulate.system deepspeed3 with parallelism.zero_stage = ", p.zero_stage,
                           "\n  expected 3; stages 1 and 2 are fsdp2 with --simulate.step_gathers update"));
  if (!p.fsdp_units.empty() || p.fsdp_wrap != "manual")
    throw UserError(
        "--simulate.system deepspeed3 with parallelism.fsdp_units or fsdp_wrap\n  expected neither: its buckets follow "
        "from"
        " --simulate.prefetch_bucket");
  DeepSpeed options;
  options.prefetch_bucket = elements_of(request, "simulate.prefetch_bucket", options.prefetch_bucket);
  options.reduce_bucket = elements_of(request, "simulate.reduce_bucket", options.reduce_bucket);
  options.max_live_parameters = elements_of(request, "simulate.max_live_parameters", options.max_live_parameters);
  return options;
}

std::string deepspeed_units(const ir::Graph& graph, const DeepSpeed& options) {
  const int64_t bucket = std::max<int64_t>(std::min(options.prefetch_bucket, options.max_live_parameters / 2), 1);
  std::vector<std::vector<std::string>> units;
  int64_t elements = bucket;  // of the last unit: the first parameter begins one
  const auto take = [&](const std::string& name, int64_t numel) {
    if (elements >= bucket) {
      units.emplace_back();
      elements = 0;
    }
    units.back().push_back(name);
    elements += numel;
  };
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto* names = op->find_attr<std::vector<std::string>>("members");
    const auto* numels = op->find_attr<std::vector<int64_t>>("numels");
    if (!names || !numels) {
      take(op->attr<std::string>("name"), op->result()->type().numel());
      continue;
    }
    for (size_t i = 0; i < names->size(); ++i) take((*names)[i], (*numels)[i]);
  }
  std::string text;
  for (const auto& unit : units)
    text += concat(text.empty() ? "" : ", ", unit.size() > 1 ? "[" : "", join(unit, ", "), unit.size() > 1 ? "]" : "");
  return text;
}

}  // namespace sfsdp::tools
