// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/cut_proof_torch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/access_map.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/testing/cut_parts_torch.h"

namespace sfsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ir::Placement;
using parallel::is_cut, parallel::kSum, parallel::kWhole;

constexpr double kBound = 1e-12;
// A second axis follows so many ways of each call to cut it over a first one.
constexpr size_t kMostFirst = 3;
// By opcode: pairs of one kind, and calls that are searched for pairs.
constexpr int kMostOfKind = 8, kMostSearches = 24;
constexpr const char* kAxes[] = {"tp", "cp"};
// Their results are what remains where terms as large as the operands cancel: all of them, in a row of one element. Their scale is the
// operands'.
constexpr const char* kCancels[] = {"aten.native_layer_norm_backward"};

std::string text_of(std::span<const AxisWay> axes) {
  std::string text;
  for (size_t a = 0; a < axes.size(); ++a) {
    text += concat(a == 0 ? "" : ", then ", axes[a].ranks, axes[a].tears ? " ranks, summands of " : " ranks, cut in ");
    const auto& operands = axes[a].way.operands;
    for (size_t k = 0; k < operands.size(); ++k) {
      text += k == 0 ? "" : " ";
      if (!operands[k])
        text += "-";
      else if (is_cut(*operands[k]))
        text += concat(operands[k]->dim, operands[k]->blocks == 1 ? "" : concat(":", operands[k]->blocks));
      else
        text += *operands[k] == kSum ? "it" : "whole";
    }
  }
  return text;
}

bool same(const AxisWay& a, const AxisWay& b) {
  return a.ranks == b.ranks && a.tears == b.tears && a.way.operands == b.way.operands && a.way.results == b.way.results;
}

Pair kind_of(const AxisWay& a, const AxisWay& b) {
  if (a.tears && b.tears) return Pair::Summands;
  if (a.tears || b.tears) return Pair::CutOfSummand;
  const auto sums = [](const AxisWay& way) {
    return std::ranges::find(way.way.results, kSum) != way.way.results.end();
  };
  if (sums(a) || sums(b)) return Pair::CutAndSum;
  for (size_t k = 0; k < a.way.operands.size(); ++k) {
    const auto &left = a.way.operands[k], &right = b.way.operands[k];
    if (left && right && is_cut(*left) && is_cut(*right) && left->dim == right->dim) return Pair::OneDim;
  }
  return Pair::TwoDims;
}

bool is_narrow(ir::DType dtype) {
  return dtype == ir::DType::f16 || dtype == ir::DType::bf16 || dtype == ir::DType::f32;
}

ir::Type widened(ir::Type type) {
  if (is_narrow(type.dtype)) type.dtype = ir::DType::f64;
  return type;
}

Tensor widened(const Tensor& tensor) {
  if (!tensor.defined() || !has_summands(tensor)) return tensor;
  return tensor.to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
}

// The op alone, on inputs of all sizes.
ir::Graph alone(const ir::Op& op, bool widen) {
  ir::Graph graph;
  const auto type_of = [&](const ir::Value& value) { return widen ? widened(value.type()) : value.type(); };
  std::vector<ir::Value*> operands;
  for (size_t k = 0; k < op.operands.size(); ++k)
    operands.push_back(op.operands[k] ? graph.add("input", {}, {{concat("in", k), type_of(*op.operands[k])}})->result()
                                      : nullptr);
  std::vector<ir::Graph::NewResult> results;
  for (const auto& result : op.results()) results.push_back({result->name(), type_of(*result)});
  ir::Op* made = graph.add(op.opcode, operands, std::move(results));
  made->attrs = op.attrs;
  made->operand_lists = op.operand_lists;
  return graph;
}

// One rank's program knows no axes.
void forget_axes(ir::Graph& graph) {
  graph.mesh.clear();
  for (const auto& op : graph.ops())
    for (const auto& result : op->results()) {
      ir::Type type = result->type();
      for (ir::Dim& dim : type.dims) dim = ir::Dim{.size = dim.size, .split = {}};
      type.placements.clear();
      result->set_type(type);
    }
}

Tensors copies_of(const Tensors& tensors) {
  Tensors made;
  for (const Tensor& tensor : tensors) made.push_back(tensor.defined() ? tensor.clone() : tensor);
  return made;
}

