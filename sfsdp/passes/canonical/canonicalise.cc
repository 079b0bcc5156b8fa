// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/canonicalise.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/passes/canonical/casts_of_loss.h"
#include "sfsdp/passes/canonical/finder.h"
#include "sfsdp/passes/canonical/proposals.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Term, ir::Value;

constexpr std::array<Propose, 8> kFamilies = {&propose_attention, &propose_cross_entropy, &propose_dropout,
                                              &propose_linear,    &propose_rms_norm,      &propose_rms_norm_backward,
                                              &propose_rope,      &propose_rope_inverse};
// One op each, so none is dropped for what others read: tried on what the families leave.
constexpr std::array<Propose, 1> kSingle = {&propose_renamed};

struct Match {
  Proposal proposal;
  std::vector<Op*> found;     // all that it computes
  std::vector<Term> results;  // base nullptr: a token
  // What is left for backward (ir::LeftForBackward) is no result: others may not read it.
  bool is_result(const Op* op) const {
    const auto* left = ir::left_for_backward(proposal.opcode);
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].base && results[i].base->producer() == op && !(left && left->result == static_cast<int>(i)))
        return true;
    return false;
  }
  // The value that backward finds, and the one that this op of backward reads.
  const Value* left() const {
    const auto* left = ir::left_for_backward(proposal.opcode);
    return left ? results[static_cast<size_t>(left->result)].base : nullptr;
  }
  const Value* reads_left() const {
    const auto operand = ir::operand_left_by_forward(proposal.opcode);
    return operand ? proposal.operands[*operand] : nullptr;
  }
};

ir::CanonicalCall call_of(const Match& match) {
  ir::CanonicalCall call{match.proposal.opcode, match.proposal.attrs, {}};
  for (Value* operand : match.proposal.operands) call.operands.push_back(operand ? ir::term_of(operand) : Term());
  return call;
}

// How a model axis has placed the value that the type is made after: a step that is cut already may hold what only now matches.
// Rows may be counted by other dimensions: as many ranges of elements are cut, of the innermost dimension that has them.
ir::Type placed_as(const ir::Type& made, ir::Type type) {
  const auto before = [](const ir::Type& of, size_t dim) {
    int64_t elements = 1;
    for (size_t d = 0; d < dim; ++d) elements *= of.dims[d].size;
    return elements;
  };
  const auto set = [&](const std::string& axis, int64_t ranges) {
    for (size_t t = 0; t < type.dims.size(); ++t) {
      const int64_t outer = before(type, t), blocks = outer == 0 ? 0 : ranges / outer;
      if (blocks == 0 || ranges % outer != 0 || type.dims[t].size % blocks != 0) continue;
      if (type.dims[t].size <= blocks && t + 1 < type.dims.size()) continue;
      type.dims[t].add_axis(axis, blocks);
      return;
    }
  };
  const bool same_shape = made.shape() == type.shape(), in_order = made.strides.empty() && type.strides.empty();
  for (size_t d = 0; d < made.dims.size() && (same_shape || in_order); ++d)
    for (size_t i = 0; i < made.dims[d].split.size(); ++i) {
      const std::string& axis = made.dims[d].split[i];
      const int64_t blocks = made.dims[d].blocks_of(i);
      if (!is_model_axis(axis)) continue;
      if (same_shape)
        type.dims[d].add_axis(axis, blocks);
      else
        set(axis, before(made, d) * blocks);
    }
  for (const ir::AxisPlacement& placement : made.placements)
    if (std::ranges::all_of(placement.axes, is_model_axis)) type.placements.push_back(placement);
  return type;
}

// The types of what the op that stands for a match results in; a gradient that was not asked for is a token.
std::vector<ir::Type> types_of(const Match& match) {
  const auto* left = ir::left_for_backward(match.proposal.opcode);
  std::vector<ir::Type> types;
  for (const Term& term : match.results) {
    ir::Type type;
    if (left && left->result == std::ssize(types))
      type = left->type(call_of(match));
    else if (term.base && term.base->type().kind == ir::Type::Kind::Tensor)
      type = placed_as(term.base->type(), term.type);
    else
      type.kind = ir::Type::Kind::Token;
    types.push_back(std::move(type));
  }
  return types;
}

