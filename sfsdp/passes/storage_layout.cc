// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/storage_layout.h"

namespace sfsdp::passes {

StorageLayout storage_layout_of(const ir::Graph& graph) {
  using Names = std::vector<std::string>;
  using Integers = std::vector<int64_t>;
  StorageLayout layout;
  for (const auto& op : graph.ops())
    if (op->is("param") && op->has_attr("members"))
      layout.push_back({op->attr<std::string>("name"), op->attr<Names>("members"), op->attr<Integers>("offsets"),
                        op->attr<Integers>("numels"), op->attr<int64_t>("size"), op->result()->type().numel()});
  return layout;
}

}  // namespace sfsdp::passes
