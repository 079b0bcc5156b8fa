// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/product_shape.h"

#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

bool is_transposed(const Type& matrix) {
  return !matrix.strides.empty() && matrix.dims[1].size > 1 && matrix.strides[1] != 1 &&
         (matrix.strides[0] == 1 || matrix.dims[0].size <= 1);
}

// Keeps the products of a decomposition, and makes no op.
class ProductFinder : public Emitter {
 public:
  explicit ProductFinder(Value* base) : base_(base) {}

  std::vector<Term> compute(const std::string& opcode, const std::vector<Term>& operands,
                            const std::vector<Type>& results, const Attributes&, bool) override {
    if (opcode == "aten.mm" || opcode == "aten.addmm") {
      const Type &a = operands[operands.size() - 2].type, &b = operands.back().type;
      products.push_back({a.dtype, a.dims[0].size, b.dims[1].size, a.dims[1].size, is_transposed(a), is_transposed(b)});
    }
    std::vector<Term> terms;
    for (const Type& type : results) terms.push_back({base_, 0, type});
    return terms;
  }
  Term view(const std::string&, const Term&, const Term& result, const Attributes&) override { return result; }

  std::vector<ProductShape> products;

 private:
  Value* base_;  // that every result is a view of: a term needs one
};

// As a rank has it: sizes and strides alone.
Type plain(const Type& type) {
  Type own = Type::tensor(type.dtype, type.shape());
  own.strides = type.strides;
  return own;
}

std::optional<int64_t> size_of(std::string_view text) {
  const auto size = parse_int(text);
  return size && *size >= 0 ? size : std::nullopt;
}

}  // namespace

std::string to_string(const ProductShape& s) {
  return concat(to_string(s.dtype), ':', s.m, 'x', s.n, 'x', s.k, ':', s.a_transposed ? 't' : 'n',
                s.b_transposed ? 't' : 'n');
}

std::optional<ProductShape> parse_product_shape(std::string_view text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 3) return std::nullopt;
  const auto dtype = parse_dtype(parts[0]);
  const std::vector<std::string> sizes = split(parts[1], 'x');
  const std::string& how = parts[2];
  const auto is_letter = [](char c) { return c == 'n' || c == 't'; };
  if (!dtype || sizes.size() != 3 || how.size() != 2 || !is_letter(how[0]) || !is_letter(how[1])) return std::nullopt;
  const auto m = size_of(sizes[0]), n = size_of(sizes[1]), k = size_of(sizes[2]);
  if (!m || !n || !k) return std::nullopt;
  return ProductShape{*dtype, *m, *n, *k, how[0] == 't', how[1] == 't'};
}

std::optional<ProductShape> product_of(const Op& op) {
  const OpRow* row = op.opcode.row();
  if (!row || row->cost != CostClass::Product || !is_canonical(op.opcode)) return std::nullopt;
  const DType dtype = op.result()->type().dtype;
  if (dtype != DType::f32 && dtype != DType::f64) return std::nullopt;
  CanonicalCall call{op.opcode, op.attrs, {}};
  for (Value* operand : op.operands)
    call.operands.push_back(operand ? Term{operand, 0, plain(operand->type())} : Term());
  ProductFinder finder(op.result());
  decompose(call, finder);
  if (finder.products.size() != 1 || finder.products[0].dtype != dtype) return std::nullopt;
  return finder.products[0];
}

}  // namespace sfsdp::ir
