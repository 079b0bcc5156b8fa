// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/shard/keep_whole.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/insertions.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

bool is_gather(const Op& op) { return op.is("all_gather") || op.is("all_gather.start"); }

// The gathers of one param, in order.
struct Gathered {
  Op* param = nullptr;
  std::vector<Op*> gathers;
};

std::vector<Gathered> find_gathers(const Graph& graph) {
  std::vector<Gathered> found;
  std::unordered_map<const Op*, size_t> index;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather") || op->operands.size() != 1) continue;
    const Op* param = param_of(op->operands[0]);
    if (!param) continue;
    const auto [place, fresh] = index.emplace(param, found.size());
    if (fresh) found.push_back({graph.find_param(param->attr<std::string>("name")), {}});
    found[place->second].gathers.push_back(op.get());
  }
  return found;
}

class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph), insertions_(graph), uses_(graph.uses()) {
    const Op* previous = nullptr;
    for (const auto& op : graph.ops()) {
      if (previous) next_[previous] = op.get();
      previous = op.get();
    }
    for (const ir::Carry& carry : graph.carries) updated_[carry.current] = carry.next;
  }

  void rewrite(const Gathered& g) {
    const Op& like = *g.gathers[0];
    const std::string name = g.param->attr<std::string>("name");
    Op* state = insertions_.add("state", {}, {{name + ".whole", like.result()->type()}}, g.param);
    state->section = Section::Init;
    state->module_path = g.param->module_path;
    state->attrs = {{"name", name + ".whole"}, {"whole_of", name}};
    for (Op* gather : g.gathers) {
      SFSDP_CHECK(gather->result()->type() == like.result()->type(), "param ", name, " is gathered as ",
                  gather->result()->type(), " and as ", like.result()->type());
      replaced_[gather->result()] = state->result();
      erased_.push_back(gather);
      // The cast before it, with the last of its readers.
      Op* cast = gather->operands[0]->producer();
      if (cast->is("cast") && ++gone_[cast] == std::ssize(uses_.at(cast->result()))) erased_.push_back(cast);
    }
    if (const auto next = updated_.find(g.param->result()); next != updated_.end())
      gather_again(next->second, like, state->result());
  }

  void finish() {
    insertions_.apply();
    graph_.replace_uses(replaced_);
    graph_.erase(erased_);
  }

 private:
  // Behind the update: what forward's gather was, into the buffer that the step has read.
  void gather_again(Value* stored, const Op& like, Value* whole) {
    const Op& update = *stored->producer();
    const auto place = next_.find(&update);
    const auto add = [&](const std::string& opcode, std::vector<Value*> operands, Type type, const std::string& hint) {
      Op* op = place == next_.end()
                   ? graph_.add(opcode, std::move(operands), {{hint, std::move(type)}})
                   : insertions_.add(opcode, std::move(operands), {{hint, std::move(type)}}, place->second);
      op->section = update.section;
      op->module_path = update.module_path;
      return op;
    };
    const Op* cast = like.operands[0]->producer();
    if (cast->is("cast")) stored = add("cast", {stored}, cast->result()->type(), stored->name() + ".cast")->result();
    Op* gather = add("all_gather", {stored, whole}, like.result()->type(), whole->name() + ".new");
    gather->attrs = like.attrs;
    gather->attrs["donates"] = std::vector<int64_t>{1};
    graph_.carries.push_back({whole, gather->result()});
  }

  Graph& graph_;
  ir::Insertions insertions_;
  ir::Graph::Uses uses_;
  std::unordered_map<const Op*, Op*> next_;
  std::map<const Value*, Value*> updated_;    // by the carried value
  std::map<const Op*, std::ptrdiff_t> gone_;  // by the cast before a gather: readers that are gone
  std::map<Value*, Value*> replaced_;
  std::vector<Op*> erased_;
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
