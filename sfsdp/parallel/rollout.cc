// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/rollout.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/made_again.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"
#include "sfsdp/parallel/vocabulary_cuts.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement, ir::Value;

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr size_t kFar = 48;  // ops that a trial goes on for: what leads further apart is no choice of one op
constexpr int kAlike = 6;    // ops around that like ops have alike

bool is_product(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Product;
}

uint64_t mix(uint64_t hash, uint64_t more) { return (hash ^ more) * 0x9e3779b97f4a7c15U + (hash >> 29U); }
uint64_t number_of(const Placement& p) {
  return mix(mix(static_cast<uint64_t>(p.kind), static_cast<uint64_t>(p.dim)), static_cast<uint64_t>(p.blocks));
}

}  // namespace

Rollout::Rollout(const ir::Graph& graph, const std::map<std::string, int64_t>& cuts,
                 const TensorParallelOptions& options, int64_t ranks, std::unordered_map<const Value*, Placement> held)
    : graph_(graph),
      bound_(graph.id_bound()),
      index_(graph),
      cuts_(cuts),
      options_(options),
      ranks_(ranks),
      held_(std::move(held)),
      cuts_of_ops_(graph, ranks, options.sequence_parallel),
      operands_(graph),
      lies_(graph),
      lowered_(graph),
      gradients_(graph),
      colour_(graph),
      planned_(graph) {
  for (const auto& op : graph.ops()) {
    operands_[op.get()] = op->operands;
    if (op->is("gradient")) {
      const auto cut = cuts.find(op->attr<std::string>("param"));
      const Op& maker = *op->operands[0]->producer();
      if (cut != cuts.end() && is_product(maker) && op->operands[0] == maker.result())
        gradients_[&maker] = Placement::shard(cut->second);
    }
    if (!op->is("param")) continue;
    const auto cut = cuts.find(op->attr<std::string>("name"));
    if (cut != cuts.end()) lies_[op->result()].base = Placement::shard(cut->second);
  }
  colour();
}

// ---- how values lie

bool Rollout::Lies::operator==(const Lies& other) const {
  const auto is_there = [&](const Placement& p) { return std::ranges::find(other.made, p) != other.made.end(); };
  return base == other.base && made.size() == other.made.size() && std::ranges::all_of(made, is_there);
}

bool Rollout::is_whole_made(const Value* value) const {
  return std::ranges::find(lies_[value].made, kWhole) != lies_[value].made.end();
}

void Rollout::set_base(const Value* value, const Placement& base) {
  Lies& lies = lies_[value];
  if (lies.base == base) return;
  changes_.push_back({value, lies.base, lies.made.size()});
  lies.base = base;
}

void Rollout::undo_to(size_t mark) {
  for (; changes_.size() > mark; changes_.pop_back()) {
    const Change& change = changes_.back();
    if (change.lowered) {
      lowered_[change.lowered] = 0;
      continue;
    }
    lies_[change.value].base = change.base;
    lies_[change.value].made.resize(change.made);
  }
}

// What it costs that a reader has the value so, which it is made for.
//   by_op: its op may make it again
double Rollout::take(const Value& value, const Placement& wanted, bool by_op) {
  if (lies_[&value].base == wanted || std::ranges::find(lies_[&value].made, wanted) != lies_[&value].made.end())
    return 0;
  const double cost = making_cost(value, wanted, by_op);
  changes_.push_back({&value, lies_[&value].base, lies_[&value].made.size()});
  lies_[&value].made.push_back(wanted);
  return cost;
}

