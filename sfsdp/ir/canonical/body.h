// SPDX-License-Identifier: BSD-3-Clause
// The words in which decompositions are written: each makes one op of LibTorch, or none where it would change nothing.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/canonical/decompose.h"

namespace sfsdp::ir {

class Body {
 public:
  using Sizes = std::vector<int64_t>;

  explicit Body(Emitter& emitter) : emitter_(emitter) {}

  // x itself if it has the dtype.
  Term cast(const Term& x, DType dtype);
  // The operands broadcast, the dtype is that of the first.
  Term pointwise(const std::string& opcode, const std::vector<Term>& operands, const Emitter::Attributes& attrs = {});
  Term mul(const Term& a, const Term& b) { return pointwise("aten.mul.Tensor", {a, b}); }
  Term add(const Term& a, const Term& b) { return pointwise("aten.add.Tensor", {a, b}); }
  Term sub(const Term& a, const Term& b) { return pointwise("aten.sub.Tensor", {a, b}); }
  // With keepdim.
  Term reduced(const std::string& opcode, const Term& x, const Sizes& dims);
  std::vector<Term> compute(const std::string& opcode, const std::vector<Term>& operands,
                            const std::vector<Type>& results, const Emitter::Attributes& attrs = {}) {
    return emitter_.compute(opcode, operands, results, attrs, false);
  }
  Term list(const std::string& opcode, const std::vector<Term>& operands, const Type& result,
            const Emitter::Attributes& attrs) {
    return emitter_.compute(opcode, operands, {result}, attrs, true)[0];
  }

  // x itself if it has the shape.
  Term view(const Term& x, const Sizes& shape);
  Term t(const Term& x);  // of two dimensions
  Term unsqueeze(const Term& x, size_t dim);
  Term select(const Term& x, size_t dim, int64_t index);
  Term expand(const Term& x, const Sizes& shape);
  Term slice(const Term& x, size_t dim, int64_t start, int64_t end);
  Term view_as_complex(const Term& x);
  Term view_as_real(const Term& x);

 private:
  Emitter& emitter_;
};

// The last `count` dimensions of a tensor of `rank`.
Body::Sizes last_dims(size_t rank, int64_t count);

}  // namespace sfsdp::ir
