// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/partition.h"

#include <array>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/constraints.h"
#include "sfsdp/parallel/expert_cuts.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/made_again.h"
#include "sfsdp/parallel/op_cuts.h"
#include "sfsdp/parallel/pad_vocabularies.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"
#include "sfsdp/parallel/refusals.h"
#include "sfsdp/parallel/ring_attention.h"
#include "sfsdp/parallel/rollout.h"
#include "sfsdp/parallel/sequence_cuts.h"
#include "sfsdp/parallel/take_biases_apart.h"
#include "sfsdp/parallel/vocabulary_cuts.h"

namespace sfsdp::parallel {
namespace {

using ir::Graph, ir::Op, ir::Placement, ir::Value;

constexpr double kImpossible = std::numeric_limits<double>::infinity();

class Partitioner {
 public:
  Partitioner(Graph& graph, MeshAxis axis, const std::map<std::string, int64_t>& cuts,
              const TensorParallelOptions& options, const ContextParallelOptions* context, int64_t inner,
              const ExpertParallelOptions& expert)
      : graph_(graph),
        axis_(std::move(axis)),
        cuts_(cuts),
        options_(options),
        context_(context),
        inner_(inner),
        expert_(expert),
        wanted_rows_(context && expert.dispatch != DispatchMethod::Gather ? find_wanted_rows(graph, cuts)
                                                                          : WantedRows()),
        build_(graph) {
    std::unordered_map<const Value*, Placement> held;
    for (const ConstrainedValue& one : find_constrained(graph, options.constraints, axis_.size)) {
      constrained_.emplace(one.value, one);
      held.emplace(one.value, one.placement);
    }
    if (!context_) rollout_.emplace(graph, cuts_, options_, axis_.size, std::move(held));
  }

  // ---- for MadeAgain

  Placement placement_of(const Value* value) const {
    const auto found = placements_.find(value);
    return found == placements_.end() ? kWhole : found->second;
  }
  bool is_whole_made(const Value* value) const { return is_made(value, kWhole, false); }
  bool is_whole_alike(const Value& value) const {
    return is_whole_made(&value) && made_.at(&value).at(key_of(kWhole))->type().strides == value.type().strides;
  }
  const std::vector<Value*>& operands_of(const Op& op) const {
    return rollout_ && rollout_->knows(op) ? rollout_->operands_of(op) : op.operands;
  }

  PartitionReport run() {
    std::vector<Op*> ops;
    for (const auto& op : graph_.ops()) ops.push_back(op.get());
    const auto first = std::ranges::find_if(ops, [](const Op* op) { return !ir::is_root(*op); });
    first_ = first == ops.end() ? nullptr : *first;
    for (Op* op : ops) {
      for (Value*& operand : op->operands) operand = instead_of(operand);
      visit(*op);
      if (!constrained_.empty()) constrain(*op);
    }
    for (Value*& output : graph_.outputs) output = lying(instead_of(output), kWhole, nullptr);
    for (ir::Carry& carry : graph_.carries)
      carry.next = lying(instead_of(carry.next), placement_of(carry.current), nullptr);
    build_.apply();
    localise(graph_, axis_, placements_, rooms_);
    check_padded(graph_);
    return report_;
  }

 private:
  // What later ops read in place of a value: a rank's part of an input, a mean that was made of sums.
  Value* instead_of(Value* value) const {
    const auto found = instead_.find(value);
    return found == instead_.end() ? value : found->second;
  }

  // The dimension that is the sequence of the step's next input, or the batch; -1: none.
  int64_t token_dim(const Value& input) {
    const std::vector<int64_t>& given = context_->sequence_dims;
    const auto rank = std::ssize(input.type().dims);
    const size_t index = inputs_++;
    const int64_t usual = is_expert_axis(axis_.name) ? 0 : 1;
    if (given.empty()) return rank > usual ? usual : -1;
    const int64_t dim = index < given.size() ? given[index] : rank;
    if (dim >= -1 && dim < rank) return dim;
    throw UserError(concat(
        verb_of(axis_.name),
        is_expert_axis(axis_.name) ? "DataParallelOptions::batch_dims = " : "ContextParallelOptions::sequence_dims = ",
        ir::Attr(given), ", and input ", index, " is ", input.type(),
        "\n  expected one of its dimensions for each tensor of the batch, or -1: none"));
  }