double Rollout::making_cost(const Value& value, const Placement& wanted, bool by_op) {
  const Placement base = lies_[&value].base;
  if (is_cut(base) && is_cut(wanted)) return take(value, kWhole, by_op) + redistribution_cost(value, kWhole, wanted, 0);
  if (base == kSum)  // a part of what was made whole, or what was scattered, sends less than to add up again
    for (const Placement& source : lies_[&value].made)
      if (is_cut(wanted) ? source == kWhole : wanted == kWhole && is_cut(source))
        return redistribution_cost(value, source, wanted, 0);
  if (by_op && wanted == kWhole && is_cut(base) && MadeAgain(*this).is_made_again(value)) {
    double cost = 0;
    for (const Value* operand : operands_[value.producer()])
      if (operand) cost += take(*operand, kWhole);
    return cost;
  }
  // A weight that is whole, of which an op reads a part: its gradient comes out cut too, and is gathered, perhaps far from here.
  const double owed = value.producer()->is("param") && is_cut(wanted) ? static_cast<double>(value.type().bytes()) : 0;
  return redistribution_cost(value, base, wanted, 0) + owed;
}

// ---- one op

std::vector<Rollout::Way> Rollout::ways_of(const Op& op) {
  const std::vector<Value*>& values = operands_[&op];
  std::vector<Placement> operands;
  for (const Value* value : values) operands.push_back(value ? lies_[value].base : kWhole);
  std::vector<Way> ways;
  const auto add = [&](const OpCut& cut, bool of_vocabulary) {
    if (!find(ways, cut)) ways.push_back({cut, of_vocabulary});
  };
  const Op* forward = forward_of_vocabulary(op);
  const auto named = vocabulary_cut_of(op, operands, options_.loss_parallel, forward && lowered_[forward]);
  if (named) add(named->way, true);
  if (named && named->only) return ways;
  for (const OpCut& cut : cuts_of_ops_.of(op, operands)) add(cut, false);
  for (size_t k = 0; k < values.size(); ++k) {
    if (!values[k]) continue;
    std::vector<Placement> others = lies_[values[k]].made;
    if (operands[k] == kSum && is_product(op) && !values[k]->type().dims.empty())
      others.push_back(Placement::shard(std::ssize(values[k]->type().dims) - 1));
    const Placement base = operands[k];
    for (const Placement& other : others) {
      operands[k] = other;
      for (const OpCut& cut : cuts_of_ops_.of(op, operands)) add(cut, false);
    }
    operands[k] = base;
  }
  add_of_gradient(op, operands, ways);
  return ways;
}

// A product makes the gradient of a cut weight, and no way that its operands ask for leaves the weight's part: where gathered logits
// have a loss on whole rows, say. The way that does makes neither a sum over the axis nor the whole on each rank.
void Rollout::add_of_gradient(const Op& op, const std::vector<Placement>& operands, std::vector<Way>& ways) {
  const std::optional<Placement>& wanted = gradients_[&op];
  const auto gives = [&](const OpCut& cut) { return cut.results[0] == *wanted; };
  if (!wanted || std::ranges::any_of(ways, [&](const Way& way) { return gives(way.cut); })) return;
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!operands_[&op][k]) continue;
    std::vector<Placement> parted = operands;
    for (int64_t d = 0; d < std::ssize(operands_[&op][k]->type().dims); ++d) {
      parted[k] = Placement::shard(d);
      for (const OpCut& cut : cuts_of_ops_.of(op, parted))
        if (gives(cut) && !find(ways, cut)) ways.push_back({cut});
    }
  }
}

// What each rank computes, in the measure of redistribution_cost, where rows may be cut: a residual sum on whole rows, or the product of
// a weight that no rule cuts, is made by all. On devices of today's nodes memory is some times faster than links, and a byte is sent while
// a thousand operations of products are done (H100: 600 Tflop/s, 450 GB/s).
double Rollout::work_of(const Op& op, const OpCut& cut) const {
  constexpr double kMemory = 0.2, kFlops = 1e-3;
  if (!options_.sequence_parallel) return 0;
  double work = 0;
  for (size_t r = 0; r < cut.results.size(); ++r) {
    const auto elements = [](const Value* value) { return value ? static_cast<double>(value->type().numel()) : 0; };
    const Value* result = op.results()[r].get();
    double own = kMemory * static_cast<double>(result->type().bytes());
    if (r == 0 && is_product(op))  // [m, k] by [k, n]
      own += kFlops * 2 * std::sqrt(elements(operands_[&op][0]) * elements(operands_[&op][1]) * elements(result));
    work += own / (cut.results[r] == kWhole ? 1 : static_cast<double>(ranks_));
  }
  return work;
}

