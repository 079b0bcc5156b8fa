// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/decompose.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/named_kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Term, ir::Value;
using Made = std::vector<Op*>;

// Puts the ops of one canonical op before it; one that is among `shared` or made already is not made again.
class Inserter : public ir::Emitter {
 public:
  Inserter(ir::Builder::Place place, const Op* bwd_of, std::vector<const Made*> shared)
      : place_(std::move(place)), bwd_of_(bwd_of), shared_(std::move(shared)) {
    shared_.push_back(&made_);
  }

  std::vector<Term> compute(const std::string& opcode, const std::vector<Term>& operands,
                            const std::vector<ir::Type>& results, const Attributes& attrs, bool as_list) override {
    std::vector<Value*> values;
    for (const Term& term : operands) values.push_back(term.base);
    Op* op = find(opcode, values, attrs);
    if (!op) {
      std::vector<Graph::NewResult> types;
      for (const ir::Type& type : results) types.push_back({"", type});
      op = place_.op(opcode, values, std::move(types), attrs);
      if (as_list) op->operand_lists = {{0, static_cast<int>(values.size())}};
      op->bwd_of = bwd_of_;
      made_.push_back(op);
    }
    std::vector<Term> terms;
    for (const auto& result : op->results()) terms.push_back({result.get(), 0, result->type()});
    return terms;
  }
  Term view(const std::string& opcode, const Term& x, const Term& result, const Attributes& attrs) override {
    SFSDP_CHECK(result.base, opcode, " of ", x.type, " would have to copy");
    return compute(opcode, {x}, {result.type}, attrs, false)[0];
  }

  Made take() { return std::move(made_); }

 private:
  Op* find(const std::string& opcode, const std::vector<Value*>& operands, const Attributes& attrs) const {
    for (const Made* made : shared_)
      for (Op* op : *made)
        if (op->opcode == opcode && op->operands == operands && op->attrs == attrs) return op;
    return nullptr;
  }

  ir::Builder::Place place_;
  const Op* bwd_of_;
  std::vector<const Made*> shared_;
  Made made_;
};

class Decomposer {
 public:
  explicit Decomposer(Graph& graph) : graph_(graph), build_(graph) {}

  int64_t run() {
    std::vector<Op*> canonical;
    for (const auto& op : graph_.ops())
      if (ir::is_canonical(*op)) canonical.push_back(op.get());
    for (Op* op : canonical) replace(*op);
    build_.erase(canonical);
    build_.apply();
    return std::ssize(canonical);
  }

 private:
  void replace(Op& op) {
    std::vector<const Made*> shared;
    ir::CanonicalCall call{op.opcode, op.attrs, {}};
    call.attrs.erase("kernel");
    for (const char* name : ir::kKernelAttributes) call.attrs.erase(name);
    for (Value* operand : op.operands) {
      Value* value = operand ? current(operand) : nullptr;
      call.operands.push_back(value ? Term{value, 0, value->type()} : Term());
      if (!operand) continue;
      if (const auto made = made_.find(ir::storage_of(operand)->producer()); made != made_.end())
        shared.push_back(&made->second);
    }
    const auto forward = instead_of_.find(op.bwd_of);
    Inserter inserter(build_.before(&op), forward == instead_of_.end() ? op.bwd_of : forward->second, shared);
    const std::vector<Term> results = ir::decompose(call, inserter);
    for (size_t i = 0; i < results.size(); ++i) {
      Value* old = op.result(static_cast<int>(i));
      if (!results[i].base) continue;
      const auto* left = ir::left_for_backward(op.opcode);
      if (!left || left->result != static_cast<int>(i)) {
        const bool is_tensor = old->type().kind == ir::Type::Kind::Tensor;  // else a gradient that was not asked for
        SFSDP_CHECK(!is_tensor || ((i > 0 || results[i].type.dtype == old->type().dtype) &&
                                   ir::same_layout(results[i].type, old->type())),
                    ir::name_of(op), " decomposes into ", results[i].type, ", not ", old->type());
        results[i].base->set_type(old->type());  // the dtype of statistics and placements too
      }
      build_.take_place(old, results[i].base);
      replaced_[old] = results[i].base;
    }
    instead_of_[&op] = std::ranges::find_if(results, [](const Term& t) { return t.base; })->base->producer();
    if (!ir::keeps_nothing(op.opcode)) made_[&op] = inserter.take();
  }

  // The value that stands for a canonical op's result, once it is decomposed.
  Value* current(Value* value) const {
    const auto found = replaced_.find(value);
    return found == replaced_.end() ? value : found->second;
  }

  Graph& graph_;
  ir::Builder build_;
  std::unordered_map<const Op*, Made> made_;  // by canonical op
  std::unordered_map<const Value*, Value*> replaced_;
  std::unordered_map<const Op*, const Op*> instead_of_;
};

}  // namespace

bool decompose(Graph& graph, PassContext& ctx) {
  const int64_t ops = Decomposer(graph).run();
  ctx.metrics.add("ops", ops);
  bool changed = ops > 0;
  for (const auto& op : graph.ops()) changed |= op->attrs.erase("kernel") + op->attrs.erase("inside") > 0;
  return changed;
}

Graph decomposed(const Graph& graph) {
  Graph copy = graph.clone();
  PassContext ctx;
  decompose(copy, ctx);
  const auto wrong = ir::verify(copy);
  SFSDP_CHECK(wrong.empty(), "a decomposition has types that LibTorch's ops do not give: ", to_string(wrong));
  return copy;
}

}  // namespace sfsdp::passes