  void cut_tokens(Op& op) {
    const int64_t dim = token_dim(*op.result());
    if (dim < 0) return;
    const int64_t size = op.result()->type().dims[static_cast<size_t>(dim)].size;
    if (size % granule() != 0)
      throw UserError(concat(
          verb_of(axis_.name),
          is_expert_axis(axis_.name) ? concat("the batch of ", size, " samples")
                                     : concat("the sequence of ", size, " tokens"),
          " of %", op.result()->name(), " over ", axis_.name, " = ", axis_.size, "\n  expected a multiple of ",
          granule(),
          context_->load_balance && size % axis_.size == 0 ? ", or no ContextParallelOptions::load_balance" : ""));
    Value* whole = op.result();
    Value* part = lying(whole, Placement::shard(dim), first_);
    made_[part][key_of(kWhole)] = whole;
    instead_[whole] = part;
  }

  // What cut sizes have to be multiples of: as many chunks as head and tail have.
  int64_t granule() const { return context_ && context_->load_balance ? 2 * axis_.size : axis_.size; }

  void visit(Op& op) {
    if (context_ && first_ && op.is("input")) return cut_tokens(op);
    if (op.is("param")) {
      const auto cut = cuts_.find(op.attr<std::string>("name"));
      if (cut == cuts_.end()) return;
      placements_[op.result()] = Placement::shard(cut->second);
      if (context_) op.attrs["box"] = axis_.name;
      return;
    }
    if (ir::is_root(op)) return;
    if (op.is("gradient")) return gradient(op);
    if (!op.is("sdpa_backward"))
      for (Value*& operand : op.operands)
        if (by_heads_.contains(operand)) operand = lying(operand, Placement::shard(2), &op);
    std::vector<Placement> operands;
    for (const Value* operand : op.operands) operands.push_back(operand ? placement_of(operand) : kWhole);
    const Choice chosen = choose(op, operands);
    const OpCut& way = chosen.way;
    const std::vector<Value*> given = op.operands;
    if (rollout_) check_blocks(op, operands, axis_);
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (op.operands[k] && way.operands[k])
        op.operands[k] = lying(op.operands[k], *way.operands[k], &op, chosen.named == Named::Heads);
    for (size_t r = 0; r < way.results.size(); ++r)
      if (way.results[r] != kWhole) placements_[op.results()[r].get()] = way.results[r];
    if (context_) set_hints(op, given, operands, way);
    if (chosen.named == Named::Heads)
      for (const auto& result : op.results()) by_heads_.insert(result.get());
    if (chosen.named == Named::Experts) op.operands[2] = own_ends(op.operands[2], op);
    if (chosen.named == Named::Exchange) exchange(op, way);
    if (chosen.named == Named::Vocabulary) {
      if (op.is("cross_entropy")) count_parts_of_loss(op);
      lower_to_own_part(op, build_.before(&op).like(op), axis_, placements_);
    } else if (chosen.named == Named::Sequence) {
      if (is_mean_of_rows(op)) divide_by_count(op);
      lower_to_own_tokens(op, axis_, *context_);
    } else if (chosen.named == Named::Ring) {
      send_round(op);
    }
  }

  // What a module gives lies as the user wants it, for all that read it.
  void constrain(const Op& op) {
    for (const auto& result : op.results()) {
      const auto found = constrained_.find(result.get());
      if (found == constrained_.end()) continue;
      Value* made = instead_of(result.get());
      const ConstrainedValue one = found->second;
      report_.constrained.push_back({op.module_path, op.opcode.str(), to_string(*one.constraint),
                                     text_of(placement_of(made)), text_of(one.placement)});
      const size_t moves = report_.moves.size();
      Value* held = lying(made, one.placement, nullptr);
      for (size_t i = moves; i < report_.moves.size(); ++i) report_.moves[i].reader = to_string(*one.constraint);
      if (held != result.get()) {
        instead_[result.get()] = held;
        constrained_.emplace(held, one);
      }
    }
  }

