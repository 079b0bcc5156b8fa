// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/padding.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/plan/cuts.h"

namespace sfsdp::plan {
namespace {

using ir::ClauseParts, ir::FactorPart, ir::Op, ir::Value;

struct Padding {
  size_t dim = 0;
  int64_t whole = 0;  // what is there of it on all ranks
  bool zero = true;
};

class PaddingChecker {
 public:
  PaddingChecker(const ir::Graph& graph, const MeshAxis& axis) : graph_(graph), axis_(axis) {}

  std::string check() {
    for (const auto& op : graph_.ops())
      if (std::string wrong = visit(*op); !wrong.empty()) return wrong;
    for (const Value* output : graph_.outputs)
      if (padding_of(output)) return error(*output->producer(), "the step returns padding", "expected what is there");
    return "";
  }

 private:
  std::string error(const Op& op, const std::string& what, const std::string& cure) const {
    return concat("over ", axis_.name, ": ", what, "\n    ", ir::print(op), "\n  ", cure);
  }
  const Padding* padding_of(const Value* value) const {
    const auto found = value ? paddings_.find(value) : paddings_.end();
    return found == paddings_.end() ? nullptr : &found->second;
  }
  bool over_this_axis(const Op& op) const {
    const auto axes = ir::axes_of(op);
    return axes && std::ranges::find(*axes, axis_.name) != axes->end();
  }

  std::string visit(const Op& op) {
    if (op.is("param")) return param(op);
    if (op.is("view") && op.has_attr("offset")) return member(op);
    if (!op.operands.empty() && buckets_.contains(op.operands[0]) && !ir::is_update(op)) return pass_bucket(op);
    if (over_this_axis(op) && op.is("embedding_backward")) return table_gradient(op);
    if (over_this_axis(op) && op.is("embedding")) return counted(op, 0, 0, "num_weights");
    if (over_this_axis(op) && op.is("cross_entropy_parts")) return counted(op, 0, 1, "classes");
    if (over_this_axis(op) && op.is("cross_entropy_backward")) {
      std::string wrong = counted(op, 1, 1, "classes");
      if (wrong.empty() && op.has_attr("classes")) paddings_[op.result()] = {1, op.attr<int64_t>("classes"), true};
      return wrong;
    }
    const auto first = std::ranges::find_if(op.operands, [&](const Value* value) { return padding_of(value); });
    return first == op.operands.end() ? "" : of_padded(op, *padding_of(*first));
  }

  // ---- roots and buckets

  std::string param(const Op& op) {
    if (op.has_attr("vocabulary")) paddings_[op.result()] = {0, op.attr<int64_t>("vocabulary"), true};
    if (op.has_attr("cuts")) buckets_[op.result()] = &op;
    return "";
  }
  // Elements of a bucket stay in their places.
  std::string pass_bucket(const Op& op) {
    if (ir::is_collective(op) || op.is("cast", "wait"))
      for (const auto& result : op.results()) buckets_[result.get()] = buckets_.at(op.operands[0]);
    return "";
  }
  std::string member(const Op& op) {
    const auto bucket = buckets_.find(op.operands[0]);
    if (bucket == buckets_.end()) return "";
    const auto& offsets = bucket->second->attr<std::vector<int64_t>>("offsets");
    const auto found = std::ranges::find(offsets, op.attr<int64_t>("offset"));
    if (found == offsets.end()) return "";
    const auto& cuts = bucket->second->attr<std::vector<std::string>>("cuts");
    for (const MemberCut& cut : parse_member_cuts(cuts[static_cast<size_t>(found - offsets.begin())]))
      if (cut.axis == axis_.name && cut.whole > 0)
        paddings_[op.result()] = {static_cast<size_t>(cut.dim), cut.whole, true};
    return "";
  }

  // ---- ops over a vocabulary

  // The attribute says how many of the operand's rows or classes there are, on all ranks.
  std::string counted(const Op& op, size_t operand, size_t dim, const char* name) const {
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Padding* at = padding_of(op.operands[k]);
      if (at && (k != operand || at->dim != dim))
        return error(op, concat("operand ", k, " is padded in dimension ", at->dim), "expected what is there");
    }
    const Padding* at = padding_of(op.operands[operand]);
    const int64_t all = op.operands[operand]->type().dims[dim].size * axis_.size;
    const int64_t there = at ? at->whole : all, said = op.attr_or(name, all);
    if (said == there) return "";
    return error(op, concat(name, " are ", said, ", and ", there, " are there, ", all - there, " of padding"),
                 concat("expected ", name, "=", there));
  }
  std::string table_gradient(const Op& op) {
    const auto rows = op.attr<int64_t>("num_weights");
    if (rows % axis_.size != 0) paddings_[op.result()] = {0, rows, true};
    return "";
  }

  // ---- other ops