// By operand, what the ranks of axes that tear it have of it: one tensor where none does, in the order of all_ranks().
std::vector<Tensors> torn(std::span<const AxisWay> axes, const Tensors& operands) {
  std::vector<Tensors> all;
  for (size_t k = 0; k < operands.size(); ++k) {
    int64_t count = 1;
    for (const AxisWay& axis : axes)
      if (axis.tears && axis.way.operands[k] == kSum) count *= axis.ranks;
    all.push_back(count == 1 ? Tensors{operands[k]} : summands_of(operands[k], count));
  }
  return all;
}

// Which of an operand's summands the rank has.
size_t summand_of(std::span<const AxisWay> axes, const Coordinates& rank, size_t operand) {
  int64_t number = 0;
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].tears && axes[a].way.operands[operand] == kSum) number = number * axes[a].ranks + rank[a];
  return static_cast<size_t>(number);
}

// The group's operands that the op has; nullopt: it has none, or not all are numbers that have summands.
std::optional<AxisWay> tearing(const ir::Op& op, const std::vector<size_t>& group, const Tensors& operands,
                               int64_t ranks) {
  AxisWay axis{.ranks = ranks,
               .way = {.operands = std::vector<std::optional<Placement>>(op.operands.size(), kWhole),
                       .results = std::vector<Placement>(op.results().size(), kSum)},
               .tears = true};
  bool any = false;
  for (const size_t k : group) {
    if (k >= operands.size() || !operands[k].defined()) continue;
    if (!has_summands(operands[k])) return std::nullopt;
    axis.way.operands[k] = kSum;
    any = true;
  }
  return any ? std::optional(axis) : std::nullopt;
}

// All that the row claims for one axis.
std::vector<AxisWay> ways_of(const ir::Op& op, const Tensors& operands) {
  std::vector<AxisWay> ways;
  const auto add = [&](AxisWay way) {
    if (std::ranges::none_of(ways, [&](const AxisWay& other) { return same(way, other); }))
      ways.push_back(std::move(way));
  };
  for (const int64_t ranks : {2, 3})
    for (size_t k = 0; k < operands.size(); ++k) {
      if (!operands[k].defined()) continue;
      const std::vector<int64_t> shape = op.operands[k]->type().shape();
      for (size_t d = 0; d < shape.size(); ++d)
        for (const int64_t blocks : {1, 2, 3}) {
          if (shape[d] == 0 || shape[d] % (ranks * blocks) != 0) continue;
          std::vector<Placement> placements(operands.size());
          placements[k] = Placement::shard(static_cast<int64_t>(d), blocks);
          for (parallel::OpCut& way : parallel::cuts_of(op, placements, ranks))
            if (way.operands[k] && *way.operands[k] == placements[k]) add({.ranks = ranks, .way = std::move(way)});
        }
    }
  if (const ir::AccessMap* map = ir::map_of(op.opcode.row()))
    for (const std::vector<size_t>& group : map->linear)
      for (const int64_t ranks : {2, 3})
        if (auto way = tearing(op, group, operands, ranks)) add(std::move(*way));
  return ways;
}

// Summands of what is infinite have no sum.
Tensor where_finite(const Tensor& tensor, const Tensor& whole) { return at::where(at::isfinite(whole), tensor, 0); }

using Marks = std::map<int, std::string>;  // of a factor in operands, by its number

void add_marks(const ir::AccessMap::Clause& clause, Marks& marks) {
  for (const ir::AccessMap::Pattern& operand : clause.operands)
    for (const ir::AccessMap::Dimension& dim : operand.dims)
      for (const ir::AccessMap::Use& use : dim)
        if (use.factor != ir::AccessMap::kOnes) marks[use.factor] += use.mark;
}

}  // namespace

bool claims_linear(const ir::OpRow& row) {
  const ir::AccessMap* map = ir::map_of(&row);
  return map && !map->linear.empty();
}

bool claims_cut(const ir::OpRow& row) {
  const ir::AccessMap* map = ir::map_of(&row);
  if (!map || map->by_place || (row.flags & ir::kDraws) != 0) return false;
  for (const ir::AccessMap::Choice& choice : map->choices) {
    Marks marks;
    for (const ir::AccessMap::Clause& clause : choice.clauses) add_marks(clause, marks);
    for (const auto& [factor, all] : marks) {
      const bool adds = all.find('+') != std::string::npos;
      if (all.find_first_not_of(" +") == std::string::npos && (!adds || !map->linear.empty())) return true;
    }
  }
  return false;
}

void CutProof::prove(const ir::Op& op, const Tensors& operands, const KernelOf& kernel_of) {
  ++counts_of(op).calls;
  const ir::Graph wide = alone(op, /*widen=*/true);
  Tensors doubles;
  for (const Tensor& operand : operands) doubles.push_back(widened(operand));
  prove_wide(*wide.ops().back(), doubles, kernel_of);
}

