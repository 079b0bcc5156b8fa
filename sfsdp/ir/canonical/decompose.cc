// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/decompose.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

struct Family {
  std::string_view opcode;
  std::vector<Term> (*decompose)(const CanonicalCall& call, Body& body);
};

constexpr std::array kFamilies = {
    Family{"cross_entropy", &decompose_cross_entropy},
    Family{"cross_entropy_backward", &decompose_cross_entropy_backward},
    Family{"embedding", &decompose_embedding},
    Family{"embedding_backward", &decompose_embedding_backward},
    Family{"layer_norm", &decompose_layer_norm},
    Family{"layer_norm_backward", &decompose_layer_norm_backward},
    Family{"linear", &decompose_linear},
    Family{"linear_dw", &decompose_linear_dw},
    Family{"linear_dx", &decompose_linear_dx},
    Family{"rms_norm", &decompose_rms_norm},
    Family{"rms_norm_backward", &decompose_rms_norm_backward},
    Family{"rope", &decompose_rope},
    Family{"rope_inverse", &decompose_rope_inverse},
    Family{"sdpa", &decompose_sdpa},
    Family{"sdpa_backward", &decompose_sdpa_backward},
};

const Family* find_family(std::string_view opcode) {
  const auto* found = std::ranges::find(kFamilies, opcode, &Family::opcode);
  return found == kFamilies.end() ? nullptr : found;
}

// Adds the ops to a graph.
class GraphEmitter : public Emitter {
 public:
  explicit GraphEmitter(Graph& graph) : graph_(graph) {}

  std::vector<Term> compute(const std::string& opcode, const std::vector<Term>& operands,
                            const std::vector<Type>& results, const Attributes& attrs, bool as_list) override {
    std::vector<Value*> values;
    for (const Term& term : operands) values.push_back(term.base);
    std::vector<Graph::NewResult> made;
    for (const Type& type : results) made.push_back({"", type});
    Op* op = graph_.add(opcode, std::move(values), std::move(made));
    op->attrs = attrs;
    if (as_list) op->operand_lists = {{0, static_cast<int>(operands.size())}};
    std::vector<Term> terms;
    for (const auto& result : op->results()) terms.push_back({result.get(), 0, result->type()});
    return terms;
  }
  // In the graph each view is a value of its own.
  Term view(const std::string& opcode, const Term& x, const Term& result, const Attributes& attrs) override {
    SFSDP_CHECK(result.base, opcode, " of ", x.type, " would have to copy");
    return compute(opcode, {x}, {result.type}, attrs, false)[0];
  }

 private:
  Graph& graph_;
};

}  // namespace

bool is_canonical(std::string_view opcode) { return find_family(opcode) != nullptr; }

std::vector<Term> decompose(const CanonicalCall& call, Emitter& emitter) {
  const Family* family = find_family(call.opcode);
  SFSDP_CHECK(family, call.opcode, " has no decomposition");
  Body body(emitter);
  return family->decompose(call, body);
}

Graph decomposed(const Op& op) {
  Graph graph;
  graph.view = Graph::View::Local;
  CanonicalCall call{op.opcode, op.attrs, {}};
  for (const Value* operand : op.operands) {
    if (!operand) {
      call.operands.emplace_back();
      continue;
    }
    Value* input = graph.add("input", {}, {{operand->name(), operand->type()}})->result();
    input->producer()->attrs["name"] = operand->name();
    call.operands.push_back({input, 0, input->type()});
  }
  GraphEmitter emitter(graph);
  for (const Term& result : decompose(call, emitter))
    if (result.base) graph.outputs.push_back(result.base);
  return graph;
}

}  // namespace sfsdp::ir
