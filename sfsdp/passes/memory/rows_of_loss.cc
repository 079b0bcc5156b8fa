// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/rows_of_loss.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/factor_parts.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Type, ir::Value;

constexpr int64_t kEach = 0, kMean = 1;  // at::Reduction

int64_t elements(const std::vector<int64_t>& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1}, std::multiplies<>());
}

// What keeps each row by itself, whatever it does with the others' places.
bool is_between(const Op& op) {
  if (op.operands.size() != 1 || op.results().size() != 1) return false;
  if (ir::has_flag(op, ir::kReshape)) return op.has_attr("size");
  return ir::has_flag(op, ir::kPermute) ||
         op.is("cast", "aten.clone", "own_part", "all_gather", "all_reduce", "reduce_scatter");
}

// The weight that a gather, a cast or a view is of.
const Value* stored(const Value* value) {
  while (!ir::is_root(*value->producer()) && value->producer()->operands.size() == 1)
    value = value->producer()->operands[0];
  return value;
}

// What a view has the elements of, in the same order.
const Value* viewed(const Value* value) {
  while (ir::has_flag(*value->producer(), ir::kReshape)) value = value->producer()->operands[0];
  return value;
}

class RowsFinder {
 public:
  RowsFinder(const ir::Index& index, Op* loss) : index_(index) { found_.loss = loss; }

  // forward, its readers, backward, its readers; then where the rows are in each value.
  FoundLossRows find() {
    if (find_forward() && find_backward() && only_read_here() && find_gradients() && is_one_product() && find_late() &&
        place_rows())
      return {std::move(found_), ""};
    return {std::nullopt, std::move(why_)};
  }

 private:
  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool find_forward() {
    const Op& loss = *found_.loss;
    if (loss.attr_or("reduction", kMean) == kEach) return refuse(concat(ir::opcode_at(loss), " is of each token"));
    if (ir::is_half(loss.result(0)->type().dtype))
      return refuse(concat(ir::opcode_at(loss), " is added up in ", ir::to_string(loss.result(0)->type().dtype)));
    for (Op* op = found_.loss;; op = op->operands[0]->producer()) {
      found_.forward.insert(found_.forward.begin(), op);
      if (op == found_.loss || is_between(*op)) continue;
      if (op->is("cross_entropy_parts") && op->operands[1] == loss.operands[1]) continue;
      found_.product = op;
      if (op->is("linear") && op->operands.size() == 2) return true;
      return refuse(concat("logits are what ", ir::opcode_at(*op), " makes, ",
                           op->is("linear") ? "with a bias" : "no linear layer"));
    }
  }

  bool find_backward() {
    const Value* log_sums = found_.loss->result(2);
    found_.backward = index_.only_reader(log_sums);
    if (!found_.backward) return refuse(concat(ir::opcode_at(*found_.loss), " has no gradient, or several"));
    const Op& op = *found_.backward;
    if (!op.is("cross_entropy_backward") || op.operands[4] != log_sums || op.operands[2] != found_.loss->operands[1] ||
        !is_forward(op.operands[1]->producer()))
      return refuse(concat(ir::opcode_at(op), " reads other rows than ", ir::opcode_at(*found_.loss)));
    return true;
  }

  bool is_forward(const Op* op) const { return std::ranges::find(found_.forward, op) != found_.forward.end(); }

  bool only_read_here() {
    for (const Op* op : found_.forward) {
      if (op == found_.loss) continue;
      if (index_.is_returned(op->result())) return refuse(concat("the step returns logits, %", op->result()->name()));
      for (const Op* reader : index_.readers(op->result()))
        if (reader != found_.backward && !is_forward(reader))
          return refuse(concat("logits, %", op->result()->name(), ", are also read by ", ir::opcode_at(*reader)));
    }
    return true;
  }