  // Keys and values go round, the gradients of both home.
  void send_round(Op& op) {
    const std::vector<Value*> made = make_ring(build_, op, axis_, *context_, placements_);
    const size_t keys = op.is("sdpa_backward") ? 2 : 1;
    for (const size_t k : {keys, keys + 1}) report_move("permute", *op.operands[k], &op);
    for (size_t r = 0; r < made.size(); ++r) {
      instead_[op.results()[r].get()] = made[r];
      if (keys == 1 || r == 0) continue;
      report_move("permute", *op.results()[r], &op);
      report_.moves.back().reader = "the rank of these keys";
    }
  }

  // The mean over all ranks' rows, of sums and counts.
  void divide_by_count(Op& op) {
    Value *sum = lying(op.result(0), kWhole, nullptr), *count = lying(op.result(1), kWhole, nullptr);
    instead_[op.result(0)] =
        build_.after(&op).like(op).value("div", {sum, count}, sum->type(), op.result(0)->name() + ".mean");
  }

  // Three numbers a row from each rank.
  void count_parts_of_loss(const Op& op) {
    report_.moves.push_back({.opcode = "all_gather",
                             .path = op.module_path,
                             .reader = "cross_entropy_of_parts",
                             .reader_path = op.module_path,
                             .section = op.section,
                             .bytes = 12 * axis_.size * op.operands[0]->type().dims[0].size});
  }

  // Which of the graph's offsets these are, from 1 on.
  int64_t number_of(Value* ends) {
    const auto found = std::ranges::find(ends_, ends);
    if (found != ends_.end()) return found - ends_.begin() + 1;
    ends_.push_back(ends);
    return std::ssize(ends_);
  }

  // Where the groups of a rank end within its rows.
  Value* own_ends(Value* ends, const Op& reader) {
    Value*& made = own_ends_[ends];
    if (made) return made;
    made = build_.after(ends->producer())
               .like(reader)
               .in(ends->producer()->section)
               .value("own_ends", {ends}, ends->type(), ends->name() + ".own", {{"axis", axis_.name}});
    if (const auto room = rooms_.find(number_of(ends)); room != rooms_.end())
      made->producer()->attrs["room"] = room->second;
    placements_[made] = Placement::shard(0);
    return made;
  }

  // Where the groups of the rows end that a product wants of the op, or of those that it reads.
  Value* ends_of(const Op& op, const std::vector<Placement>& operands) const {
    const auto rows = rows_operand(op);
    if (!rows) return nullptr;
    if (is_rows(operands[*rows])) return ends_[static_cast<size_t>(operands[*rows].blocks - 1)];
    const auto wanted = wanted_rows_.find(op.result());
    return wanted == wanted_rows_.end() ? nullptr : instead_of(wanted->second);
  }

  bool asks_for_exchange() const { return expert_.capacity > 0 || expert_.dispatch == DispatchMethod::Exchange; }

  // A mixture's rows are all sent in one way: as the first op that picks some of them.
  std::optional<OpCut> way_of_rows(const Op& op, const std::vector<Placement>& operands) {
    Value* ends = ends_of(op, operands);
    if (!ends || placement_of(ends) != kWhole) return std::nullopt;
    const bool picks = wanted_rows_.contains(op.result());
    auto way = exchange_cut_of(op, operands, picks ? number_of(ends) : 0, axis_.size);
    if (way && picks && op.section == ir::Section::Fwd &&
        (asks_for_exchange() || exchanges_less(op, operands, axis_.size)))
      exchanged_.insert(ends);
    return exchanged_.contains(ends) ? way : std::nullopt;
  }

  void exchange(Op& op, const OpCut& way) {
    const bool to_rows = is_rows(way.results[0]);
    const int64_t number = (to_rows ? way.results[0] : *way.operands[*rows_operand(op)]).blocks;
    Value* ends = ends_[static_cast<size_t>(number - 1)];
    Value* index = lying(instead_of(row_index(op)), kWhole, &op);
    Value* made = make_exchange(build_.before(&op).like(op), op, index, ends, axis_.name, to_rows);
    if (const int64_t room = room_of(ir::rows_of_groups(*made->producer()), axis_.size, expert_.capacity)) {
      made->producer()->attrs["room"] = room;
      rooms_[number] = room;
    }
    report_.moves.push_back({.opcode = "all_to_all_v",
                             .path = op.operands[*rows_operand(op)]->producer()->module_path,
                             .reader = op.opcode.str(),
                             .reader_path = op.module_path,
                             .section = op.section,
                             .bytes = index->type().numel() * bytes_of_row(made->type())});
    placements_[made] = way.results[0];
    instead_[op.result()] = made;
    build_.take_place(op.result(), made);
    build_.erase(&op);
  }
  static int64_t bytes_of_row(const ir::Type& type) { return type.bytes() / std::max<int64_t>(type.dims[0].size, 1); }

