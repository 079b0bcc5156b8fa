// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/bucket_layout.h"

#include "sfsdp/base/check.h"

namespace sfsdp::plan {

ir::Attrs unit_attrs(const ir::Op& param) {
  ir::Attrs attrs;
  for (const char* name : {"reason", "keep", "forward_depth", "forward_before", "backward_depth", "backward_before",
                           "sink_depth", "sink_before"})
    if (const auto found = param.attrs.find(name); found != param.attrs.end()) attrs[name] = found->second;
  return attrs;
}

BucketLayouts bucket_layouts_of(const ir::Graph& graph) {
  using Names = std::vector<std::string>;
  using Integers = std::vector<int64_t>;
  BucketLayouts buckets;
  for (const auto& op : graph.ops())
    if (op->is("param") && op->has_attr("members"))
      buckets.push_back({op->attr<std::string>("name"), op->attr<Names>("members"), op->attr<Integers>("offsets"),
                         op->attr<Integers>("numels"), op->attr<int64_t>("size"), op->result()->type().numel(),
                         unit_attrs(*op)});
  return buckets;
}

std::string print(const BucketLayouts& buckets) {
  std::string text;
  for (const BucketLayout& b : buckets) {
    text += concat("bucket ", b.name, " whole=", b.whole, " shard=", b.shard);
    for (const auto& [name, value] : b.schedule) text += concat(' ', name, '=', value);
    text += '\n';
    for (size_t i = 0; i < b.members.size(); ++i)
      text += concat("  ", b.members[i], " offset=", b.offsets[i], " numel=", b.numels[i], '\n');
  }
  return text;
}

void write_unit_attrs(ir::Graph& graph, const BucketLayouts& buckets) {
  std::map<std::string, const BucketLayout*> bucket_of;
  for (const BucketLayout& bucket : buckets)
    for (const std::string& member : bucket.members) bucket_of[member] = &bucket;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto found = bucket_of.find(op->attr<std::string>("name"));
    if (found == bucket_of.end()) continue;
    for (const auto& [name, value] : found->second->schedule) op->attrs[name] = value;
  }
}

}  // namespace sfsdp::plan