//   section: of the op that the proposal began at
std::optional<Match> prove(const Proposal& proposal, ir::Section section, const OpFinder& finder) {
  ir::CanonicalCall call{proposal.opcode, proposal.attrs, {}};
  for (Value* operand : proposal.operands) call.operands.push_back(operand ? finder.term(operand) : Term());
  Lookup lookup(finder, section);
  try {
    Match match{proposal, {}, ir::decompose(call, lookup)};
    match.found = lookup.found();
    return match;
  } catch (const Lookup::NotFound&) {
    return std::nullopt;
  }
}

// Adds matches to those that there are.
void find_matches(const Graph& graph, const OpFinder& finder, std::span<const Propose> families,
                  std::vector<Match>& matches) {
  std::unordered_set<const Op*> results;  // an op is the result of one match
  for (const Match& match : matches)
    for (const Op* found : match.found)
      if (match.is_result(found)) results.insert(found);
  for (const auto& op : graph.ops()) {
    for (const Propose propose : families)
      for (const Proposal& proposal : propose(op.get(), finder)) {
        auto match = prove(proposal, op->section, finder);
        if (!match || std::ranges::any_of(match->found, [&](const Op* found) {
              return match->is_result(found) && results.contains(found);
            }))
          continue;
        for (const Op* found : match->found)
          if (match->is_result(found)) results.insert(found);
        matches.push_back(*std::move(match));
        break;
      }
  }
}

// Drops matches whose op would not be one: what was found may mix dtypes or broadcast as the op does not.
void keep_typed(const Graph& graph, std::vector<Match>& matches) {
  Graph scratch;
  scratch.mesh = graph.mesh;
  std::unordered_map<const Value*, Value*> left;  // what forward leaves for backward, in its own form
  for (const Match& match : matches)
    if (match.left()) {
      const auto at = static_cast<size_t>(ir::left_for_backward(match.proposal.opcode)->result);
      left[match.left()] = scratch.add("input", {}, {{"left", types_of(match)[at]}})->result();
    }
  std::erase_if(matches, [&](const Match& match) {
    std::vector<Value*> operands = match.proposal.operands;
    if (const auto found = left.find(match.reads_left()); match.reads_left() && found != left.end())
      *std::ranges::find(operands, match.reads_left()) = found->second;
    std::vector<Graph::NewResult> results;
    for (ir::Type& type : types_of(match)) results.push_back({"", std::move(type)});
    Op* op = scratch.add(match.proposal.opcode, std::move(operands), std::move(results));
    op->attrs = match.proposal.attrs;
    return !ir::check_rule_of(scratch, *op).empty();
  });
}

// Whether an op is part of a match.
ir::OpTable<char> covered_by(const Graph& graph, const std::vector<Match>& matches) {
  ir::OpTable<char> covered(graph);
  for (const Match& match : matches)
    for (const Op* op : match.found) covered[op] = 1;
  return covered;
}

// Readers of an op's results through views; nullptr: the step returns or carries one.
ir::OpTable<std::vector<const Op*>> readers_by_producer(const Graph& graph) {
  ir::OpTable<std::vector<const Op*>> readers(graph);
  for (const auto& op : graph.ops())
    if (ir::aliased_operand(*op) < 0 || op->is("gradient"))
      for (const Value* operand : op->operands)
        if (operand) readers[ir::storage_of(operand)->producer()].push_back(op.get());
  for (const Value* output : graph.outputs) readers[ir::storage_of(output)->producer()].push_back(nullptr);
  for (const ir::Carry& carry : graph.carries) readers[ir::storage_of(carry.next)->producer()].push_back(nullptr);
  return readers;
}

