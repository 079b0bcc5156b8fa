// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/storage_layout.h"

#include "sfsdp/passes/schedule_attrs.h"

namespace sfsdp::passes {

StorageLayout storage_layout_of(const ir::Graph& graph) {
  using Names = std::vector<std::string>;
  using Integers = std::vector<int64_t>;
  StorageLayout layout;
  for (const auto& op : graph.ops())
    if (op->is("param") && op->has_attr("members"))
      layout.push_back({op->attr<std::string>("name"), op->attr<Names>("members"), op->attr<Integers>("offsets"),
                        op->attr<Integers>("numels"), op->attr<int64_t>("size"), op->result()->type().numel(),
                        unit_attrs(*op)});
  return layout;
}

void write_schedules(ir::Graph& graph, const StorageLayout& layout) {
  std::map<std::string, const BucketLayout*> bucket_of;
  for (const BucketLayout& bucket : layout)
    for (const std::string& member : bucket.members) bucket_of[member] = &bucket;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto found = bucket_of.find(op->attr<std::string>("name"));
    if (found == bucket_of.end()) continue;
    for (const auto& [name, value] : found->second->schedule) op->attrs[name] = value;
  }
}

}  // namespace sfsdp::passes
