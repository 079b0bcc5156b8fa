// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_parallel.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/parallel/nearest_degree.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {
namespace {

// By name, how many experts each parameter holds that is of some.
std::map<std::string, int64_t> expert_parameters(const ir::Graph& graph, const ExpertParallelOptions& options) {
  std::map<std::string, int64_t> experts;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto& path = op->attr<std::string>("name");
    if (std::ranges::any_of(options.experts, [&](const std::string& pattern) { return names(pattern, path); }))
      experts.emplace(path, op->result()->type().dims.empty() ? 1 : op->result()->type().dims[0].size);
  }
  return experts;
}

}  // namespace

int64_t count_experts(const ir::Graph& graph, const ExpertParallelOptions& options) {
  int64_t least = 0;
  for (const auto& [path, experts] : expert_parameters(graph, options))
    least = least == 0 ? experts : std::min(least, experts);
  return least;
}

std::map<std::string, int64_t> find_experts(const ir::Graph& graph, const ExpertParallelOptions& options,
                                            int64_t ranks) {
  std::map<std::string, int64_t> cuts;
  const std::map<std::string, int64_t> parameters = expert_parameters(graph, options);
  const auto divides_all = [&](int64_t degree) {
    return std::ranges::all_of(parameters, [&](const auto& one) { return one.second % degree == 0; });
  };
  for (const auto& [path, experts] : parameters) {
    if (experts % ranks != 0)
      throw UserError(concat("expert_parallel: ", path, " has ", experts, " experts, over ep = ", ranks,
                             "\n  expected a divisor of them, and of the ranks: the nearest below is ep = ",
                             nearest_degree(graph.mesh, ranks, divides_all)));
    cuts.emplace(path, 0);
  }
  if (cuts.empty())
    throw UserError(concat("expert_parallel: no parameter is named by ExpertParallelOptions::experts = [",
                           join(options.experts, ", "), "], over ep = ", ranks,
                           "\n  expected the path of a mixture's experts, such as *.experts, or ep = 1"));
  return cuts;
}

}  // namespace sfsdp::parallel