  // The op becomes what vocabulary_cuts.h, sequence_cuts.h or expert_cuts.h has; attention of a part of the heads stays what it is.
  enum class Named : uint8_t { No, Vocabulary, Sequence, Ring, Heads, Experts, Exchange };
  struct Choice {
    OpCut way;
    Named named = Named::No;
  };

  Choice choose(const Op& op, const std::vector<Placement>& operands) {
    check_has_rule(op, operands);
    if (rollout_) {
      Rollout::Way way = rollout_->choose(op);
      return {std::move(way.cut), way.of_vocabulary ? Named::Vocabulary : Named::No};
    }
    std::vector<Choice> ways;
    if (op.is("aten._grouped_mm") && op.operands[2] && placement_of(op.operands[2]) == kWhole)
      if (auto way = expert_cut_of(op, operands, number_of(op.operands[2]))) return {std::move(*way), Named::Experts};
    if (auto way = way_of_rows(op, operands)) return {std::move(*way), Named::Exchange};
    const RotateMethod method = method_of(op);
    if (op.is("sdpa", "sdpa_backward") && may_exchange_heads(op, operands)) {
      auto way = head_cut_of(op, axis_.size, inner_);
      if (!way && method == RotateMethod::AllToAll) throw_no_heads(op, graph_.mesh, axis_, inner_);
      if (way) ways.push_back({std::move(*way), Named::Heads});
      if (way && (op.is("sdpa_backward") || method == RotateMethod::AllToAll)) return std::move(ways[0]);
    }
    if (method == RotateMethod::Ring)
      if (auto way = ring_cut_of(op, operands)) return {std::move(*way), Named::Ring};
    if (auto way = sequence_cut_of(op, operands)) ways.push_back({std::move(*way), Named::Sequence});
    for (OpCut& way : cuts_of(op, operands, granule())) ways.push_back({std::move(way)});
    if (const auto hinted = with_hints(op.operands, operands))
      for (OpCut& way : cuts_of(op, *hinted, granule())) ways.push_back({std::move(way)});
    if (std::ranges::any_of(operands, is_rows))
      for (OpCut& way : cuts_of(op, with_rows_as_summands(operands), granule())) ways.push_back({std::move(way)});
    std::optional<Choice> best;
    double least = kImpossible;
    for (Choice& choice : ways) {
      const double cost = cost_of_way(op, operands, choice);
      if (cost >= least) continue;
      least = cost;
      best = std::move(choice);
    }
    SFSDP_CHECK(best, op.opcode, " cannot be cut, nor left whole");
    return std::move(*best);
  }

  RotateMethod method_of(const Op& op) const {
    if (context_->methods.empty() || op.results().empty()) return context_->rotate_method;
    const auto chosen = context_->methods.find(op.result()->name());
    return chosen == context_->methods.end() ? context_->rotate_method : chosen->second;
  }

  // Backward as its forward has.
  bool may_exchange_heads(const Op& op, const std::vector<Placement>& operands) const {
    if (op.is("sdpa_backward")) return by_heads_.contains(op.operands[5]);
    const auto tokens = [&](size_t k) { return op.operands[k]->type().dims[2].size; };
    const RotateMethod method = method_of(op);
    return (method == RotateMethod::AllToAll || method == RotateMethod::Auto) && operands[0] == Placement::shard(2) &&
           tokens(0) == tokens(1);
  }

  static std::vector<Placement> with_rows_as_summands(std::vector<Placement> operands) {
    std::ranges::replace_if(operands, is_rows, kSum);
    return operands;
  }

  // Summands of keys and values are best reduced to a rank's part of the sequence, what experts give to its tokens; which dimension
  // that is goes with them.
  std::optional<std::vector<Placement>> with_hints(const std::vector<Value*>& values,
                                                   const std::vector<Placement>& operands) const {
    std::vector<Placement> hinted = operands;
    bool any = false;
    for (size_t k = 0; k < values.size(); ++k) {
      const auto found = hints_.find(values[k]);
      if (found == hints_.end() || operands[k] != kSum) continue;
      hinted[k] = found->second;
      any = true;
    }
    return any ? std::optional(hinted) : std::nullopt;
  }