void CutProof::prove_wide(const ir::Op& op, const Tensors& operands, const KernelOf& kernel_of) {
  Tensors whole;
  Kernel kernel;
  try {
    kernel = kernel_of(op);
    whole = kernel(copies_of(operands));
  } catch (const std::exception&) {
    ++counts_of(op).no_kernel;
    return;
  }
  const std::vector<AxisWay> ways = ways_of(op, operands);
  for (const AxisWay& way : ways)
    if (cut(op, {&way, 1}, operands, whole, kernel_of)) ++(way.tears ? counts_of(op).torn : counts_of(op).cuts);
  prove_pairs(op, ways, operands, whole, kernel_of);
  look_for_linear(op, operands, whole, kernel);
}

// A second axis within a first one, as partition cuts for one axis what another has left.
void CutProof::prove_pairs(const ir::Op& op, const std::vector<AxisWay>& first, const Tensors& operands,
                           const Tensors& whole, const KernelOf& kernel_of) {
  CutCounts& counts = counts_of(op);
  if (first.empty() || ++counts.searches > kMostSearches) return;
  std::array<bool, kPairs> met = {};
  std::vector<AxisWay> outer = first;
  std::ranges::shuffle(outer, engine_);
  outer.resize(std::min(outer.size(), kMostFirst));
  for (const AxisWay& way : outer) {
    std::vector<AxisWay> inner;
    try {
      const ir::Graph graph = one_rank(op, {&way, 1});
      inner = ways_of(*graph.ops().back(), operands);
    } catch (const std::exception&) {  // told of by the proof of one axis
      continue;
    }
    std::ranges::shuffle(inner, engine_);
    for (AxisWay& within : inner) {
      const auto kind = static_cast<size_t>(kind_of(way, within));
      if (met[kind] || counts.pairs[kind] >= kMostOfKind) continue;
      const AxisWay pair[] = {way, std::move(within)};
      met[kind] = cut(op, pair, operands, whole, kernel_of);
      counts.pairs[kind] += met[kind] ? 1 : 0;
    }
  }
}

// The op of a rank of these axes; types say how what it reads and makes lies on them.
ir::Graph CutProof::one_rank(const ir::Op& op, std::span<const AxisWay> axes) const {
  ir::Graph graph = alone(op, false);
  const ir::Op& made = *graph.ops().back();
  for (size_t a = 0; a < axes.size(); ++a) {
    graph.mesh.push_back({kAxes[a], axes[a].ranks});
    parallel::Placements placements;
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (const auto& placement = axes[a].way.operands[k]; op.operands[k] && placement && *placement != kWhole)
        placements[made.operands[k]] = *placement;
    for (size_t r = 0; r < op.results().size(); ++r)
      if (axes[a].way.results[r] != kWhole) placements[made.results()[r].get()] = axes[a].way.results[r];
    parallel::localise(graph, graph.mesh.back(), placements);
    if (mistake_) mistake_(graph, a + 1);
  }
  return graph;
}

bool CutProof::cut(const ir::Op& op, std::span<const AxisWay> axes, const Tensors& operands, const Tensors& whole,
                   const KernelOf& kernel_of) {
  std::vector<MeshAxis> mesh;
  std::vector<ir::Type> types;  // of results
  std::vector<Tensors> made(whole.size());
  ir::Graph graph;
  try {
    graph = one_rank(op, axes);
  } catch (const UserError&) {  // gaps in memory
    ++counts_of(op).refused;
    return false;
  } catch (const std::exception& error) {
    wrong_.insert(concat(op.opcode, ", ", text_of(axes), ": ", error.what(), ", as in ", ir::print(op)));
    return true;
  }
  try {
    mesh = graph.mesh;
    const ir::Op& local = *graph.ops().back();
    std::vector<ir::Type> reads;
    for (const ir::Value* operand : local.operands) reads.push_back(operand ? operand->type() : ir::Type());
    for (const auto& result : local.results()) types.push_back(result->type());
    forget_axes(graph);
    const Kernel kernel = kernel_of(local);
    const std::vector<Tensors> summands = torn(axes, operands);
    for (const Coordinates& rank : all_ranks(mesh)) {
      Tensors parts;
      for (size_t k = 0; k < operands.size(); ++k)
        parts.push_back(operands[k].defined()
                            ? part_of(summands[k][summand_of(axes, rank, k)], reads[k], mesh, rank).clone()
                            : operands[k]);
      const Tensors results = kernel(parts);
      SFSDP_CHECK(results.size() == whole.size(), results.size(), " results, not ", whole.size());
      for (size_t r = 0; r < whole.size(); ++r) made[r].push_back(results[r]);
    }
  } catch (const std::exception& error) {
    wrong_.insert(concat(op.opcode, ", ", text_of(axes), ": ", error.what(), ", as in ", ir::print(op)));
    return true;
  }
  const bool tears = std::ranges::any_of(axes, &AxisWay::tears);
  double least = 0;  // of scales
  if (std::ranges::find(kCancels, std::string_view(op.opcode)) != std::end(kCancels))
    for (const Tensor& operand : operands) least = std::max(least, operand.defined() ? largest(operand) : 0.0);
  for (size_t r = 0; r < whole.size(); ++r) {
    if (!whole[r].defined() || (tears && !has_summands(whole[r]))) continue;
    const Gathered all = gathered(made[r], types[r], mesh, kBound);
    const Tensor got = tears ? where_finite(all.value, whole[r]) : all.value;
    const Tensor expected = tears ? where_finite(whole[r], whole[r]) : whole[r];
    compare(op, text_of(axes), r, got, expected, std::max({least, all.scale, largest(expected)}), all.alike);
  }
  return true;
}

