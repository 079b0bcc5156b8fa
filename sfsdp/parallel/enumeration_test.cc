// SPDX-License-Identifier: BSD-3-Clause
// The placements that partition chooses against the best ones of all, found by enumeration: what crosses the axis in small random steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/parallel/op_cuts.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"
#include "sfsdp/plan/verify/layouts.h"

namespace sfsdp::parallel::enumeration_test {
namespace {

using ir::Op, ir::Placement, ir::Value;

constexpr int64_t kRanks = 2;
using Cuts = std::map<std::string, int64_t>;

// ---- random steps

struct RandomStep {
  std::string text;
  Cuts cuts;
};

// Forward of a few ops over [4, 6, width], and its backward where all of them have one; 12 ops at most that are no roots.
class Writer {
 public:
  explicit Writer(uint64_t seed) : random_(seed) {}

  RandomStep write() {
    const bool trains = pick(2) == 0;
    values_.push_back({"x", 8});
    for (int64_t left = trains ? 2 + pick(2) : 4 + pick(7); left > 0; --left) forward_op(trains);
    std::string returns = "%" + values_.back().name;
    if (trains) {
      backward();
      returns += ", %" + grads_.at("x");
    }
    for (const Named& value : values_)
      if (!trains && !read_.contains(value.name) && value.name != values_.back().name) returns += ", %" + value.name;
    std::string text = "graph mesh [] view global\n" + params_ + "  %x = input name=x : f32[4, 6, 8]\n";
    if (trains) text += concat("  %seed = input name=seed : ", type_of(values_.back().width), "\n");
    text += "fwd:\n" + forward_ + (trains ? "bwd:\n" + backward_ : "") + "  return " + returns + "\n";
    return {text, cuts_};
  }

 private:
  struct Named {
    std::string name;
    int64_t width;
  };
  struct Done {
    std::string kind, result;
    std::vector<std::string> operands;
    int64_t width;
  };

