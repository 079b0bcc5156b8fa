// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/batch_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::parallel {
namespace {

using ir::Graph, ir::Op, ir::Type, ir::Value;

// The elements before dimension `dim` in row-major order.
int64_t elements_before(const Type& type, size_t dim) {
  int64_t elements = 1;
  for (size_t d = 0; d < dim; ++d) elements *= type.dims[d].size;
  return elements;
}

// Where the batch lies in each value of the grown step: in the dimension that the factor divides. That dimension may be
// folded, as [T · B, C] is: `outer` then also counts what stands before the batch inside it.
class BatchOrder {
 public:
  BatchOrder(const Graph& grown, int64_t factor) : factor_(factor) {
    for (const auto& op : grown.ops())
      if (op->is("input"))
        if (const auto dims = batch_dims(op->result()->type()); dims.size() == 1)
          rows_ = std::min(rows_, op->result()->type().dims[dims[0]].size);
    for (const auto& op : grown.ops())
      for (const auto& result : op->results()) find(*op, result.get());
  }

  // Dimensions that have grown. One that has grown twice counts twice.
  std::vector<size_t> batch_dims(const Type& type) const {
    std::vector<size_t> dims;
    for (size_t d = 0; d < type.dims.size(); ++d)
      for (int64_t size = type.dims[d].size; size > 0 && size % factor_ == 0; size /= factor_) dims.push_back(d);
    return dims;
  }

  // The elements before the batch; nullopt: not told, or not one dimension.
  std::optional<int64_t> outer(const Value* value) const {
    const auto found = outer_.find(value);
    return found == outer_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void find(const Op& op, const Value* value) {
    const auto dims = batch_dims(value->type());
    if (dims.size() != 1 || value->type().numel() == 0) return;
    const int64_t before = elements_before(value->type(), dims[0]), size = value->type().dims[dims[0]].size;
    if (const auto inside = outer_inside(op, value->type().numel(), before, size)) outer_[value] = before * *inside;
  }

  // What stands before the batch inside its dimension of `size`, which comes after `before` elements.
  std::optional<int64_t> outer_inside(const Op& op, int64_t numel, int64_t before, int64_t size) const {
    if (op.is("input")) return 1;
    if (ir::has_flag(op, ir::kReshape) && op.operands[0]->type().numel() == numel)
      if (const auto same = outer(op.operands[0]))  // a reshape keeps the order of elements
        return *same % before == 0 ? std::optional(*same / before) : std::nullopt;
    for (const Value* operand : op.operands) {  // any other op keeps a dimension as it is
      const auto from = operand ? outer(operand) : std::nullopt;
      if (!from) continue;
      const Type& type = operand->type();
      const size_t dim = batch_dims(type)[0];
      if (type.dims[dim].size == size) return *from / elements_before(type, dim);
    }
    return size <= rows_ ? std::optional<int64_t>(1) : std::nullopt;  // nothing but rows
  }

  const int64_t factor_;
  int64_t rows_ = std::numeric_limits<int64_t>::max();  // of the grown batch
  std::unordered_map<const Value*, int64_t> outer_;
};

// Among the random ops of a step, whatever else differs.
using DrawKey = std::pair<std::string, int64_t>;
DrawKey key_of(const Op& op) { return {op.module_path, op.attr<int64_t>("stream")}; }

// "" or why it cannot be told.
std::string order_draw(Op& op, const Op& grown, const BatchOrder& order, int64_t factor) {
  std::vector<int64_t> expected = op.result()->type().shape();
  const auto dims = order.batch_dims(grown.result()->type());
  for (const size_t dim : dims)
    if (dim < expected.size()) expected[dim] *= factor;
  const std::string times = concat("with ", factor, " times the rows it draws ", grown.result()->type());
  if (op.opcode != grown.opcode || expected != grown.result()->type().shape()) return times;
  if (dims.size() > 1) return times + ", which grows in more than one way";
  if (dims.empty()) {
    op.attrs["replicated"] = true;
    return "";
  }
  const auto outer = order.outer(grown.result());
  if (!outer) return concat("dimension ", dims[0], " holds rows and something else, in an order that nothing shows");
  if (*outer > 1) op.attrs["outer"] = *outer;
  return "";
}

}  // namespace

int64_t growth_factor(const Graph& graph) {
  const auto is_prime = [](int64_t number) {
    for (int64_t d = 2; d * d <= number; ++d)
      if (number % d == 0) return false;
    return true;
  };
  const auto divides_one = [&](int64_t factor) {
    for (const auto& op : graph.ops())
      for (const auto& result : op->results())
        for (const ir::Dim& dim : result->type().dims)
          if (dim.size > 0 && dim.size % factor == 0) return true;
    return false;
  };
  int64_t factor = 5;
  while (!is_prime(factor) || divides_one(factor)) factor += 2;
  return factor;
}

std::string order_draws(Graph& graph, const Graph& grown, int64_t factor) {
  const BatchOrder order(grown, factor);
  std::map<DrawKey, const Op*> draws;
  for (const auto& op : grown.ops())
    if (op->has_attr("stream")) draws[key_of(*op)] = op.get();
  const auto count = std::ranges::count_if(graph.ops(), [](const auto& op) { return op->has_attr("stream"); });
  if (count != std::ssize(draws))  // a loop over rows: each of its draws has one, and does not grow
    return concat("the step draws ", count, " times, with ", factor, " times the rows ", draws.size(), " times");
  std::string first;
  for (const auto& op : graph.ops()) {
    if (!op->has_attr("stream")) continue;
    const auto found = draws.find(key_of(*op));
    const std::string why = found == draws.end() ? concat("with ", factor, " times the rows it is not drawn")
                                                 : order_draw(*op, *found->second, order, factor);
    if (first.empty() && !why.empty())
      first = concat(ir::opcode_at(*op), " draws ", op->result()->type(), ", in which the batch is not found: ", why);
  }
  return first;
}

}  // namespace sfsdp::parallel