// What is sent. What is added up, for another op or another operand, is not taken for a summand too: it would be added up twice.
double Rollout::apply(const Op& op, const Way& way) {
  const std::vector<Value*>& values = operands_[&op];
  // What forward leaves for this op alone has a form of its own, of which its type says nothing: it stays as it lies.
  const auto left = ir::operand_left_by_forward(op.opcode);
  if (left && way.cut.operands[*left] && *way.cut.operands[*left] != lies_[values[*left]].base) return kImpossible;
  double cost = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    if (!values[k] || !way.cut.operands[k]) continue;
    const Lies& lies = lies_[values[k]];
    if (lies.base == kSum && *way.cut.operands[k] == kSum && !lies.made.empty()) return kImpossible;
    for (size_t j = 0; lies.base == kSum && j < k; ++j)
      if (values[j] == values[k] && way.cut.operands[j] && way.cut.operands[j] != way.cut.operands[k])
        return kImpossible;
    cost += take(*values[k], *way.cut.operands[k]);
  }
  for (size_t r = 0; r < way.cut.results.size(); ++r) {
    const Value* result = op.results()[r].get();
    set_base(result, way.cut.results[r]);
    if (const auto held = held_.find(result); held != held_.end()) {
      cost += take(*result, held->second);
      set_base(result, held->second);
    }
    for (const Op* reader : index_.readers(result))  // which may stand far from here
      if (reader->is("gradient")) cost += apply_gradient(*reader);
  }
  if (way.of_vocabulary) {
    lowered_[&op] = 1;
    changes_.push_back({nullptr, {}, 0, &op});
  }
  return cost;
}

double Rollout::apply_and_work(const Op& op, const Way& way) { return apply(op, way) + work_of(op, way.cut); }

// As its parameter lies; a summand stays one, for data parallelism to reduce.
double Rollout::apply_gradient(const Op& op) {
  const auto cut = cuts_.find(op.attr<std::string>("param"));
  const Value& value = *operands_[&op][0];
  if (cut != cuts_.end()) return take(value, Placement::shard(cut->second));
  return lies_[&value].base == kSum ? 0 : take(value, kWhole);
}

double Rollout::step(const Op& op) {
  if (ir::is_root(op)) return 0;
  if (op.is("gradient")) return apply_gradient(op);
  const std::vector<Way> ways = ways_of(op);
  size_t best = ways.size() == 1 ? 0 : best_by_policy(op, ways);
  if (policy_ == Policy::Planned && planned_[&op]) best = find(ways, *planned_[&op]).value_or(best);
  trail_.emplace_back(&op, ways[best].cut);
  return apply_and_work(op, ways[best]);
}

size_t Rollout::best_by_policy(const Op& op, const std::vector<Way>& ways) {
  size_t best = 0;
  double least = kImpossible;
  for (size_t i = 0; i < ways.size(); ++i) {
    const size_t mark = changes_.size();
    const double cost = apply(op, ways[i]);
    undo_to(mark);
    const bool is_whole = std::ranges::all_of(ways[i].cut.results, [](const Placement& p) { return p == kWhole; });
    if (cost < least || (cost == least && policy_ == Policy::WholeFirst && is_whole)) {
      least = cost;
      best = i;
    }
  }
  return best;
}

double Rollout::end() {
  double cost = 0;
  for (const Value* output : graph_.outputs) cost += take(*output, kWhole, false);
  for (const ir::Carry& carry : graph_.carries) cost += take(*carry.next, lies_[carry.current].base, false);
  return cost;
}

// ---- trials

bool Rollout::is_read_after(const Value* value, size_t at) const {
  return index_.is_returned(value) || std::ranges::any_of(index_.readers(value), [&](const Op* reader) {
           return index_.position(reader) > at && !reader->is("gradient");
         });
}

