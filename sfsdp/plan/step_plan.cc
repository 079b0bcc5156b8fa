// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/step_plan.h"

#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/plan/plan_text.h"
#include "sfsdp/plan/views.h"

namespace sfsdp::plan {

StepPlan make_plan(ir::Graph graph, const MemoryOptions& options) {
  SFSDP_CHECK(!options.blocking, "the reference executor allocates value by value");
  StepPlan plan;
  plan.graph = std::move(graph);
  ir::order_by_part(plan.graph);
  plan.lanes = communicators(plan.graph);
  plan.edges = make_edges(plan.graph, plan.lanes);
  plan.load = host_load(plan.graph, plan.lanes);
  plan.memory = plan_memory(plan.graph, options);
  plan.target = options.target;
  return plan;
}

StepPlan make_plan(ir::Graph graph, MemoryOptions options, StorageLayout& layout, const GlobalShapes& shapes) {
  options.layout = &layout;
  StepPlan plan = make_plan(std::move(graph), options);
  append_state(layout, plan.graph, plan.memory, shapes);
  plan.layout = {hash(layout), std::ssize(layout.entries)};
  return plan;
}

std::string print(const StepPlan& plan) {
  const MemoryPlan& m = plan.memory;
  std::string text = concat("plan target=", plan.target.name);
  for (const TargetKey& key : kTargetKeys) text += concat(' ', key.name, key.get(plan.target));
  text += concat(" live_bytes=", m.live_bytes, " peak_position=", m.peak_position,
                 " layout=", plan.layout ? concat(hex(plan.layout->hash), '/', plan.layout->entries) : "none", "\n",
                 ir::print(plan.graph), kLanes, "\n");
  std::vector<std::string> names = {"compute"};
  text += concat("  compute workspace=", m.workspaces[0], ":\n");
  for (size_t i = 0; i < plan.lanes.size(); ++i) {
    names.push_back(name_of(plan.lanes[i]));
    text += concat("  ", names.back(), " workspace=", m.workspaces[i + 1], ":");
    for (const ir::Op* op : plan.lanes[i].collectives) text += concat(" %", op->result()->name());
    text += "\n";
  }
  text += concat(kEdges, "\n");
  const auto task = [&](const Task& t) { return concat(names.at(t.lane), '.', t.number); };
  for (const Edge& e : plan.edges) text += concat("  ", task(e.from), " -> ", task(e.to), "\n");
  text += concat(kRegionsTitle, "\n");
  for (size_t r = 0; r < kRegions; ++r)
    text += concat("  ", to_string(static_cast<Region>(r)), " bytes=", m.region_bytes[r], "\n");
  const auto line = [&](const Buffer& b, const std::string& more = "") {
    text += concat("  %", b.value->name(), ' ', to_string(b.region), " offset=", b.offset, " bytes=", b.bytes,
                   " first=", b.first, " last=", b.last, b.carried ? " carried" : "", more, "\n");
  };
  text += concat(kHost, "\n");
  for (const HostValue& h : kHostValues)
    text += concat("  ", h.name, ' ', to_string(h.dtype), ' ', to_string(Region::Io), " offset=", h.offset, "\n");
  for (const auto& [word, tasks] : {std::pair(kLoadAfter, &plan.load.after), {kLoadBefore, &plan.load.before}}) {
    text += concat("  ", word);
    for (const Task& t : *tasks) text += concat(' ', task(t));
    text += "\n";
  }
  text += concat(kConstants, "\n");
  for (size_t i = 0; i < m.constants.size(); ++i) {
    const auto bits = bits_of_constant(plan, i);
    const bool is_scalar = m.constants[i].value->producer()->is("scalar");
    line(m.constants[i], is_scalar ? "" : concat(' ', kBits, bits ? hex(*bits) : std::string(kNoBits)));
  }
  text += concat(kState, "\n");
  for (const Buffer& b : m.state) line(b);
  text += concat(kUnread, "\n");
  for (const UnreadState& u : m.unread)
    text += concat("  ", u.name, ' ', to_string(u.region), " offset=", u.offset, " bytes=", u.bytes, "\n");
  text += concat(kBuffers, "\n");
  for (const Buffer& b : m.buffers) line(b);
  text += concat(kInside, "\n");
  for (const Inside& i : m.inside)
    text += concat("  %", i.value->name(), " inside %", i.host->name(), " at +", i.offset, "\n");
  text += concat(kViews, "\n");
  for (const View& v : m.views) text += concat("  ", text_of(v), "\n");
  return text;
}

std::optional<uint64_t> bits_of_constant(const StepPlan& plan, size_t entry) {
  return entry < plan.constant_bits.size() ? plan.constant_bits[entry] : std::nullopt;
}

uint64_t hash(const StepPlan& plan) { return hash_path(print(plan)); }

}  // namespace sfsdp::plan