  bool find_gradients() {
    std::vector<Op*> open = {found_.backward};
    for (size_t next = 0; next < open.size(); ++next) {
      const Value* value = open[next]->result();
      if (index_.is_returned(value)) return refuse(concat("the step returns a gradient of logits, %", value->name()));
      for (Op* reader : index_.readers(value)) {
        Op*& known = reader->is("linear_dx") ? found_.grad_hidden : found_.grad_weight;
        const bool is_product = reader->is("linear_dx", "linear_dw") && reader->operands[0] == value && !known;
        if (is_product)
          known = reader;
        else if (is_between(*reader))
          open.push_back(reader);
        else
          return refuse(
              concat("the gradient of logits, %", value->name(), ", is also read by ", ir::opcode_at(*reader)));
      }
    }
    if (!found_.grad_hidden || !found_.grad_weight)
      return refuse(concat(ir::opcode_at(*found_.product), " has no gradient of what it reads, or of its weight"));
    found_.gradients = std::move(open);
    found_.gradients.push_back(found_.grad_hidden);
    found_.gradients.push_back(found_.grad_weight);
    std::ranges::sort(found_.gradients, {}, [&](const Op* op) { return index_.position(op); });
    return true;
  }

  // Both gradients are of the product: of its rows and of its weight, which backward may have gathered again.
  bool is_one_product() {
    const Op &product = *found_.product, &dx = *found_.grad_hidden, &dw = *found_.grad_weight;
    const Value *rows = dw.operands[1], *hidden = product.operands[0];
    const bool same_rows = viewed(rows) == viewed(hidden) && rows->type().dims.back() == hidden->type().dims.back();
    if (!same_rows && !find_apart())
      return refuse(concat(ir::opcode_at(dw), " reads other rows than ", ir::opcode_at(product)));
    if (stored(dx.operands[1]) != stored(product.operands[1]) || dx.operands[1]->type() != product.operands[1]->type())
      return refuse(concat(ir::opcode_at(dx), " reads another weight than ", ir::opcode_at(product)));
    if (!dx.result()->type().strides.empty() || !dw.result()->type().strides.empty())
      return refuse(concat("gradients of ", ir::opcode_at(product), " leave gaps in memory"));
    return is_added_wide();
  }

  // The gradient of the weight by each rank's own rows, of which all ranks have gathered all, then a rank's classes of the sum.
  bool find_apart() {
    Op& dw = *found_.grad_weight;
    Op* sum = index_.only_reader(dw.result());
    if (!sum || !sum->is("reduce_scatter") || sum->attr<int64_t>("dim") != 0) return false;
    const auto axes = ir::axes_of(*sum);
    const auto is_gathered = [&](const Value* value) {
      bool gathers = false;
      while (value != viewed(dw.operands[1])) {
        const Op& op = *value->producer();
        gathers |= op.is("all_gather") && ir::axes_of(op) == axes;
        if (!is_between(op) || (op.is("all_gather") && ir::axes_of(op) != axes)) return false;
        value = op.operands[0];
      }
      return gathers;
    };
    const Type& classes = found_.grad_hidden->operands[0]->type();
    if (!is_gathered(found_.product->operands[0]) || classes.dims.back() != sum->result()->type().dims[0]) return false;
    bool takes_rows = false;
    std::vector<Op*> apart = {sum, &dw};
    for (const Value* value = dw.operands[0]; index_.only_reader(value) == apart.back();) {
      Op* op = value->producer();
      takes_rows |= op->is("own_part") && ir::axes_of(*op) == axes;
      if (op == found_.backward) break;
      apart.push_back(op);
      value = op->operands[0];
    }
    if (!takes_rows) return false;
    std::erase_if(found_.gradients, [&](Op* op) { return std::ranges::find(apart, op) != apart.end(); });
    found_.weight_sum = sum;
    found_.apart = std::move(apart);
    return true;
  }

  // Chunks of a weight's gradient are added up in f32. To round a rank's summand of it would not be rounding the sum.
  bool is_added_wide() {
    const Value* gradient = (found_.weight_sum ? found_.weight_sum : found_.grad_weight)->result();
    const auto is_sum = [](const ir::AxisPlacement& one) { return one.placement.kind == ir::Placement::Kind::Partial; };
    if (!ir::is_half(gradient->type().dtype) || std::ranges::none_of(gradient->type().placements, is_sum)) return true;
    for (const Op* reader : index_.readers(gradient))
      if (!reader->is("cast") || ir::is_half(reader->result()->type().dtype))
        return refuse(concat(ir::opcode_at(*reader), " reads %", gradient->name(),
                             ", a rank's summand, and rounds it to ", ir::to_string(gradient->type().dtype),
                             ", where MixedPrecisionPolicy::reduce_dtype is not float32"));
    return true;
  }

