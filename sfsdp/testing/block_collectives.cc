// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/block_collectives.h"

#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::testing {

int64_t bytes_sent(const ir::Graph& graph, const ir::Op& op) {
  const auto axes = ir::axes_of(op);
  SFSDP_CHECK(axes, ir::name_of(op), " names no axis");
  const int64_t ranks = ir::axis_size(graph, *axes).value(), bytes = ir::collective_bytes(op);
  const std::string_view kind = ir::collective_kind(op);
  if (kind == "permute") return bytes;
  const int64_t passed = bytes * (ranks - 1) * (kind == "all_reduce" ? 2 : 1);
  return (passed + ranks - 1) / ranks;
}

SentByBlock sent_by_block(const ir::Graph& graph) {
  using Key = std::tuple<bool, std::string, std::string, int64_t>;
  std::map<std::string, std::map<Key, int64_t>> times;
  for (const auto& op : graph.ops()) {
    if (!ir::is_collective(*op) || !ir::is_repeated(op->section)) continue;
    const Key key = {op->section == ir::Section::Bwd, std::string(ir::collective_kind(*op)),
                     join(ir::axes_of(*op).value(), ", "), bytes_sent(graph, *op)};
    ++times[std::string(ir::block_of(op->module_path))][key];
  }
  SentByBlock blocks;
  for (const auto& [block, counts] : times)
    for (const auto& [key, count] : counts) {
      const auto& [backward, kind, axes, bytes] = key;
      blocks[block].push_back({backward, kind, axes, bytes, count});
    }
  return blocks;
}

std::string to_string(const std::vector<Sent>& sent) {
  std::map<std::string, int64_t> times;  // by all that follows the number
  for (const Sent& s : sent)
    times[concat(s.backward ? "bwd " : "fwd ", s.kind, " over ", s.axes, ", ", s.bytes, " bytes each")] += s.times;
  std::string text;
  for (const auto& [line, count] : times)
    if (count > 0) text += concat(count, ' ', line, '\n');
  return text;
}

std::map<std::string, std::string> collectives_by_block(const ir::Graph& graph, std::string_view axis) {
  std::map<std::string, std::string> texts;
  for (const auto& [block, sent] : sent_by_block(graph)) {
    std::map<std::string, int64_t> counts;
    for (const Sent& s : sent)
      if (s.axes == axis) counts[concat(s.backward ? "bwd " : "fwd ", s.kind)] += s.times;
    std::vector<std::string> parts;
    for (const auto& [kind, count] : counts) parts.push_back(concat(count, ' ', kind));
    if (!parts.empty()) texts[block] = join(parts, ", ");
  }
  return texts;
}

}  // namespace sfsdp::testing