// What is planned, from one way of the op at a position on.
std::vector<Rollout::Step> Rollout::record(size_t at, const Way& way) {
  const size_t begin = changes_.size();
  policy_ = Policy::Planned;
  std::vector<Step> steps;
  double cost = 0;
  for (size_t i = at; i < index_.size() && i - at < kFar; ++i) {
    const size_t mark = changes_.size();
    cost += i == at ? apply_and_work(*index_.at(i), way) : step(*index_.at(i));
    if (i + 1 == index_.size()) cost += end();
    Step& made = steps.emplace_back(Step{.cost = cost, .lowers = false, .after = {}});
    for (size_t c = mark; c < changes_.size(); ++c) {
      if (const Value* value = changes_[c].value)
        made.after.emplace_back(value, lies_[value]);
      else
        made.lowers = true;
    }
  }
  undo_to(begin);
  return steps;
}

// Until all that is read later lies as in the other trial. nullopt: not within that one's length, or it costs more than all of that one.
std::optional<Rollout::Outcome> Rollout::try_way(size_t at, const Way& way, const std::vector<Step>& other) {
  const size_t begin = changes_.size();
  trail_.clear();
  Touched of_other;  // how values lie there that either trial has changed
  std::unordered_set<const Value*> differing;
  std::optional<Outcome> outcome;
  double cost = 0;
  bool is_apart = false;  // an op of a vocabulary is cut in one of both
  for (size_t s = 0; s < other.size() && !outcome; ++s) {
    const size_t i = at + s, mark = changes_.size();
    std::vector<const Value*> touched;
    for (const auto& [value, lies] : other[s].after) touched.push_back(value);
    cost += s == 0 ? apply_and_work(*index_.at(i), way) : step(*index_.at(i));
    const bool is_last = i + 1 == index_.size();
    if (is_last) cost += end();
    bool lowers = false;
    for (size_t c = mark; c < changes_.size(); ++c) {
      const Change& change = changes_[c];
      lowers |= change.lowered != nullptr;
      if (!change.value) continue;
      touched.push_back(change.value);
      const auto [found, is_new] = of_other.try_emplace(change.value, lies_[change.value]);
      if (!is_new) continue;
      found->second.base = change.base;  // as it was before
      found->second.made.resize(change.made);
    }
    for (const auto& [value, lies] : other[s].after) of_other[value] = lies;
    for (const Value* value : touched) {
      if (lies_[value] == of_other.at(value))
        differing.erase(value);
      else
        differing.insert(value);
    }
    std::erase_if(differing, [&](const Value* value) { return !is_read_after(value, i); });
    is_apart |= lowers != other[s].lowers;
    if ((differing.empty() && !is_apart) || is_last) outcome = Outcome{.cost = cost, .of_other = other[s].cost};
    if (cost > other.back().cost) break;
  }
  undo_to(begin);
  return outcome;
}

// usual: of the ways, which is taken unless another is better
size_t Rollout::roll_out(const Op& op, const std::vector<Way>& ways, const std::vector<size_t>& possible,
                         size_t usual) {
  const size_t at = index_.position(&op);
  std::vector<Trial> open;
  for (const size_t i : possible)
    for (const Policy policy : {Policy::Planned, Policy::CutFirst, Policy::WholeFirst})
      if (i != usual && (policy != Policy::CutFirst || at < planned_to_)) open.push_back({i, policy});
  size_t best = usual;
  double most = 0;  // saved
  Trail trail;      // to the best
  const std::vector<Step> as_planned = record(at, ways[usual]);
  for (const Trial& trial : open) {
    policy_ = trial.policy;
    const auto outcome = try_way(at, ways[trial.way], as_planned);
    if (!outcome || outcome->of_other - outcome->cost <= most + 1e-9 * outcome->cost) continue;
    most = outcome->of_other - outcome->cost;
    best = trial.way;
    trail = trail_;
  }
  for (const auto& [later, cut] : trail) {
    planned_[later] = cut;
    planned_to_ = std::max(planned_to_, index_.position(later));
  }
  return best;
}