  void set_hints(const Op& op, const std::vector<Value*>& values, const std::vector<Placement>& operands,
                 const OpCut& way) {
    if (op.is("sdpa_backward") && way.results[1] == kSum) {
      for (const int r : {1, 2}) hints_[op.result(r)] = Placement::shard(2);
      return;
    }
    for (size_t k = 0; k < operands.size(); ++k)  // rows that are put in the order of the tokens
      if (is_rows(operands[k]) && way.operands[k] == kSum && way.results[0] == kSum)
        hints_[op.result(0)] = Placement::shard(0);
    const auto hinted = with_hints(values, operands);
    if (!hinted) return;
    for (const OpCut& cut : cuts_of(op, *hinted, granule()))
      for (size_t r = 0; r < way.results.size(); ++r)
        if (way.results[r] == kSum && cut.results[r].kind == Placement::Kind::Shard)
          hints_.emplace(op.results()[r].get(), cut.results[r]);
  }

  // What is added up, for another op or another operand, is not taken for a summand too: it would be added up twice.
  double cost_of_way(const Op& op, const std::vector<Placement>& operands, const Choice& choice) const {
    const OpCut& way = choice.way;
    const bool heads = choice.named == Named::Heads;
    // What forward leaves for this op alone has a form of its own, of which its type says nothing: it stays as it lies.
    const auto left = ir::operand_left_by_forward(op.opcode);
    if (left && way.operands[*left] && *way.operands[*left] != operands[*left]) return kImpossible;
    double cost = 0;
    if (heads)  // what attention gives goes back
      cost += static_cast<double>(op.result(0)->type().bytes()) / static_cast<double>(axis_.size);
    std::map<const Value*, Placement> wanted;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Value* operand = op.operands[k];
      if (!operand || !way.operands[k]) continue;
      const auto [first, is_first] = wanted.emplace(operand, *way.operands[k]);
      if (first->second != *way.operands[k] && operands[k] == kSum) return kImpossible;
      if (*way.operands[k] == kSum && operands[k] == kSum && made_.contains(operand)) return kImpossible;
      if (is_first && !is_made(operand, *way.operands[k], heads))
        cost += *way.operands[k] == kWhole && is_cut(operands[k])
                    ? MadeAgain(*this).cost_of_whole(*operand)
                    : redistribution_cost(*operand, operands[k], *way.operands[k], axis_.size);
    }
    return cost;
  }

  // Where a summand was made whole, or a part, for another op, to take a part of that, or to gather it, sends less than to add up again.
  Value* better_source(const Value* value, const Placement& wanted) const {
    const auto made = made_.find(value);
    if (!rollout_ || placement_of(value) != kSum || made == made_.end()) return nullptr;
    for (const auto& [key, source] : made->second)
      if (source && is_cut(wanted) ? placement_of(source) == kWhole
                                   : source && wanted == kWhole && is_cut(placement_of(source)))
        return source;
    return nullptr;
  }

  Value* make_again(Value* value, Op* reader) {
    const Op& op = *value->producer();
    std::vector<Value*> operands;
    for (Value* operand : operands_of(op)) operands.push_back(operand ? lying(operand, kWhole, reader) : nullptr);
    return build_.before(reader)
        .like(op)
        .in(reader->section)
        .again(op, operands, {{value->name() + ".whole", value->type()}})
        ->result();
  }

  // Whether the value lies so already, for another op.
  bool is_made(const Value* value, const Placement& wanted, bool heads) const {
    const auto found = made_.find(value);
    if (found == made_.end()) return false;
    const auto made = found->second.find(key_of(wanted, heads));
    return made != found->second.end() && made->second;  // not while it is being made
  }
  using Key = std::array<int64_t, 3>;
  static Key key_of(const Placement& placement, bool heads = false) {
    if (placement == kWhole || placement == kSum) return {placement == kWhole ? -1 : -2, 1, 0};
    return {placement.dim, placement.blocks, is_rows(placement) ? 2 : heads ? 1 : 0};
  }

