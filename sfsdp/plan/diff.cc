// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/diff.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/line_diff.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/plan/plan_text.h"
#include "sfsdp/plan/views.h"

namespace sfsdp::plan {
namespace {

using ir::Op;

// What stands under a name; printed as "name: text".
using Facts = std::map<std::string, std::string>;

std::string name_of_op(const Op& op) {
  return op.results().empty() ? op.opcode.str() : concat('%', op.result()->name());
}

std::string names_of(const std::vector<const Op*>& ops) {
  std::vector<std::string> names;
  for (const Op* op : ops) names.push_back(name_of_op(*op));
  return join(names, " ");
}

// A plan by the names of its values: numbers of kernels and positions shift with every op that comes or goes.
class Named {
 public:
  explicit Named(const StepPlan& plan) : plan_(plan), kernels_(cost::kernels_of(plan.graph)) {}

  Facts target() const {
    Facts facts = {{"target", plan_.target.name}};
    for (const TargetKey& key : kTargetKeys)
      facts[concat("target ", key.name.substr(0, key.name.size() - 1))] = concat(key.get(plan_.target));
    return facts;
  }

  // The lines of the graph's text that are no ops: mesh, results, carries.
  Facts frame() const {
    Facts facts;
    for (const std::string& line : split(ir::print(plan_.graph), '\n')) {
      const std::string text(trim(line));
      if (text.starts_with("graph ")) facts["graph"] = text.substr(6);
      if (text.starts_with("return ")) facts["the step"] = text;
      if (text.starts_with("carry ")) facts[text.substr(0, text.find(" ="))] = text;
    }
    return facts;
  }

  // Without kernel=, which kernels() has.
  Facts ops() const {
    Facts facts;
    for (const auto& op : plan_.graph.ops()) {
      std::string line = ir::print(*op);
      if (const size_t at = line.find(" kernel="); at != std::string::npos)
        line.erase(at, line.find_first_of(" :", at + 1) - at);
      facts[concat("op ", name_of_op(*op))] = concat('[', ir::to_string(op->section), "] ", line);
    }
    return facts;
  }
  std::vector<std::string> order() const {
    std::vector<std::string> names;
    for (const auto& op : plan_.graph.ops()) names.push_back(name_of_op(*op));
    return names;
  }

  Facts kernels() const {
    Facts facts;
    for (const auto& ops : kernels_.ops) facts[concat("kernel ", names_of(ops))] = "";
    return facts;
  }

  Facts lanes() const {
    Facts facts = {{"lane compute", concat("workspace ", plan_.memory.workspaces.at(0))}};
    for (size_t i = 0; i < plan_.lanes.size(); ++i)
      facts[concat("lane ", name_of(plan_.lanes[i]))] =
          concat("workspace ", plan_.memory.workspaces.at(i + 1), ": ", names_of(plan_.lanes[i].collectives));
    return facts;
  }

  Facts edges() const {
    Facts facts;
    for (const Edge& e : plan_.edges) facts[concat("edge ", task(e.from), " -> ", task(e.to))] = "";
    for (const Task& t : plan_.load.after) facts[concat("batch after ", task(t))] = "";
    for (const Task& t : plan_.load.before) facts[concat("batch before ", task(t))] = "";
    return facts;
  }

  Facts regions() const {
    Facts facts;
    for (size_t r = 0; r < kRegions; ++r)
      facts[concat("region ", to_string(static_cast<Region>(r)))] = concat(plan_.memory.region_bytes[r], " bytes");
    facts["storage layout"] = plan_.layout ? concat(hex(plan_.layout->hash), '/', plan_.layout->entries) : "none";
    facts["most alive at once"] = concat(plan_.memory.live_bytes, " bytes, at ", at(plan_.memory.peak_position));
    return facts;
  }

  Facts buffers() const {
    Facts facts;
    const MemoryPlan& m = plan_.memory;
    for (const auto* buffers : {&m.constants, &m.state, &m.buffers})
      for (const Buffer& b : *buffers)
        facts[concat("place of %", b.value->name())] =
            concat(to_string(b.region), " offset=", b.offset, " bytes=", b.bytes, " from ", at(b.first), " to ",
                   at(b.last), b.carried ? " carried" : "");
    for (size_t i = 0; i < m.constants.size(); ++i)
      if (!m.constants[i].value->producer()->is("scalar")) {
        const auto bits = bits_of_constant(plan_, i);
        facts[concat("bits of %", m.constants[i].value->name())] = bits ? hex(*bits) : std::string(kNoBits);
      }
    for (const UnreadState& u : m.unread)
      facts[concat("place of ", u.name, ", which is not read")] =
          concat(to_string(u.region), " offset=", u.offset, " bytes=", u.bytes);
    for (const Inside& i : m.inside)
      facts[concat("place of %", i.value->name())] = concat("inside %", i.host->name(), " at +", i.offset);
    for (const View& v : m.views) facts[concat("view %", v.value->name())] = text_of(v);
    return facts;
  }

