// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/shard/keep_whole.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/param_flow.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

bool is_gather(const Op& op) { return op.is("all_gather", "all_gather.start"); }

// The gathers of one param, in order.
struct Gathered {
  Op* param = nullptr;
  std::vector<Op*> gathers;
};

std::vector<Gathered> find_gathers(const Graph& graph) {
  std::vector<Gathered> found;
  std::unordered_map<const Op*, size_t> index;
  for (const auto& op : graph.ops()) {
    const Op* param = is_gather(*op) ? param_of(op->operands[0]) : nullptr;
    if (!param) continue;
    if (!op->is("all_gather") || op->operands.size() != 1 || !ir::is_repeated(op->section))
      throw UserError(concat("pass keep_whole: ", name_of(*op), " of parameter ", param->attr<std::string>("name"),
                             "\n  expected all_gather in forward or backward; run the pass before split_collectives"));
    const auto [place, fresh] = index.emplace(param, found.size());
    if (fresh) found.push_back({graph.find_param(param->attr<std::string>("name")), {}});
    found[place->second].gathers.push_back(op.get());
  }
  return found;
}

class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph), index_(graph), build_(graph) {
    for (const ir::Carry& carry : graph.carries) updated_[carry.current] = carry.next;
  }

  void rewrite(const Gathered& g) {
    const Op& like = *g.gathers[0];
    const std::string name = g.param->attr<std::string>("name");
    Value* whole = build_.before(g.param).value("state", {}, like.result()->type(), name + ".whole",
                                                {{"name", name + ".whole"}, {"whole_of", name}});
    for (Op* gather : g.gathers) {
      if (gather->result()->type() != like.result()->type())
        throw UserError(concat("pass keep_whole: parameter ", name, " is gathered as ", gather->result()->type(),
                               " and as ", like.result()->type(), "\n  expected one type; cast after the gather"));
      build_.replace(gather->result(), whole);
      build_.erase(gather);
      // The cast before it, with the last of its readers.
      Op* cast = gather->operands[0]->producer();
      if (cast->is("cast") && ++gone_[cast] == std::ssize(index_.readers(cast->result()))) build_.erase(cast);
    }
    if (const auto next = updated_.find(g.param->result()); next != updated_.end())
      gather_again(next->second, like, whole);
    for (const Op* gather : g.gathers) name_of_.emplace(gather, name);
  }

  void finish() {
    require_read_by_region();
    build_.apply("keep_whole");
  }

 private:
  // The update's gather writes into the buffer of the whole, so nothing else after the region may read it.
  void require_read_by_region() const {
    for (const auto& op : graph_.ops())
      for (const Value* operand : op->operands)
        if (operand && !ir::is_repeated(op->section))
          require_not_whole(operand, concat(op->opcode, " in section ", to_string(op->section), " reads"));
    for (const Value* output : graph_.outputs) require_not_whole(output, "the step returns");
    for (const ir::Carry& carry : graph_.carries) require_not_whole(carry.next, "the next step reads");
  }

  void require_not_whole(const Value* value, const std::string& what) const {
    if (const auto found = name_of_.find(ir::storage_of(value)->producer()); found != name_of_.end())
      throw UserError(concat("pass keep_whole: ", what, " parameter ", found->second,
                             " gathered\n  expected readers in forward and backward alone"));
  }

  // After the update: what forward's gather was, into the buffer that the step has read.
  void gather_again(Value* stored, const Op& like, Value* whole) {
    const Op& update = *stored->producer();
    if (update.section != Section::Opt)
      throw UserError(concat("pass keep_whole: %", stored->name(), " is carried on by ", update.opcode, " in section ",
                             to_string(update.section), "\n  expected an update in section opt"));
    const auto place = build_.after(stored->producer());
    const Op* cast = like.operands[0]->producer();
    if (cast->is("cast")) stored = place.value("cast", {stored}, cast->result()->type(), stored->name() + ".cast");
    ir::Attrs attrs = like.attrs;
    attrs["donates"] = std::vector<int64_t>{1};
    Value* gathered = place.value("all_gather", {stored, whole}, like.result()->type(), whole->name() + ".new", attrs);
    graph_.carries.push_back({whole, gathered});
  }

  Graph& graph_;
  ir::Index index_;
  ir::Builder build_;
  std::map<const Value*, Value*> updated_;              // by the carried value
  std::unordered_map<const Op*, std::string> name_of_;  // of the parameter that a replaced gather makes whole
  std::map<const Op*, std::ptrdiff_t> gone_;            // by the cast before a gather: readers that are gone
};

}  // namespace

bool keep_whole(Graph& graph, PassContext& ctx) {
  const std::vector<Gathered> gathered = find_gathers(graph);
  Rewriter rewriter(graph);
  for (const Gathered& g : gathered) {
    rewriter.rewrite(g);
    ctx.metrics.add("params", 1);
    ctx.metrics.add("bytes", g.gathers[0]->result()->type().bytes());
    ctx.metrics.add("gathers_removed", std::ssize(g.gathers));
  }
  rewriter.finish();
  for (const auto& op : graph.ops())
    SFSDP_CHECK(!is_gather(*op) || !param_of(op->operands[0]), "%", op->result()->name(), " gathers a param in ",
                ir::to_string(op->section));
  return !gathered.empty();
}

}  // namespace sfsdp::passes
