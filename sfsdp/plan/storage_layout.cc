// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/storage_layout.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::plan {
namespace {

std::string print_buckets(const StorageLayout& layout) {
  std::string text;
  for (const BucketLayout& b : layout) {
    text += concat("bucket ", b.name, " whole=", b.whole, " shard=", b.shard);
    for (const auto& [name, value] : b.schedule) text += concat(' ', name, '=', value);
    text += '\n';
    for (size_t i = 0; i < b.members.size(); ++i)
      text += concat("  ", b.members[i], " offset=", b.offsets[i], " numel=", b.numels[i], '\n');
  }
  return text;
}

}  // namespace

ir::Attrs unit_attrs(const ir::Op& param) {
  ir::Attrs attrs;
  for (const char* name : {"reason", "keep", "forward_depth", "forward_before", "backward_depth", "backward_before",
                           "sink_depth", "sink_before"})
    if (const auto found = param.attrs.find(name); found != param.attrs.end()) attrs[name] = found->second;
  return attrs;
}

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

uint64_t hash(const StorageLayout& layout) { return hash_path(print_buckets(layout)); }

std::string print(const StorageLayout& layout) {
  const std::string buckets = print_buckets(layout);
  return concat("layout ", hex(hash_path(buckets)), ": ", layout.size(),
                layout.size() == 1 ? " bucket\n" : " buckets\n", buckets);
}

void write_unit_attrs(ir::Graph& graph, const StorageLayout& layout) {
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

}  // namespace sfsdp::plan
