// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_shape.h"

#include <algorithm>

#include "sfsdp/base/check.h"

namespace sfsdp::cost {
namespace {

using ir::Op;

bool is_backward(const Op& op) { return op.opcode.ends_with("_backward"); }
bool is_convolution(const Op& op) { return op.is("aten.convolution", "aten.convolution_backward"); }

// The shape of products side by side: as wide, or in their sum as deep, as all of them.
ProductShape joined_shape(const Op& op) {
  const auto width = [](const ir::Value* value) { return static_cast<double>(value->type().dims.back().size); };
  const auto numel = [](const ir::Value* value) { return static_cast<double>(value->type().numel()); };
  const ir::Value *first = op.operands[0], *last = op.operands.back();
  const double rows = numel(first) / std::max(width(first), 1.0);
  if (op.is("joined_linear"))
    return {.m = rows, .n = static_cast<double>(last->type().dims[0].size), .k = width(first)};
  double joined = 0;
  for (size_t i = 0; i + 1 < op.operands.size(); ++i) joined += width(op.operands[i]);
  if (op.is("joined_linear_dx")) return {.m = rows, .n = width(last), .k = joined};
  return {.m = joined, .n = width(last), .k = rows};
}

}  // namespace

Class class_of(const Op& op) {
  if (ir::is_root(op) || op.results().empty() || ir::aliased_operand(op) >= 0) return Class::Free;
  if (op.has_attr("inside") && packed_bytes(op) == 0) return Class::Free;
  const ir::OpRow* row = op.opcode.row();
  return row ? row->cost : Class::Alone;
}

bool is_inside(const Op& pack, size_t operand) {
  const auto* inside = pack.find_attr<std::vector<int64_t>>("inside");
  return inside && std::ranges::find(*inside, static_cast<int64_t>(operand)) != inside->end();
}

int64_t packed_bytes(const Op& pack) {
  int64_t bytes = pack.result()->type().bytes();
  for (size_t i = 0; i < pack.operands.size(); ++i)
    if (is_inside(pack, i)) bytes -= pack.operands[i]->type().bytes();
  return bytes;
}

ProductShape product_shape(const Op& op) {
  ProductShape s;
  if (is_convolution(op)) {  // as one product: output elements × weight elements of one output channel
    const size_t first = is_backward(op) ? 2 : 1;
    const auto weight = op.operands[first]->type().shape();
    s.m = static_cast<double>((is_backward(op) ? op.operands[0] : op.result())->type().numel());
    if (is_backward(op)) s.batch = 2;  // of the input and of the weight
    for (size_t d = 1; d < weight.size(); ++d) s.k *= static_cast<double>(weight[d]);
    return s;
  }
  if (op.is("linear", "linear_dx", "linear_dw")) {
    const ir::Type &a = op.operands[0]->type(), &b = op.operands[1]->type();
    const auto width = [](const ir::Type& type) { return static_cast<double>(type.dims.back().size); };
    const double rows = static_cast<double>(a.numel()) / std::max(width(a), 1.0);
    if (op.is("linear_dw")) return {.m = width(a), .n = width(b), .k = rows};
    return {.m = rows, .n = width(op.result()->type()), .k = width(a)};
  }
  if (op.is("joined_linear", "joined_linear_dx", "joined_linear_dw")) return joined_shape(op);
  if (op.is("matmul")) {
    const ir::Type &left = op.operands[0]->type(), &right = op.operands[1]->type();
    const auto k = static_cast<double>(left.dims.back().size), n = static_cast<double>(right.dims.back().size);
    const double batch = right.dims.size() == 3 ? static_cast<double>(right.dims[0].size) : 1;
    return {.batch = batch, .m = static_cast<double>(left.numel()) / std::max(k, 1.0) / batch, .n = n, .k = k};
  }
  const size_t first = op.is("aten.addmm", "aten.baddbmm") ? 1 : 0;
  const auto a = op.operands[first]->type().shape(), b = op.operands[first + 1]->type().shape();
  const size_t rank = a.size();
  if (rank == 3) s.batch = static_cast<double>(a[0]);
  s.m = static_cast<double>(a[rank - 2]);
  s.k = static_cast<double>(a[rank - 1]);
  s.n = static_cast<double>(b[rank - 1]);
  return s;
}

AttentionShape attention_shape(const Op& op) {
  AttentionShape s;
  s.backward = is_backward(op);
  const size_t q = s.backward ? 1 : 0;
  const auto query = op.operands[q]->type().shape(), key = op.operands[q + 1]->type().shape();
  SFSDP_CHECK(query.size() == 4 && key.size() == 4, op.opcode, " of ", query.size(), " dimensions");
  s.pairs = static_cast<double>(query[0] * query[1] * query[2] * key[2]);
  s.width = static_cast<double>(query[3]);
  s.length = static_cast<double>(key[2]);
  s.causal = op.attr_or("is_causal", false);
  return s;
}

double flops_of(const Op& op) {
  const Class kind = class_of(op);
  if (kind == Class::Product) {
    const ProductShape s = product_shape(op);
    return 2 * s.batch * s.m * s.n * s.k;
  }
  if (kind != Class::Attention) return 0;
  // Two products of every pair forward, five backward; the masked half is not computed.
  const AttentionShape s = attention_shape(op);
  return (s.backward ? 10.0 : 4.0) * s.pairs * s.width * (s.causal ? 0.5 : 1.0);
}

}  // namespace sfsdp::cost
