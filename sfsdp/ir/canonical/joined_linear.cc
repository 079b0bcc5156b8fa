// SPDX-License-Identifier: BSD-3-Clause
// Linear layers of one input whose weights lie one after the other, so that one product computes them all. The reference
// computes each by itself and adds in eager's order.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

using Terms = std::vector<Term>;

Term rows_of_weight(Body& body, const Term& weight, int64_t begin, int64_t end) {
  return body.slice(weight, 0, begin, end);
}

}  // namespace

// x [..., k], w [n, k]
Terms decompose_joined_linear(const CanonicalCall& call, Body& body) {
  Terms results;
  int64_t begin = 0;
  for (const int64_t width : std::get<Body::Sizes>(call.attrs.at("widths"))) {
    const Term weight = rows_of_weight(body, call.operands[1], begin, begin + width);
    results.push_back(decompose_linear({"linear", {}, {call.operands[0], weight}}, body)[0]);
    begin += width;
  }
  return results;
}

// grads [..., n_i], w [n, k]
Terms decompose_joined_linear_dx(const CanonicalCall& call, Body& body) {
  Terms parts;
  int64_t begin = 0;
  for (size_t i = 0; i + 1 < call.operands.size(); ++i) {
    const Term& grad = call.operands[i];
    const int64_t end = begin + grad.type.dims.back().size;
    const Term weight = rows_of_weight(body, call.operands.back(), begin, end);
    parts.push_back(decompose_linear_dx({"linear_dx", {}, {grad, weight}}, body)[0]);
    begin = end;
  }
  const auto& order = std::get<Body::Sizes>(call.attrs.at("order"));
  Term sum = parts[static_cast<size_t>(order[0])];
  for (size_t i = 1; i < order.size(); ++i) sum = body.add(sum, parts[static_cast<size_t>(order[i])]);
  return {sum};
}

// grads [..., n_i], x [..., k]
Terms decompose_joined_linear_dw(const CanonicalCall& call, Body& body) {
  Terms results;
  for (size_t i = 0; i + 1 < call.operands.size(); ++i)
    results.push_back(decompose_linear_dw({"linear_dw", {}, {call.operands[i], call.operands.back()}}, body)[0]);
  return results;
}

}  // namespace sfsdp::ir
