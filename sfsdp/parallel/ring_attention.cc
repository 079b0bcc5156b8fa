// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/ring_attention.h"

#include <cstdint>
#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement, ir::Value;

constexpr Placement kOwn = Placement::shard(2);  // [B, heads, S, width]

// Where forward and backward have what they read.
struct Operands {
  bool backward;
  size_t query, key, value, documents;
};
Operands operands_of(const Op& op) {
  const bool backward = op.is("sdpa_backward");
  const size_t query = backward ? 1 : 0;
  return {backward, query, query + 1, query + 2, backward ? 6U : 3U};
}

class Ring {
 public:
  Ring(ir::Builder& build, Op& op, const MeshAxis& axis, Placements& placements)
      : op_(op), axis_(axis), placements_(placements), at_(operands_of(op)), place_(build.after(&op).like(op)) {}

  std::vector<Value*> forward() {
    Value *o = op_.result(0), *lse = op_.result(1);
    for (int64_t shift = 1; shift < axis_.size; ++shift) {
      const Op& part = attention(shift);
      const bool last = shift + 1 == axis_.size;
      const ir::Type type = last ? op_.result(0)->type() : ir::with_dtype(op_.result(0)->type(), lse->type().dtype);
      const Op* both = place_.op(
          "sdpa_merge", {o, lse, part.result(0), part.result(1)},
          {{named(op_.result(0), ".to", shift), type}, {named(op_.result(1), ".to", shift), op_.result(1)->type()}});
      o = own(both->result(0));
      lse = own(both->result(1));
    }
    return {o, lse};
  }

  // The gradients of a rank's keys travel home while it attends to the next ones, and are added after that. Sums are in the order of
  // memory, as casts are.
  std::vector<Value*> backward() {
    for (const auto& result : op_.results()) sums_.push_back(flat(result.get()));
    Terms travelled;
    for (int64_t shift = 1; shift < axis_.size; ++shift) {
      const Op& part = attention(shift);
      add(0, flat(part.result(0)), shift);
      Terms sent;
      for (const int r : {1, 2}) {
        Value* term = part.result(r);
        Placement placement = kOwn;
        Value* there = in_memory_order(place_, term, placement, placements_);
        Value* home = pass_on(place_, there, axis_, placement, axis_.size - shift, term->name() + ".home", placements_);
        sent.push_back({home, placement});
      }
      add_travelled(travelled, shift - 1);
      travelled = std::move(sent);
    }
    add_travelled(travelled, axis_.size - 1);
    std::vector<Value*> results;
    for (size_t r = 0; r < sums_.size(); ++r) {
      const Value& like = *op_.results()[r];
      Value* sum = placed(place_.cast(sums_[r].value, like.type().dtype), sums_[r].placement);
      results.push_back(out_of_memory_order(place_, sum, like, kOwn, like.name() + ".sum", placements_));
    }
    return results;
  }

 private:
  std::string named(const Value* value, const char* what, int64_t shift) const {
    return value->name() + what + std::to_string(shift);
  }
  Value* placed(Value* value, const Placement& placement) {
    placements_[value] = placement;
    return value;
  }
  Value* own(Value* value) { return placed(value, kOwn); }

  // In the order of memory.
  struct Term {
    Value* value;
    Placement placement;
  };
  using Terms = std::vector<Term>;
  Term wide(const Term& term) {
    return {placed(place_.cast(term.value, ir::wide(term.value->type().dtype)), term.placement), term.placement};
  }
  Term flat(Value* value) {
    Placement placement = kOwn;
    Value* made = in_memory_order(place_, value, placement, placements_);
    return wide({made, placement});
  }
  void add(size_t r, const Term& term, int64_t shift) {
    Value* sum = place_.value("aten.add.Tensor", {sums_[r].value, term.value}, term.value->type(),
                              named(op_.results()[r].get(), ".to", shift));
    sums_[r].value = placed(sum, term.placement);
  }
  void add_travelled(const Terms& travelled, int64_t shift) {
    for (size_t i = 0; i < travelled.size(); ++i) add(i + 1, wide(travelled[i]), shift);
  }

  // The op again, on keys and values of the rank so many before.
  const Op& attention(int64_t shift) {
    std::vector<Value*> operands = op_.operands;
    for (const size_t k : {at_.key, at_.value})
      operands[k] = pass_on(place_, operands[k], axis_, kOwn, shift, named(operands[k], ".from", shift), placements_);
    std::vector<ir::Graph::NewResult> results;
    for (const auto& result : op_.results()) results.push_back({named(result.get(), ".of", shift), result->type()});
    Op* made = place_.again(op_, operands, results);
    made->attrs["shift"] = shift;
    made->bwd_of = op_.bwd_of;
    for (const auto& result : made->results()) own(result.get());
    return *made;
  }

  Op& op_;
  const MeshAxis& axis_;
  Placements& placements_;
  const Operands at_;
  const ir::Builder::Place place_;
  Terms sums_;  // of backward, of each result
};

}  // namespace

std::string why_no_ring(const Op& op) {
  const Operands at = operands_of(op);
  const auto rows_of = [&](size_t k) { return op.operands[k]->type().dims[2].size; };
  const bool has_documents = op.attr_or("documents", false);
  if (!op.attr_or("is_causal", false)) return "is not causal";
  if (op.operands.size() > at.documents && op.operands[at.documents] && !has_documents) return "has a mask";
  if (ir::number_of(op, "dropout_p", 0) != 0) return "has dropout";
  if (rows_of(at.query) != rows_of(at.key))
    return concat("has ", rows_of(at.query), " queries and ", rows_of(at.key), " keys");
  return "";
}

std::optional<OpCut> ring_cut_of(const Op& op, const std::vector<Placement>& operands) {
  if (!op.is("sdpa", "sdpa_backward")) return std::nullopt;
  const Operands at = operands_of(op);
  if (operands[at.query] != kOwn) return std::nullopt;
  if (const std::string why = why_no_ring(op); !why.empty())
    throw UserError(concat("context_parallel: ", ir::opcode_at(op), ' ', why,
                           ", so that keys and values cannot go round\n  expected causal attention of a sequence to "
                           "itself, or another ContextParallelOptions::rotate_method"));
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size(), kOwn),
            .results = std::vector<Placement>(op.results().size(), kOwn)};
  if (operands.size() > at.documents) way.operands[at.documents] = kWhole;
  return way;
}

std::vector<Value*> make_ring(ir::Builder& build, Op& op, const MeshAxis& axis, const ContextParallelOptions& options,
                              Placements& placements) {
  op.attrs["axis"] = axis.name;
  op.attrs["shift"] = int64_t{0};
  if (options.load_balance) op.attrs["balanced"] = true;
  Ring ring(build, op, axis, placements);
  return op.is("sdpa") ? ring.forward() : ring.backward();
}

}  // namespace sfsdp::parallel