  void check_has_rule(const Op& op, const std::vector<Placement>& operands) const {
    if (has_rule(op)) return;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (!is_cut(operands[k])) continue;
      const auto constrained = constrained_.find(op.operands[k]);
      throw_no_rule(op, k, operands[k], axis_.name, options_.sequence_parallel,
                    constrained == constrained_.end() ? nullptr : constrained->second.constraint);
    }
  }

  // As its parameter lies. Summands are left to data_parallel, which reduces them with what ranks have of other samples.
  void gradient(Op& op) {
    if (rollout_) rollout_->take_gradient(op);
    const auto cut = cuts_.find(op.attr<std::string>("param"));
    Placement wanted = cut == cuts_.end() ? kWhole : Placement::shard(cut->second);
    if (wanted == kWhole && placement_of(op.operands[0]) == kSum) wanted = kSum;
    if (context_ && is_cut(wanted) && placement_of(op.operands[0]) == kSum)
      throw UserError(concat(verb_of(axis_.name), cut->first, " is read by ops that leave its gradient a sum over ",
                             axis_.name, "\n  expected products of groups (_grouped_mm) alone to read it, or ",
                             "ExpertParallelOptions::experts without it"));
    op.operands[0] = lying(op.operands[0], wanted, &op);
    // Where the sequence is cut, data_parallel reduces all gradients over the axis; this one each rank has whole.
    if (context_ && wanted == kWhole) {
      Value* value = op.operands[0];
      ir::Type type = value->type();
      type.strides.clear();
      op.operands[0] = build_.before(&op)
                           .like(*value->producer())
                           .value("as_summand", {value}, type, value->name() + ".once", {{"axis", axis_.name}});
      placements_[op.operands[0]] = wanted = kSum;
    }
    if (wanted != kWhole) placements_[op.result()] = wanted;
  }

  // The value as it has to lie, made where it is first asked for. reader: nullptr: the step, or the next one; heads: a cut is one of
  // heads, in their order, whatever parts of the sequence are
  Value* lying(Value* value, const Placement& wanted, Op* reader, bool heads = false) {
    const Placement from = placement_of(value);
    heads &= is_cut(wanted);
    if (from == wanted && heads == by_heads_.contains(value)) return value;
    SFSDP_CHECK(wanted != kSum || is_rows(from), "%", value->name(), " is ", text_of(from), ", and is to be a summand");
    Value*& made = made_[value][key_of(wanted, heads)];
    if (!made) made = make(value, from, wanted, reader, heads);
    return made;
  }

  Value* make(Value* value, const Placement& from, const Placement& wanted, Op* reader, bool heads) {
    // Over a tensor axis a product of parts that were exchanged would leave a summand of a weight's gradient, which is sent too.
    if (is_cut(wanted) && is_cut(from) && !(context_ && moves_by_exchange(*value, from, wanted)))
      return lying(lying(value, kWhole, reader), wanted, reader, heads);
    if (Value* source = better_source(value, wanted)) return lying(source, wanted, reader);
    if (wanted == kWhole && is_cut(from) && context_) check_no_expert(axis_.name, *value, reader);
    if (wanted == kWhole && reader && MadeAgain(*this).is_made_again(*value)) return make_again(value, reader);
    if (is_rows(wanted) && from != kWhole) return lying(lying(value, kWhole, reader), wanted, reader);
    if (is_rows(from) && wanted != kSum) return lying(lying(value, kSum, reader), wanted, reader);
    const auto place = (reader ? build_.before(reader) : build_.after(value->producer())).like(*value->producer());
    const auto here = reader ? place.in(reader->section) : place;
    if (is_rows(from) || is_rows(wanted)) return take_rows(here, value, from, wanted, reader);
    const char* opcode = wanted == kWhole ? (from == kSum ? "all_reduce" : "all_gather")
                         : is_cut(from)   ? "all_to_all"
                                          : (from == kSum ? "reduce_scatter" : "own_part");
    if (from != kWhole) check_no_rows(axis_.name, *value, reader);
    report_move(opcode, *value, reader);
    if (reader && is_cut(from)) report_.moves.back().cure = cure_by_blocks(*reader, from);
    const bool balanced = context_ && context_->load_balance;
    Value* made = redistribute(here, value, axis_, from, wanted, placements_,
                               {.before = balanced && !by_heads_.contains(value), .after = balanced && !heads});
    if (heads) by_heads_.insert(made);
    if (from == kWhole) made_[made][key_of(kWhole)] = value;
    return made;
  }

