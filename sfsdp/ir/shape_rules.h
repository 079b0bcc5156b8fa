// SPDX-License-Identifier: BSD-3-Clause
// The rules named in opset.def and atenset.def: what types and attributes an op must have. Called by the verifier, arity
// already checked, no operand absent but where the row says kOptional.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

using Shape = std::vector<int64_t>;

class RuleContext {
 public:
  RuleContext(const Graph& g, const Op& o, std::vector<Diagnostic>& diagnostics)
      : graph(g), op(o), diagnostics_(diagnostics) {}

  const Graph& graph;
  const Op& op;
  const Type& operand(size_t index = 0) const { return op.operands.at(index)->type(); }
  const Type& result(int index = 0) const { return op.result(index)->type(); }
  bool has_operand(size_t index) const { return index < op.operands.size() && op.operands[index] != nullptr; }

  // `message` follows the op's name: "aten.mm %y " + message.
  void report(const std::string& message, const std::string& detail);
  // Reports and leaves the rule, which could not go on.
  struct Stop {};
  [[noreturn]] void stop(const std::string& message, const std::string& detail);
  void expect_dtype(DType expected, DType got, std::string_view whose);
  void expect_shape(const Shape& expected, const Type& got, std::string_view whose);
  // What result `index` has to be. dtype: nullopt where LibTorch's kernels differ. A gradient that was not asked for is a token.
  void expect(int index, std::optional<DType> dtype, const Shape& shape);
  void expect_like(int index, const Type& type) { expect(index, type.dtype, type.shape()); }
  void expect_result(const Shape& shape) { expect(0, operand().dtype, shape); }

  // Operands of a row with kOptional that must be there all the same; stops at the first that is not.
  void need_operands(std::initializer_list<size_t> indexes);
  // Operand `index`, of `rank` dimensions.
  const Type& tensor(size_t index, size_t rank);

  // Attributes. One of another kind, or one that is missing and has no fallback, stops the rule; `none` is missing.
  const Attr* find(const std::string& key) const;  // nullptr where it is missing
  int64_t integer(const std::string& key);
  int64_t integer(const std::string& key, int64_t fallback);
  bool flag(const std::string& key);  // false where it is missing
  Shape integers(const std::string& key);
  std::optional<Shape> integers_if(const std::string& key);  // an integer is a list of one
  Shape counts(const std::string& key, size_t count);        // that many, none below 0 or above kMaxBytes
  DType dtype(DType fallback, const std::string& key = "dtype");
  // These report, and the rule goes on.
  void need_text(const std::string& key);
  void need_number(const std::string& key);

  // Attribute `dim`, in range of operand 0 and result 0, counted from 0.
  size_t dim();
  // A dimension of a tensor of `rank`, counted from its end if below 0. A number has one dimension to name.
  size_t wrapped(int64_t dim, size_t rank);
  size_t wrapped_dim(const std::string& key = "dim") { return wrapped(integer(key), operand().dims.size()); }
  // Product of the sizes of the axes in attribute `axis`.
  int64_t ranks();

 private:
  [[noreturn]] void stop_at(const std::string& key, std::string_view expected);

  std::vector<Diagnostic>& diagnostics_;
};

void no_rule(RuleContext& context);
#define SFSDP_OP(name, min_operands, max_operands, results, flags, cost, alias, rule, access) \
  void rule(RuleContext& context);
#define SFSDP_COLLECTIVE(name, fewest, most, rule) void rule(RuleContext& context);
#define SFSDP_UPDATE(name, moments, operands, results, flags, rule, access) void rule(RuleContext& context);
#define SFSDP_ATEN SFSDP_OP
#include "sfsdp/ir/opset.def"

#include "sfsdp/ir/atenset.def"
#undef SFSDP_OP
#undef SFSDP_COLLECTIVE
#undef SFSDP_UPDATE
#undef SFSDP_ATEN

}  // namespace sfsdp::ir