size_t Rollout::best_of(const Op& op, const std::vector<Way>& ways) {
  std::vector<std::pair<double, size_t>> costs;
  for (size_t i = 0; i < ways.size(); ++i) {
    const size_t mark = changes_.size();
    if (const double cost = apply(op, ways[i]); cost < kImpossible) costs.emplace_back(cost, i);
    undo_to(mark);
  }
  SFSDP_CHECK(!costs.empty(), op.opcode, " cannot be cut, nor left whole");
  if (costs.size() == 1) return costs[0].second;
  std::ranges::sort(costs);
  std::vector<size_t> possible;
  for (const auto& [cost, i] : costs) possible.push_back(i);
  const auto planned = planned_[&op] ? find(ways, *planned_[&op]) : std::nullopt;
  const bool is_possible = planned && std::ranges::find(possible, *planned) != possible.end();
  return roll_out(op, ways, possible, is_possible ? *planned : possible[0]);
}

std::optional<size_t> Rollout::find(const std::vector<Way>& ways, const OpCut& cut) {
  const auto same = [&](const Way& way) { return way.cut.operands == cut.operands && way.cut.results == cut.results; };
  const auto found = std::ranges::find_if(ways, same);
  return found == ways.end() ? std::nullopt : std::optional(static_cast<size_t>(found - ways.begin()));
}

Rollout::Way Rollout::choose(const Op& op) {
  std::vector<Way> ways = ways_of(op);
  size_t best = 0;
  if (ways.size() > 1) {
    const uint64_t key = key_of(op);
    const auto known = chosen_.find(key);
    const auto found = known == chosen_.end() ? std::nullopt : find(ways, known->second);
    best = found ? *found : best_of(op, ways);
    chosen_.insert_or_assign(key, ways[best].cut);
  }
  double cost = apply(op, ways[best]);
  if (cost >= kImpossible && ways.size() > 1) {  // what suits a like op need not suit this one
    undo_to(0);
    cost = apply(op, ways[best_of(op, ways)]);
  }
  SFSDP_CHECK(cost < kImpossible, op.opcode, " cannot be cut, nor left whole");
  changes_.clear();
  return std::move(ways[best]);
}

void Rollout::take_gradient(const Op& op) {
  apply_gradient(op);
  changes_.clear();
}

// ---- like ops

uint64_t Rollout::key_of(const Op& op) const {
  uint64_t key = colour_[&op];
  for (const Value* value : operands_[&op]) {
    if (!value) continue;
    key = mix(key, number_of(lies_[value].base));
    for (const Placement& made : lies_[value].made) key = mix(key, 1 + number_of(made));
  }
  return key;
}

// Weisfeiler and Leman's refinement: what an op is, then, again and again, what its operands' ops and its readers are.
void Rollout::colour() {
  for (const auto& op : graph_.ops()) {
    uint64_t hash = std::hash<std::string_view>{}(op->opcode.str());
    for (const auto& result : op->results()) {
      hash = mix(hash, static_cast<uint64_t>(result->type().dtype) + (index_.is_returned(result.get()) ? 100 : 0));
      for (const ir::Dim& dim : result->type().dims) hash = mix(hash, static_cast<uint64_t>(dim.size));
      hash = mix(hash, number_of(lies_[result.get()].base));
      if (const auto held = held_.find(result.get()); held != held_.end())
        hash = mix(hash, 1 + number_of(held->second));
    }
    colour_[op.get()] = hash;
  }
  for (int round = 0; round < kAlike; ++round) {
    ir::OpTable<uint64_t> next(graph_);
    for (const auto& op : graph_.ops()) {
      uint64_t hash = colour_[op.get()];
      for (const Value* value : operands_[op.get()]) hash = mix(hash, value ? colour_[value->producer()] : 1);
      for (const auto& result : op->results())
        for (const Op* reader : index_.readers(result.get())) hash = mix(hash, colour_[reader]);
      next[op.get()] = hash;
    }
    colour_ = std::move(next);
  }
}

}  // namespace sfsdp::parallel