  int64_t pick(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  static std::string type_of(int64_t width) { return concat("f32[4, 6, ", width, "]"); }
  std::string fresh() { return concat("v", count_++); }
  void line(std::string& to, const std::string& result, const std::string& op, int64_t width) {
    to += concat("  %", result, " = ", op, " : ", type_of(width), "\n");
  }

  void forward_op(bool trains) {
    const Named x = trains ? values_.back() : values_[static_cast<size_t>(pick(std::ssize(values_)))];
    const std::string result = fresh();
    int64_t width = x.width;
    std::vector<std::string> operands = {x.name};
    const std::array kinds = {"linear", "linear", "add", "mul", "scale", "norm", "softmax"};
    std::string kind = kinds.at(static_cast<size_t>(pick(trains ? 5 : 7)));
    if (kind == "linear") {
      width = int64_t{4} << pick(3);
      const std::string w = concat("w", count_++);
      params_ += concat("  %", w, " = param name=", w, " : f32[", width, ", ", x.width, "]\n");
      if (const int64_t cut = pick(3); cut < 2) cuts_[w] = cut;
      operands.push_back(w);
      line(forward_, result, concat("linear %", x.name, ", %", w), width);
    } else if (kind == "add" || kind == "mul") {
      std::vector<Named> alike;
      std::ranges::copy_if(values_, std::back_inserter(alike), [&](const Named& v) { return v.width == width; });
      operands.push_back(alike[static_cast<size_t>(pick(std::ssize(alike)))].name);
      line(forward_, result, concat("aten.", kind, ".Tensor %", x.name, ", %", operands[1]), width);
    } else if (kind == "scale") {
      line(forward_, result, concat("aten.mul.Scalar %", x.name, " other=2.0"), width);
    } else if (kind == "norm") {
      forward_ += concat("  %", result, ", %", result, "r = rms_norm %", x.name,
                         ", none dims=[2] eps=1e-05 : ", type_of(width), ", f32[4, 6, 1]\n");
    } else {
      line(forward_, result, concat("aten._softmax %", x.name, " dim=2 half_to_float=false"), width);
    }
    read_.insert(operands.begin(), operands.end());
    done_.push_back({kind, result, operands, width});
    values_.push_back({result, width});
  }

  void add_grad(const std::string& of, const std::string& grad, int64_t width) {
    std::string& sum = grads_[of];
    if (sum.empty()) {
      sum = grad;
      return;
    }
    const std::string both = fresh();
    line(backward_, both, concat("aten.add.Tensor %", sum, ", %", grad), width);
    sum = both;
  }

  void backward() {
    grads_[values_.back().name] = "seed";
    for (auto op = done_.rbegin(); op != done_.rend(); ++op) {
      if (!grads_.contains(op->result)) continue;
      const std::string grad = grads_.at(op->result);
      const auto width_of = [&](const std::string& name) {
        return std::ranges::find(values_, name, &Named::name)->width;
      };
      const std::string& x = op->operands[0];
      if (op->kind == "linear") {
        const std::string &w = op->operands[1], dw = fresh(), dx = fresh();
        backward_ +=
            concat("  %", dw, " = linear_dw %", grad, ", %", x, " : f32[", op->width, ", ", width_of(x), "]\n");
        backward_ +=
            concat("  %", w, ".grad = gradient %", dw, " param=", w, " : f32[", op->width, ", ", width_of(x), "]\n");
        line(backward_, dx, concat("linear_dx %", grad, ", %", w), width_of(x));
        add_grad(x, dx, width_of(x));
      } else if (op->kind == "add") {
        add_grad(x, grad, op->width);
        add_grad(op->operands[1], grad, op->width);
      } else if (op->kind == "mul") {
        const std::string a = fresh(), b = fresh();
        line(backward_, a, concat("aten.mul.Tensor %", grad, ", %", op->operands[1]), op->width);
        line(backward_, b, concat("aten.mul.Tensor %", grad, ", %", x), op->width);
        add_grad(x, a, op->width);
        add_grad(op->operands[1], b, op->width);
      } else {
        const std::string a = fresh();
        line(backward_, a, concat("aten.mul.Scalar %", grad, " other=2.0"), op->width);
        add_grad(x, a, op->width);
      }
    }
  }

  std::mt19937_64 random_;
  int64_t count_ = 0;
  std::vector<Named> values_;
  std::vector<Done> done_;
  std::set<std::string> read_;
  std::map<std::string, std::string> grads_;
  std::string params_, forward_, backward_;
  Cuts cuts_;
};

// ---- the best

bool operator<(const Placement& a, const Placement& b) {
  return std::tuple(a.kind, a.dim, a.blocks) < std::tuple(b.kind, b.dim, b.blocks);
}
struct Less {
  bool operator()(const Placement& a, const Placement& b) const { return a < b; }
};
using Needs = std::set<Placement, Less>;

// Bytes that are sent; a part of what is whole is next to nothing. A weight is not gathered: it was to be cut.
double sent(const Value& value, const Placement& from, const Placement& to) {
  const auto bytes = static_cast<double>(value.type().bytes());
  if (from.kind == Placement::Kind::Shard && value.producer()->is("param"))
    return std::numeric_limits<double>::infinity();
  if (from == kWhole) return 1e-3 * bytes;
  return from == kSum && to == kWhole ? 2 * bytes : bytes;
}

// What all that is wanted of a value costs: a sum that is scattered may be gathered.
double cost_of(const Value& value, const Placement& base, Needs needs) {
  needs.erase(base);
  double cost = 0;
  if (needs.empty()) return 0;
  if (needs.contains(kSum)) return std::numeric_limits<double>::infinity();
  const bool one_part = needs.size() == 1 && !needs.contains(kWhole);
  if (one_part) return sent(value, base, *needs.begin());
  if (base != kWhole) cost += sent(value, base, kWhole);
  for (const Placement& part : needs)
    if (part != kWhole) cost += sent(value, kWhole, part);
  return cost;
}

class Enumeration {
 public:
  Enumeration(const ir::Graph& graph, const Cuts& cuts, double at_most) : cuts_(cuts), best_(at_most) {
    for (const auto& op : graph.ops()) {
      if (op->is("param")) {
        const auto cut = cuts.find(op->attr<std::string>("name"));
        if (cut != cuts.end()) base_[op->result()] = Placement::shard(cut->second);
      }
      if (op->is("param", "input")) continue;
      ops_.push_back(op.get());
      ways_.push_back(ways_of(*op));
    }
    for (Value* output : graph.outputs) wanted_at_end_.push_back(output);
  }

  double best() {
    visit(0, 0);
    return best_;
  }

 private:
  std::vector<OpCut> ways_of(const Op& op) const {
    std::vector<OpCut> all;
    if (op.is("gradient")) {
      const auto cut = cuts_.find(op.attr<std::string>("param"));
      const Placement lies = cut == cuts_.end() ? kWhole : Placement::shard(cut->second);
      all.push_back({.operands = {lies}, .results = {lies}});
      if (lies == kWhole) all.push_back({.operands = {kSum}, .results = {kSum}});
      return all;
    }
    std::vector<Placement> operands(op.operands.size(), kWhole);
    collect(op, 0, operands, all);
    return all;
  }
  static void collect(const Op& op, size_t k, std::vector<Placement>& operands, std::vector<OpCut>& all) {
    if (k == op.operands.size()) {
      for (OpCut& way : cuts_of(op, operands, kRanks)) {
        const auto same = [&](const OpCut& other) {
          return other.operands == way.operands && other.results == way.results;
        };
        if (std::ranges::none_of(all, same)) all.push_back(std::move(way));
      }
      return;
    }
    std::vector<Placement> choices = {kWhole};
    if (op.operands[k]) choices.push_back(kSum);
    if (op.operands[k])
      for (int64_t d = 0; d < std::ssize(op.operands[k]->type().dims); ++d) choices.push_back(Placement::shard(d));
    for (const Placement& choice : choices) {
      operands[k] = choice;
      collect(op, k + 1, operands, all);
    }
    operands[k] = kWhole;
  }