 private:
  std::string at(int64_t position) const {
    const auto& ops = plan_.graph.ops();
    return position >= 0 && position < std::ssize(ops) ? name_of_op(*ops[static_cast<size_t>(position)]) : "the end";
  }
  std::string task(const Task& t) const {
    if (t.lane == 0)
      return t.number < kernels_.ops.size() ? concat("kernel of ", name_of_op(*kernels_.ops[t.number][0]))
                                            : "no kernel";
    const CommLane& lane = plan_.lanes.at(t.lane - 1);
    return t.number < lane.collectives.size() ? name_of_op(*lane.collectives[t.number]) : "no collective";
  }

  const StepPlan& plan_;
  const cost::Kernels kernels_;
};

// The first lines of a kind, and how many more there are.
class Lines {
 public:
  explicit Lines(size_t most) : most_(most) {}

  void add(std::string line) { part_.push_back(std::move(line)); }
  void end(std::string_view kind) {
    const size_t left = part_.size() > most_ ? part_.size() - most_ : 0;
    part_.resize(part_.size() - left);
    lines_.insert(lines_.end(), part_.begin(), part_.end());
    if (left > 0) lines_.push_back(concat("... and ", left, " more ", kind));
    part_.clear();
  }
  std::vector<std::string> take() { return std::move(lines_); }
  bool empty() const { return lines_.empty(); }

 private:
  const size_t most_;
  std::vector<std::string> part_, lines_;
};

void compare(const Facts& a, const Facts& b, std::string_view kind, Lines& lines) {
  const auto alone = [&](const char* where, const auto& fact) {
    lines.add(concat(fact.first, " is in ", where, " alone", fact.second.empty() ? "" : ": ", fact.second));
  };
  for (const auto& fact : a)
    if (const auto found = b.find(fact.first); found == b.end())
      alone("A", fact);
    else if (found->second != fact.second)
      lines.add(concat(fact.first, " is in A ", fact.second, "\n    in B ", found->second));
  for (const auto& fact : b)
    if (!a.contains(fact.first)) alone("B", fact);
  lines.end(kind);
}

// Adds the ops that both have, and that stand elsewhere among the others.
void compare_order(const std::vector<std::string>& a, const std::vector<std::string>& b, Lines& lines) {
  const auto shared = [](const std::vector<std::string>& of, const std::vector<std::string>& with) {
    const std::set<std::string_view> names(with.begin(), with.end());
    std::vector<std::string_view> both;
    std::ranges::copy_if(of, std::back_inserter(both), [&](const std::string& name) { return names.contains(name); });
    return both;
  };
  const std::vector<std::string_view> of_a = shared(a, b), of_b = shared(b, a);
  const auto before = [](const std::vector<std::string_view>& order, std::string_view name) {
    const auto at = std::ranges::find(order, name);
    return at == order.begin() ? concat("first") : concat("after ", *std::prev(at));
  };
  std::set<size_t> stay;
  for (const auto& [i, j] : common_lines(of_a, of_b)) stay.insert(i);
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!stay.contains(i))
      lines.add(concat("order: ", of_a[i], " runs in A ", before(of_a, of_a[i]), ", in B ", before(of_b, of_a[i])));
  lines.end("ops in another order");
}

// Names do not say it: another numbering, or the order within a section.
std::string first_line_that_differs(const std::string& a, const std::string& b) {
  const std::vector<std::string> of_a = split(a, '\n'), of_b = split(b, '\n');
  size_t i = 0;
  while (i < std::min(of_a.size(), of_b.size()) - 1 && of_a[i] == of_b[i]) ++i;
  return concat("line ", i + 1, " is in A ", of_a[i], "\n    in B ", of_b[i]);
}

}  // namespace

std::vector<std::string> differences(const StepPlan& a, const StepPlan& b, size_t most) {
  const std::string text_a = print(a), text_b = print(b);
  if (text_a == text_b) return {};
  const Named of_a(a), of_b(b);
  Lines lines(most);
  compare(of_a.target(), of_b.target(), "of the target", lines);
  compare(of_a.frame(), of_b.frame(), "results and carries", lines);
  compare(of_a.ops(), of_b.ops(), "ops", lines);
  compare_order(of_a.order(), of_b.order(), lines);
  compare(of_a.kernels(), of_b.kernels(), "kernels", lines);
  compare(of_a.lanes(), of_b.lanes(), "lanes", lines);
  compare(of_a.edges(), of_b.edges(), "edges", lines);
  compare(of_a.regions(), of_b.regions(), "regions", lines);
  compare(of_a.buffers(), of_b.buffers(), "places and views", lines);
  if (lines.empty()) {
    lines.add(first_line_that_differs(text_a, text_b));
    lines.end("lines");
  }
  return lines.take();
}

}  // namespace sfsdp::plan
