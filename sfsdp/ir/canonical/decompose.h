// SPDX-License-Identifier: BSD-3-Clause
// What a canonical op is in ops of LibTorch: exactly those that eager runs for it. One definition serves the pass
// `canonicalise`, which looks for them, and `decompose`, which makes them again for the reference executor.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/canonical/term.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// Takes the ops of a decomposition one by one.
class Emitter {
 public:
  using Attributes = Attrs;

  virtual ~Emitter() = default;
  // An op that computes. The types say dtype, shape and strides, as LibTorch lays them out.
  //   as_list: its operands are one list
  virtual std::vector<Term> compute(const std::string& opcode, const std::vector<Term>& operands,
                                    const std::vector<Type>& results, const Attributes& attrs, bool as_list) = 0;
  // A view of `x`: what `viewed`, `transposed`, … of term.h give, as the op that makes it.
  virtual Term view(const std::string& opcode, const Term& x, const Term& result, const Attributes& attrs) = 0;
};

// Whether an opcode is canonical: a row of opset.def with a decomposition.
bool is_canonical(std::string_view opcode);
// Whether the op stands for ops of LibTorch: not where a rank does its part alone, as axis= says.
bool is_canonical(const Op& op);

// A canonical op as it is, or as it is proposed before it stands in a graph.
struct CanonicalCall {
  std::string opcode;
  Emitter::Attributes attrs;
  std::vector<Term> operands;  // base nullptr: absent
};

// A result that one op of backward alone reads, in its own form: lse. In its place the decomposition has what eager keeps, of
// another type: the logarithms of all probabilities.
struct LeftForBackward {
  int result;
  Type (*type)(const CanonicalCall& call);
  std::string_view reader;  // opcode
  size_t operand;           // of the reader
};
const LeftForBackward* left_for_backward(std::string_view opcode);  // nullptr: nothing
// Which operand of `opcode` is such a result.
std::optional<size_t> operand_left_by_forward(std::string_view opcode);

// Whether ops that read its results make again what its decomposition has made: a mask of S × S is more than all that
// attention reads, and each layer would keep one for backward.
bool keeps_nothing(std::string_view opcode);

// Results of the call in the order of the op's; base nullptr: that one is not computed. `call.opcode` is canonical.
std::vector<Term> decompose(const CanonicalCall& call, Emitter& emitter);

}  // namespace sfsdp::ir