  Placement base_of(const Value* value) const {
    const auto found = base_.find(value);
    return found == base_.end() ? kWhole : found->second;
  }

  void visit(size_t at, double cost) {
    if (cost >= best_) return;
    if (at == ops_.size()) {
      for (Value* output : wanted_at_end_) {
        Needs needs = needs_[output];
        const double before = cost_of(*output, base_of(output), needs);
        needs.insert(kWhole);
        cost += cost_of(*output, base_of(output), needs) - before;
      }
      best_ = std::min(best_, cost);
      return;
    }
    const Op& op = *ops_[at];
    for (const OpCut& way : ways_[at]) {
      std::map<const Value*, Needs> saved;
      double more = 0;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const Value* operand = op.operands[k];
        if (!operand || !way.operands[k]) continue;
        Needs& needs = needs_[operand];
        saved.emplace(operand, needs);
        more -= cost_of(*operand, base_of(operand), needs);
        needs.insert(*way.operands[k]);
        more += cost_of(*operand, base_of(operand), needs);
      }
      for (size_t r = 0; r < way.results.size(); ++r) base_[op.results()[r].get()] = way.results[r];
      if (more < std::numeric_limits<double>::infinity()) visit(at + 1, cost + more);
      for (auto& [value, needs] : saved) needs_[value] = needs;
    }
  }

  const Cuts& cuts_;
  double best_;
  std::vector<const Op*> ops_;
  std::vector<std::vector<OpCut>> ways_;
  std::vector<Value*> wanted_at_end_;
  std::map<const Value*, Placement> base_;
  std::map<const Value*, Needs> needs_;
};

// What the collectives of a partitioned step cost, in the same measure.
double cost_of(const ir::Graph& graph) {
  double cost = 0;
  for (const auto& op : graph.ops()) {
    if (op->operands.empty() || !op->operands[0]) continue;
    const auto in = static_cast<double>(op->operands[0]->type().bytes()),
               out = static_cast<double>(op->results().empty() ? 0 : op->result()->type().bytes());
    if (op->is("all_gather")) cost += out;
    if (op->is("reduce_scatter")) cost += in;
    if (op->is("all_reduce")) cost += 2 * in;
    if (op->is("own_part")) cost += 1e-3 * in;
  }
  return cost;
}

// SFSDP_ENUMERATION_SEEDS=200,2200: of other steps, which are told and held to nothing (docs/benchmarks.md has what they gave).
TEST_CASE("partition against the best placements of 200 random steps: none sends more than 1 % more") {
  int64_t cut = 0, worse = 0, better = 0;
  double chosen = 0, best = 0;
  const char* others = std::getenv("SFSDP_ENUMERATION_SEEDS");
  const std::vector<std::string> ends = split(others ? others : "0,200", ',');
  const auto end_of = [&](size_t k) { return static_cast<uint64_t>(parse_int(ends.at(k)).value()); };
  for (uint64_t seed = end_of(0); seed < end_of(1); ++seed) {
    CAPTURE(seed);
    const RandomStep step = Writer(seed).write();
    ir::Graph graph = ir::parse_or_throw(step.text);
    graph.mesh = {{"tp", kRanks}};
    graph.view = ir::Graph::View::Local;
    partition(graph, {"tp", kRanks}, step.cuts, {.sequence_parallel = true});
    CHECK(plan::verify_layouts(graph) == "");
    const double here = cost_of(graph);
    const double least = Enumeration(ir::parse_or_throw(step.text), step.cuts, 1e9).best();
    cut += here > 0 ? 1 : 0;
    worse += here > 1.01 * least ? 1 : 0;
    better += here < least ? 1 : 0;  // where an op is computed twice, on parts and on wholes
    chosen += here;
    best += least;
  }
  MESSAGE(worse, " of ", cut, " steps send more than 1 % more than the best, ", better, " less, all together ",
          chosen / best, " times as much");
  if (others) return;
  CHECK(cut > 100);
  CHECK(worse == 0);
  CHECK(better <= 1);
  CHECK(chosen <= 1.01 * best);
}

}  // namespace
}  // namespace sfsdp::parallel::enumeration_test