// Drops matches of which something inside is needed by others, so would be computed twice: a cast, or a number, may be.
void keep_closed(const Graph& graph, std::vector<Match>& matches) {
  const auto readers = readers_by_producer(graph);
  for (size_t before = 0; before != matches.size();) {
    before = matches.size();
    const auto covered = covered_by(graph, matches);
    const auto leaks = [&](const Match& match) {
      return std::ranges::any_of(match.found, [&](const Op* op) {
        if (match.is_result(op) || op->is("aten._to_copy", "aten.scalar_tensor")) return false;
        return std::ranges::any_of(readers[op], [&](const Op* reader) { return !reader || !covered[reader]; });
      });
    };
    std::erase_if(matches, leaks);
    std::unordered_set<const Value*> left;
    for (const Match& match : matches) left.insert(match.left());
    std::erase_if(matches,
                  [&](const Match& match) { return match.reads_left() && !left.contains(match.reads_left()); });
  }
}

class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph) {
    int64_t position = 0;
    for (const auto& op : graph.ops()) key_[op.get()] = position++;
  }

  void replace(const Match& match) {
    // At the last of its results; where another is read before that, order_by brings it forward.
    Op* last = nullptr;
    for (Op* op : match.found)
      if (match.is_result(op) && (!last || key_.at(op) > key_.at(last))) last = op;
    const auto* left = ir::left_for_backward(match.proposal.opcode);
    const std::vector<ir::Type> types = types_of(match);
    std::vector<Graph::NewResult> results;
    for (const Term& term : match.results) {
      const size_t at = results.size();
      const std::string name = term.base ? term.base->name() : concat(last->result()->name(), ".none");
      results.push_back({left && left->result == std::ssize(results) ? name + ".left" : name, types[at]});
    }
    Op* op = graph_.add(match.proposal.opcode, match.proposal.operands, std::move(results));
    op->attrs = match.proposal.attrs;
    op->section = last->section;
    const Op* first = std::ranges::find_if(match.results, [](const Term& t) { return t.base; })->base->producer();
    op->module_path = first->module_path;
    op->bwd_of = first->bwd_of;
    key_[op] = key_.at(last);
    for (size_t i = 0; i < match.results.size(); ++i)
      if (left && left->result == static_cast<int>(i))
        replaced_[match.results[i].base] = op->result(static_cast<int>(i));
      else
        replace_result(match.results[i].base, op, static_cast<int>(i), last);
    for (Op* found : match.found) {
      covered_.insert(found);
      if (match.is_result(found))
        instead_of_[found] = op;
      else if (is_backward(*found) == is_backward(*op))  // backward's match may have a cast of forward in it
        instead_of_.try_emplace(found, op);
    }
  }

  void apply() {
    for (const auto& op : graph_.ops()) {
      const auto found = instead_of_.find(op->bwd_of);
      if (found == instead_of_.end()) continue;
      op->bwd_of = found->second;
      if (ir::is_canonical(op->opcode)) op->module_path = found->second->module_path;
    }
    graph_.replace_uses(replaced_);
    ir::order_by(graph_, [&](const Op& op) { return key_.at(&op); });
    erase_dead();
    for (const auto& [value, name] : named_) graph_.rename(value, name);
  }

 private:
  static bool is_backward(const Op& op) { return op.section == ir::Section::Bwd; }

  // What read `old`, of the op that had the result, reads the new one, in the old one's shape.
  void replace_result(Value* old, Op* op, int index, Op* at) {
    if (!old) return;
    Value* value = op->result(index);
    named_.emplace_back(value, old->name());
    if (value->type() != old->type()) {
      const bool is_complex = old->type().dtype == ir::DType::c64;
      std::vector<int64_t> shape = old->type().shape();
      if (is_complex) shape.push_back(2);
      ir::Type type = is_complex ? ir::Type::tensor(ir::DType::f32, shape) : old->type();
      value = view_of(value, "aten.view", concat(old->name(), ".rows"), type, at);
      value->producer()->attrs["size"] = shape;
      if (is_complex) value = view_of(value, "aten.view_as_complex", concat(old->name(), ".pairs"), old->type(), at);
    }
    replaced_[old] = value;
  }

  Value* view_of(Value* value, const char* opcode, const std::string& name, const ir::Type& type, const Op* at) {
    Op* view = graph_.add(opcode, {value}, {{name, type}});
    view->section = value->producer()->section;
    view->module_path = value->producer()->module_path;
    key_[view] = key_.at(at);
    return view->result();
  }

  // What was found and is read by nobody now, and views of it.
  void erase_dead() {
    std::unordered_set<const Value*> read(graph_.outputs.begin(), graph_.outputs.end());
    for (const ir::Carry& carry : graph_.carries) read.insert(carry.next);
    std::vector<Op*> dead;
    for (size_t i = graph_.ops().size(); i-- > 0;) {
      Op* op = graph_.ops()[i].get();
      const bool is_view = ir::aliased_operand(*op) >= 0 && !ir::is_wait(*op) && !op->is("gradient");
      const bool may_go = covered_.contains(op) || is_view;
      const bool is_read = std::ranges::any_of(op->results(), [&](const auto& r) { return read.contains(r.get()); });
      if (may_go && !is_read)
        dead.push_back(op);
      else
        for (const Value* operand : op->operands) read.insert(operand);
    }
    graph_.erase(dead);
  }

  Graph& graph_;
  std::unordered_map<const Op*, int64_t> key_;
  std::map<Value*, Value*> replaced_;
  std::unordered_map<const Op*, Op*> instead_of_;
  std::unordered_set<const Op*> covered_;
  std::vector<std::pair<Value*, std::string>> named_;
};

