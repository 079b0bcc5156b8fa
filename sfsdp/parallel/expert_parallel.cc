// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_parallel.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

std::map<std::string, int64_t> find_experts(const ir::Graph& graph, const ExpertParallelOptions& options,
                                            int64_t ranks) {
  std::map<std::string, int64_t> cuts;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto& path = op->attr<std::string>("name");
    if (std::ranges::none_of(options.experts, [&](const std::string& pattern) { return names(pattern, path); }))
      continue;
    const int64_t experts = op->result()->type().dims.empty() ? 1 : op->result()->type().dims[0].size;
    if (experts % ranks != 0) {
      int64_t nearest = ranks;
      while (experts % nearest != 0) --nearest;
      throw UserError(concat("expert_parallel: ", path, " has ", experts, " experts, over ep = ", ranks,
                             "\n  expected a divisor of them: the nearest below is ep = ", nearest));
    }
    cuts.emplace(path, 0);
  }
  if (cuts.empty())
    throw UserError(concat("expert_parallel: no parameter is named by ExpertParallelOptions::experts = [",
                           join(options.experts, ", "), "], over ep = ", ranks,
                           "\n  expected the path of a mixture's experts, such as *.experts, or ep = 1"));
  return cuts;
}

}  // namespace sfsdp::parallel
