// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/bucket_table.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op, ir::Value;

class Finder {
 public:
  explicit Finder(const Graph& graph) : index_(graph) {
    for (const auto& op : graph.ops())
      if (op->is("param")) params_.emplace(op->attr<std::string>("name"), op.get());
  }

  // The parameter that a collective gathers, or whose gradient it reduces; nullptr: neither.
  const Op* param_of(const Op& collective) const {
    const Value* from = collective.operands[0];
    while (from->producer()->is("cast", "pack") || ir::aliased_operand(*from->producer()) >= 0)
      from = from->producer()->operands[0];
    if (from->producer()->is("param")) return from->producer();
    const Value* value = collective.result();
    std::optional<int64_t> offset;  // within the buffer that it was packed in
    while (const Op* next = reader_of(value, offset)) {
      if (next->is("gradient")) {
        const auto param = params_.find(next->attr<std::string>("param"));
        return param == params_.end() ? nullptr : param->second;
      }
      const bool goes_on =
          ir::is_collective(*next) || next->is("wait", "accumulate", "cast", "mul_scalar", "view", "pack");
      if (!goes_on) break;
      if (next->is("pack")) {
        const auto place = std::ranges::find(next->operands, value) - next->operands.begin();
        offset = next->attr<std::vector<int64_t>>("offsets")[static_cast<size_t>(place)];
      }
      value = next->result();
    }
    return nullptr;
  }

  // How many gradients of flat buckets it reduces, each a view of its result (pass pack_all_reduces).
  int64_t packed_gradients(const Op& collective) const {
    const Value* value = collective.result();
    if (const Op* wait = index_.only_reader(value); wait && ir::is_wait(*wait)) value = wait->result();
    return std::ranges::count_if(index_.readers(value), [](const Op* reader) { return reader->is("view"); });
  }

  // How many flat buckets a unit has.
  std::map<std::string, int64_t> buckets_of_units() const {
    std::map<std::string, int64_t> counts;
    for (const auto& [name, op] : params_)
      if (op->has_attr("members")) ++counts[op->attr<std::string>("unit")];
    return counts;
  }

 private:
  // The first; of a buffer that gradients were packed in, the view of what lies at `offset`.
  const Op* reader_of(const Value* value, std::optional<int64_t> offset) const {
    const auto readers = index_.readers(value);
    const auto is_part = [&](const Op* op) { return op->is("view") && op->attr_or<int64_t>("offset", -1) == offset; };
    if (const auto part = std::ranges::find_if(readers, is_part); offset && part != readers.end()) return *part;
    return readers.empty() ? nullptr : readers[0];
  }

  ir::Index index_;
  std::unordered_map<std::string, const Op*> params_;
};

// By start, over the kernels between it and its wait: into how many pieces do waits for gathers, which begin the compute
// of a unit each, cut them?
std::unordered_map<const Op*, int64_t> distances(const Graph& graph, const cost::KernelTable& kernels) {
  std::unordered_map<const Op*, int64_t> begun, distance;
  int64_t computed = 0;  // units that have computed something
  bool in_new_unit = true;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    if (ir::is_start(op)) {
      begun[&op] = computed;
    } else if (ir::is_wait(op)) {
      const Op* started = op.operands[0]->producer();
      if (const auto found = begun.find(started); found != begun.end()) distance[started] = computed - found->second;
      if (started->opcode.starts_with("all_gather")) in_new_unit = true;
    } else if (kernels.kernel_of[i] >= 0 && in_new_unit) {
      in_new_unit = false;
      ++computed;
    }
  }
  return distance;
}

// Whether what is sent was copied into one buffer (pass copy_buckets).
bool is_copied(const Op& collective, const Op& param) {
  return !param.has_attr("members") && collective.operands[0]->producer()->is("pack");
}

std::string reason_of(const Op& collective, const Op* param, const std::map<std::string, std::string>& rules,
                      const std::map<std::string, int64_t>& buckets) {
  const auto axes = ir::axes_of(collective);
  if (!param && axes && std::ranges::all_of(*axes, is_model_axis))
    return concat("no parameters: a value at ", collective.module_path, " that ", join(*axes, ", "), " cuts");
  if (!param) return "belongs to no unit: a scalar of the step, as loss, count or gradient norm";
  if (!param->has_attr("members") && !is_copied(collective, *param)) return "one parameter, no bucket";
  const std::string& unit = param->attr<std::string>("unit");
  const auto rule = rules.find(unit);
  std::string reason = param->attr_or("reason", rule == rules.end() ? "unit " + unit : rule->second);
  if (is_copied(collective, *param)) return reason + "; stored one by one, copied into one buffer";
  if (buckets.at(unit) > 1) reason += concat("; cut into ", buckets.at(unit), " by dtype, placement or update");
  return reason;
}

}  // namespace

std::vector<BucketRow> bucket_table(const Graph& graph, const Simulation& simulation,
                                    const std::map<std::string, std::string>& rules) {
  const Finder finder(graph);
  const auto buckets = finder.buckets_of_units();
  const auto distance_of = distances(graph, simulation.kernels);
  std::vector<BucketRow> rows;
  std::unordered_map<const Op*, size_t> row_of;
  const std::vector<ir::Loop> loops = ir::loops_of(graph);  // their bodies make no trip (sim/program.h)
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const auto& op = graph.ops()[i];
    if (!ir::is_collective(*op) || ir::loop_around(loops, i)) continue;
    const Op* param = finder.param_of(*op);
    const int64_t packed = param && param->has_attr("members") && ir::collective_kind(*op) == "all_reduce"
                               ? finder.packed_gradients(*op)
                               : 0;
    if (packed > 0) param = nullptr;
    BucketRow row;
    row.name = op->result()->name();
    row.communicator = join(ir::axes_of(*op).value_or(std::vector<std::string>{}), ",");
    row.kind = ir::collective_kind(*op);
    row.section = ir::to_string(op->section);
    row.runs = 0;
    if (param)
      row.unit = param->attr<std::string>(param->has_attr("members") || is_copied(*op, *param) ? "unit" : "name");
    row.reason = packed > 0 ? concat("gradients of ", packed, " buckets, small and of what all ranks have, at once")
                            : reason_of(*op, param, rules, buckets);
    if (const auto found = distance_of.find(op.get()); found != distance_of.end()) row.distance = found->second;
    row_of.emplace(op.get(), rows.size());
    rows.push_back(std::move(row));
  }
  for (const Event& e : simulation.events) {
    if (e.kind != Event::Collective && e.kind != Event::Wait) continue;
    BucketRow& row = rows[row_of.at(e.op)];
    if (e.kind == Event::Wait) {
      row.exposed += e.end - e.begin;
    } else {
      ++row.runs;
      row.bytes = e.bytes;
      row.seconds += e.end - e.begin;
    }
  }
  return rows;
}

}  // namespace sfsdp::sim