  // The loss is there after the last chunk. What reads it before backward is moved; backward must not wait for it.
  bool find_late() {
    std::vector<Op*>& late = found_.late;
    const size_t end = index_.position(found_.backward);
    const auto is_late = [&](const Value* value) {
      return value && (value == found_.loss->result(0) || std::ranges::find(late, value->producer()) != late.end());
    };
    for (size_t at = index_.position(found_.loss) + 1; at < end; ++at)
      if (std::ranges::any_of(index_.at(at)->operands, is_late)) late.push_back(index_.at(at));
    if (std::ranges::any_of(found_.backward->operands, is_late))
      return refuse(concat(ir::opcode_at(*found_.backward), " begins with what is made of the loss"));
    return true;
  }

  // ---- rows

  bool place_rows() {
    const size_t dims = found_.product->result()->type().dims.size();
    if (dims < 2) return refuse(concat(ir::opcode_at(*found_.product), " is of one row"));
    found_.rows[found_.product->result()] = {0, dims - 1};
    for (size_t i = 1; i < found_.forward.size(); ++i)
      if (!place_rows_of(*found_.forward[i])) return false;
    const RowDims logits = found_.rows.at(found_.backward->operands[1]);
    if (logits != RowDims{0, 1}) return refuse(not_rows(*found_.backward));
    found_.rows[found_.backward->result()] = logits;
    for (const Op* op : found_.gradients) {
      if (op == found_.backward) continue;
      if (!op->is("linear_dx", "linear_dw")) {
        if (!place_rows_of(*op)) return false;
      } else if (const Value* read = op->operands[0];
                 found_.rows.at(read) != RowDims{0, read->type().dims.size() - 1}) {
        return refuse(not_rows(*op));
      }
    }
    return true;
  }

  static std::string not_rows(const Op& op) { return concat(ir::opcode_at(op), " does not read a row for each token"); }

  bool place_rows_of(const Op& op) {
    const RowDims before = found_.rows.at(op.operands[0]);
    if (op.is("cross_entropy_parts")) {
      found_.rows[op.result()] = {1, 1};
      return before == RowDims{0, 1} || refuse(not_rows(op));
    }
    if (&op == found_.loss) return before == RowDims{op.is("cross_entropy") ? 0U : 1U, 1} || refuse(not_rows(op));
    const auto after = rows_after(op, before);
    if (!after) return refuse(concat("rows of logits do not stay by themselves in ", ir::opcode_at(op)));
    found_.rows[op.result()] = *after;
    return true;
  }

  static std::optional<RowDims> rows_after(const Op& op, RowDims rows) {
    if (ir::has_flag(op, ir::kReshape))
      return rows_reshaped(op.operands[0]->type().shape(), rows, op.result()->type().shape());
    const auto in_rows = [&](int64_t dim) {
      return dim >= static_cast<int64_t>(rows.first) && dim < static_cast<int64_t>(rows.first + rows.count);
    };
    if (ir::has_flag(op, ir::kPermute)) {
      if (rows.count > 1) return std::nullopt;
      return RowDims{static_cast<size_t>(ir::permuted_dim(op, static_cast<int64_t>(rows.first))), 1};
    }
    const auto* dim = op.find_attr<int64_t>("dim");
    if (dim && in_rows(*dim)) return std::nullopt;
    if (op.is("aten.clone") && !op.result()->type().strides.empty()) return std::nullopt;
    return rows;
  }

  const ir::Index& index_;
  LossRows found_;
  std::string why_;
};

}  // namespace

FoundLossRows find_rows_of_loss(const ir::Index& index, Op* loss) { return RowsFinder(index, loss).find(); }

std::optional<RowDims> rows_reshaped(const std::vector<int64_t>& before, RowDims rows,
                                     const std::vector<int64_t>& after) {
  const int64_t all = elements(before, rows.first, rows.first + rows.count), outer = elements(before, 0, rows.first);
  for (size_t first = 0; first < after.size(); ++first) {
    if (elements(after, 0, first) != outer || (rows.first > 0 && after[first] != all)) continue;
    for (size_t end = first + 1; end <= after.size(); ++end)
      if (elements(after, first, end) == all) return RowDims{first, end - first};
  }
  return std::nullopt;
}

int64_t joined_dim(int64_t dim, RowDims rows) {
  const auto end = static_cast<int64_t>(rows.first + rows.count);
  return dim < end ? dim : dim - static_cast<int64_t>(rows.count) + 1;
}

}  // namespace sfsdp::passes