void CutProof::compare(const ir::Op& op, const std::string& how, size_t result, const Tensor& got,
                       const Tensor& expected, double scale, bool alike) {
  const double apart = distance(got, expected, scale);
  double& most = distances_[std::string(op.opcode.row()->name)];
  most = std::max(most, apart);
  if (apart <= kBound && alike) return;
  wrong_.insert(concat(op.opcode, ", result ", result, ", ", how, ": ",
                       alike ? concat(apart, " from the whole's") : "another on each rank", ", as in ", ir::print(op)));
}

// Each operand by itself that no group of the row is.
void CutProof::look_for_linear(const ir::Op& op, const Tensors& operands, const Tensors& whole, const Kernel& kernel) {
  const ir::AccessMap* map = ir::map_of(op.opcode.row());
  if (!map || ir::draws(op)) return;
  for (size_t k = 0; k < operands.size(); ++k) {
    const auto says = [&](const std::vector<size_t>& group) {
      return std::ranges::find(group, k) != group.end() && std::ranges::none_of(group, [&](size_t other) {
               return other != k && other < operands.size() && operands[other].defined();
             });
    };
    if (!operands[k].defined() || !has_summands(operands[k]) || operands[k].numel() == 0) continue;
    if (std::ranges::any_of(map->linear, says)) continue;
    Tried& tried = tried_[concat(op.opcode, ' ', k)];
    if (!tried.held) continue;
    const Tensors summands = summands_of(operands[k], 2);
    Tensors parts = operands, first, second;
    try {
      parts[k] = summands[0];
      first = kernel(copies_of(parts));
      parts[k] = summands[1];
      second = kernel(copies_of(parts));
    } catch (const UserError&) {
      continue;
    }
    bool says_something = false;
    for (size_t r = 0; r < whole.size() && tried.held; ++r) {
      if (!whole[r].defined() || whole[r].numel() == 0) continue;
      const double scale = has_summands(whole[r]) ? largest(first[r]) + largest(second[r]) : 0;
      says_something |= scale > 0;
      tried.held = has_summands(whole[r]) && distance(first[r] + second[r], whole[r], scale) <= kBound;
    }
    tried.times += says_something ? 1 : 0;
  }
}

CutCounts& CutProof::counts_of(const ir::Op& op) { return counts_[std::string(op.opcode.row()->name)]; }

void CutCounts::add(const CutCounts& other) {
  calls += other.calls, no_kernel += other.no_kernel, refused += other.refused;
  cuts += other.cuts, torn += other.torn, searches += other.searches;
  for (size_t i = 0; i < kPairs; ++i) pairs[i] += other.pairs[i];
}

void CutProof::join(const CutProof& other) {
  wrong_.insert(other.wrong_.begin(), other.wrong_.end());
  for (const auto& [row, counts] : other.counts_) counts_[row].add(counts);
  for (const auto& [row, apart] : other.distances_) distances_[row] = std::max(distances_[row], apart);
  for (const auto& [what, tried] : other.tried_) {
    tried_[what].times += tried.times;
    tried_[what].held &= tried.held;
  }
}

std::set<std::string> CutProof::unclaimed() const {
  std::set<std::string> all;
  for (const auto& [what, tried] : tried_)
    if (tried.held && tried.times > 2) all.insert(what);
  return all;
}

}  // namespace sfsdp::testing