  std::string of_padded(const Op& op, const Padding& at) {
    if (op.is("gradient", "pack") || ir::is_update(op) || op.is("sum_squares")) return leave(op, at);
    if (ir::is_collective(op) && over_this_axis(op))
      return error(op, "padding is sent with what is there", "expected it to stay on its rank");
    if (ir::is_collective(op) || op.is("cast", "wait", "narrow", "pad")) return set(op, at);
    if (op.is("own_part", "join_parts", "add_parts")) return of_rows(op, at);
    if (ir::has_flag(op, ir::kPermute))
      return set(op, {static_cast<size_t>(ir::permuted_dim(op, static_cast<int64_t>(at.dim))), at.whole, at.zero});
    if (ir::has_flag(op, ir::kReshape)) return reshape(op, at);
    return by_map(op);
  }
  std::string set(const Op& op, const Padding& at) {
    for (const auto& result : op.results()) paddings_[result.get()] = at;
    return "";
  }
  // Rows of ranks are taken or put together, each with the padding of the others.
  std::string of_rows(const Op& op, const Padding& at) {
    Padding all = at;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Padding* other = padding_of(op.operands[k]);
      if (!other || other->dim != at.dim || other->whole != at.whole)
        return error(op, concat("operand ", k, " has no padding where another one has"), "expected the same of all");
      all.zero &= other->zero;
    }
    const auto* dim = op.find_attr<int64_t>("dim");
    if (dim && static_cast<size_t>(*dim) == at.dim)
      return error(op, "a padded dimension is cut or put together", "expected another dimension's parts");
    return set(op, all);
  }
  // Into what is stored, carried on or counted in the norm.
  std::string leave(const Op& op, const Padding& at) {
    if (std::ranges::any_of(op.operands, [&](const Value* value) {
          const Padding* padding = padding_of(value);
          return padding && !padding->zero;
        }))
      return error(op, "the padding of a gradient is not 0", "expected that of a loss that does not count it");
    return op.is("gradient") ? set(op, at) : "";
  }

  std::string reshape(const Op& op, const Padding& at) {
    const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
    const auto before = [](const std::vector<int64_t>& shape, size_t dim) {
      int64_t elements = 1;
      for (size_t d = 0; d < dim; ++d) elements *= shape[d];
      return elements;
    };
    for (size_t d = to.size(); d-- > 0;)
      if (to[d] == from[at.dim] && before(to, d) == before(from, at.dim)) return set(op, {d, at.whole, at.zero});
    return error(op, "a padded dimension is joined or taken apart", "expected it to stay one by itself");
  }

  // A factor of the clause that an operand is padded in.
  std::optional<FactorPart> factor_of(const Op& op, const ClauseParts& clause) const {
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (const Padding* at = padding_of(op.operands[k]); at && clause.operands[k])
        for (const FactorPart& part : *clause.operands[k])
          if (part.dim == at->dim && part.size == op.operands[k]->type().dims[part.dim].size) return part;
    return std::nullopt;
  }

  // The op is linear in operands that are 0 there, so that its results are; a number, such as an adapter's scale, multiplies them, or
  // the slope of a cap, which is finite.
  bool is_zero(const Op& op, const ClauseParts& clause, const FactorPart& factor) const {
    if (op.is("aten.mul.Scalar", "aten.tanh_backward", "aten.sigmoid_backward"))
      return padding_of(op.operands[0]) && padding_of(op.operands[0])->zero;
    const ir::AccessMap* map = ir::map_of(op.opcode.row());
    return map && std::ranges::any_of(map->linear, [&](const std::vector<size_t>& group) {
             for (size_t k = 0; k < op.operands.size(); ++k) {
               if (!op.operands[k] || !clause.operands[k]) continue;
               const Padding* at = padding_of(op.operands[k]);
               const bool is_one = std::ranges::find(group, k) != group.end();
               // 0 times what was made of padding need not be 0: the slope of a logarithm there is none.
               if (is_one ? !at || !at->zero || !ir::find_part(*clause.operands[k], factor) : at && !at->zero)
                 return false;
             }
             return true;
           });
  }

  std::string by_map(const Op& op) {
    bool any = false;
    for (const ClauseParts& clause : ir::parts_of(op)) {
      const auto factor = factor_of(op, clause);
      if (!factor) continue;
      any = true;
      int64_t whole = 0;
      bool added = false;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const FactorPart* part =
            op.operands[k] && clause.operands[k] ? ir::find_part(*clause.operands[k], *factor) : nullptr;
        const Padding* at = padding_of(op.operands[k]);
        if (!part || (part->size == 1 && (!at || at->dim != part->dim))) continue;  // repeated
        if (!at || at->dim != part->dim || (whole != 0 && whole != at->whole))
          return error(op, concat("operand ", k, " has no padding where another one has"), "expected the same of both");
        if (part->mark != ' ' && part->mark != '+')
          return error(op, concat("operand ", k, " is read with its padding"),
                       "expected an op that knows what is there");
        whole = at->whole;
        added |= part->mark == '+';
      }
      const bool zero = is_zero(op, clause, *factor);
      if (added && !zero) return error(op, "padding is added up that is not 0", "expected what is there alone");
      for (size_t r = 0; r < clause.results.size(); ++r)
        if (const FactorPart* part = ir::find_part(clause.results[r], *factor))
          paddings_[op.results()[clause.first_result + r].get()] = {part->dim, whole, zero};
    }
    return any ? "" : error(op, "nothing says what it makes of padding", "expected an access map in its row");
  }

  const ir::Graph& graph_;
  const MeshAxis& axis_;
  std::unordered_map<const Value*, Padding> paddings_;
  std::unordered_map<const Value*, const Op*> buckets_;  // the param that a flat buffer is of
};

}  // namespace

std::string verify_padding(const ir::Graph& graph, const MeshAxis& axis) { return PaddingChecker(graph, axis).check(); }

}  // namespace sfsdp::plan