// Ops that do more than pointwise arithmetic, and that no canonical op stands for: listed by `inspect --passes`.
void count_left(const Graph& graph, const std::vector<Match>& matches, Metrics& metrics) {
  const auto covered = covered_by(graph, matches);
  for (const auto& op : graph.ops()) {
    const ir::OpRow* row = op->opcode.row();
    if (!ir::is_aten(op->opcode) || covered[op.get()] || !row) continue;
    if (row->cost != ir::CostClass::Pointwise && row->cost != ir::CostClass::Free)
      metrics.add(concat("left_", op->opcode), 1);
  }
}

}  // namespace

const std::vector<Field<CanonicaliseOptions>>& CanonicaliseOptions::fields() {
  static const std::vector<Field<CanonicaliseOptions>> kFields = {
      field("document_tokens", &CanonicaliseOptions::document_tokens, {0, 1e15},
            "that costs take a document to have, where attention stays within one; 0: all of a sample")};
  return kFields;
}

bool canonicalise(Graph& graph, const CanonicaliseOptions& options, PassContext& ctx) {
  const bool swapped = cast_beside_loss(graph);
  const OpFinder finder(graph);
  std::vector<Match> matches;
  find_matches(graph, finder, kFamilies, matches);
  keep_typed(graph, matches);
  const size_t proved = matches.size();
  keep_closed(graph, matches);
  const size_t dropped = proved - matches.size();
  find_matches(graph, finder, kSingle, matches);
  keep_typed(graph, matches);
  ctx.metrics.add("left_for_other_readers", static_cast<int64_t>(dropped));
  count_left(graph, matches, ctx.metrics);
  if (matches.empty()) return swapped;
  Rewriter rewriter(graph);
  for (Match& match : matches) {
    ir::Emitter::Attributes& attrs = match.proposal.attrs;
    if (attrs.contains("documents") && options.document_tokens > 0) attrs["document_tokens"] = options.document_tokens;
    ctx.metrics.add(match.proposal.opcode, 1);
    rewriter.replace(match);
  }
  rewriter.apply();
  return true;
}

}  // namespace sfsdp::passes