  void report_move(const char* opcode, const Value& value, const Op* reader) {
    report_.moves.push_back({.opcode = opcode,
                             .path = value.producer()->module_path,
                             .reader = reader ? reader->opcode.str() : "the step",
                             .reader_path = reader ? reader->module_path : "",
                             .section = reader ? reader->section : value.producer()->section,
                             .bytes = value.type().bytes()});
  }

  // A rank's rows of a matrix that was turned: first the rows, then turned, so that it lies in memory as before. Else its rows would be its
  // columns there, any number of bytes long, where products of groups take multiples of 16. nullptr: it was not turned.
  Value* turned_rows(const ir::Builder::Place& place, Value* value, const Placement& wanted, Op* reader) {
    const Op& turn = *value->producer();
    if (!is_rows(wanted) || !turn.is("aten.transpose.int", "aten.t") || value->type().dims.size() != 2) return nullptr;
    if (value->type().strides.empty()) return nullptr;
    Value* rows = lying(operands_of(turn)[0], Placement::rows(1 - wanted.dim, wanted.blocks), reader);
    Value* made = place.again(turn, {rows}, {{value->name() + ".own", value->type()}})->result();
    placements_[made] = wanted;
    return made;
  }

  // A rank's rows of what is whole, or a summand of its rows.
  Value* take_rows(const ir::Builder::Place& place, Value* value, const Placement& from, const Placement& wanted,
                   Op* reader) {
    const Placement& rows = is_rows(from) ? from : wanted;
    if (is_rows(wanted) && asks_for_exchange()) throw_not_exchanged(axis_.name, *value, reader);
    if (rooms_.contains(rows.blocks)) throw_no_room(axis_.name, *value, reader);
    if (Value* turned = turned_rows(place, value, wanted, reader)) return turned;
    ir::Type type = value->type();
    type.strides.clear();
    Value* ends = ends_[static_cast<size_t>(rows.blocks - 1)];
    Value* made =
        place.value(is_rows(from) ? "spread_rows" : "own_rows", {value, ends}, type,
                    value->name() + (is_rows(from) ? ".spread" : ".own"), {{"axis", axis_.name}, {"dim", rows.dim}});
    placements_[made] = wanted;
    return made;
  }

  Graph& graph_;
  const MeshAxis axis_;
  const std::map<std::string, int64_t>& cuts_;
  const TensorParallelOptions& options_;
  const ContextParallelOptions* const context_;
  const int64_t inner_;
  const ExpertParallelOptions& expert_;
  const WantedRows wanted_rows_;
  std::unordered_map<const Value*, ConstrainedValue> constrained_;  // and what they are made to be
  ir::Builder build_;
  std::optional<Rollout> rollout_;                                // over a tensor axis
  Placements placements_;                                         // of what is not whole
  std::unordered_map<const Value*, std::map<Key, Value*>> made_;  // of a value, by dimension, blocks, heads; -1: whole
  std::unordered_map<const Value*, Value*> instead_;
  std::unordered_map<const Value*, Placement> hints_;  // of summands
  std::unordered_set<const Value*> by_heads_;          // what is cut in heads, in their order
  std::vector<Value*> ends_;                           // of groups, whole: those that a rank has some of
  std::unordered_map<const Value*, Value*> own_ends_;  // by these
  std::unordered_set<const Value*> exchanged_;         // those whose rows are sent to their ranks alone
  Rooms rooms_;                                        // for their rows, where not for all
  Op* first_ = nullptr;                                // that is no root
  size_t inputs_ = 0;                                  // of the step, that were met
  PartitionReport report_;
};

}  // namespace

PartitionReport partition(Graph& graph, const MeshAxis& axis, const std::map<std::string, int64_t>& cuts,
                          const TensorParallelOptions& options, const ContextParallelOptions* context, int64_t inner,
                          const ExpertParallelOptions& expert) {
  take_biases_apart(graph, cuts);
  if (!context) pad_vocabularies(graph, cuts, axis, options.loss_parallel);
  return Partitioner(graph, axis, cuts, options, context, inner, expert).run();
}

}  // namespace sfsdp::parallel
