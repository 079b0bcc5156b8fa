// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/chunk_rows_of_loss.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/factor_parts.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/passes/memory/chunk_loss.h"
#include "sfsdp/passes/memory/sum_of_chunks.h"

namespace sfsdp::passes {
namespace {

using ir::Dim, ir::Op, ir::Type, ir::Value;

constexpr int64_t kMean = 1, kSum = 2;  // at::Reduction

// The same shape with its rows as one dimension, of `rows`.
std::vector<int64_t> joined_shape(const std::vector<int64_t>& shape, RowDims at, int64_t rows) {
  std::vector<int64_t> joined(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(at.first));
  joined.push_back(rows);
  joined.insert(joined.end(), shape.begin() + static_cast<std::ptrdiff_t>(at.first + at.count), shape.end());
  return joined;
}

class RowsRewriter {
 public:
  RowsRewriter(ir::Graph& graph, const LossRows& loss)
      : graph_(graph),
        m_(loss),
        build_(graph),
        place_(build_.before(loss.backward).in(ir::Section::Bwd).at(loss.product->module_path)),
        grad_of_weight_(graph, build_, place_) {}

  // The count and the rows of what is read whole, the chunks one by one, then what they add up to or make side by side.
  void run(int64_t chunks) {
    const int64_t rows = m_.count(), each = (rows + chunks - 1) / chunks;
    hidden_ = in_rows(m_.product->operands[0]);
    count_targets();
    for (int64_t start = 0; start < rows; start += each) chunk(start, std::min(each, rows - start));
    Value* loss = loss_;
    if (m_.loss->attr_or("reduction", kMean) == kMean) loss = add("div", {loss, total_}, loss->type());
    build_.replace(m_.loss->result(0), loss);
    replace_grad_of_hidden();
    grad_of_weight_.replace((m_.weight_sum ? m_.weight_sum : m_.grad_weight)->result());
    build_.erase(m_.forward);
    build_.erase(m_.gradients);
    build_.erase(m_.apart);
    const Value *hidden = hidden_, *weight = m_.grad_hidden->operands[1];
    build_.apply("chunk_loss");
    expect_chunked(graph_, hidden, weight, each);
  }

 private:
  Value* add(ir::Opcode opcode, std::vector<Value*> operands, Type type, ir::Attrs attrs = {}) {
    return place_.value(opcode, std::move(operands), std::move(type), "", std::move(attrs));
  }

  Dim all_rows() const { return m_.loss->operands[1]->type().dims[0]; }
  // Those of a chunk are one range of what a rank has, in no blocks.
  static Dim rows_of(const Dim& all, int64_t rows) { return {.size = rows, .split = all.split}; }

  // `type` with its rows as one dimension, in row-major order.
  static Type joined(const Type& type, RowDims at, Dim rows) {
    Type made = type;
    made.strides.clear();
    const auto first = made.dims.begin() + static_cast<std::ptrdiff_t>(at.first);
    *first = std::move(rows);
    made.dims.erase(first + 1, first + static_cast<std::ptrdiff_t>(at.count));
    return made;
  }

  // [..., width] as [rows, width].
  Value* in_rows(Value* value) {
    if (!value->type().strides.empty()) {
      Type dense = value->type();
      dense.strides.clear();
      value = add("aten.clone", {value}, dense, {{"memory_format", int64_t{0}}});
    }
    const size_t dims = value->type().dims.size();
    if (dims == 2) return value;
    const Type type = joined(value->type(), {0, dims - 1}, all_rows());
    return add("aten.view", {value}, type, {{"size", type.shape()}});
  }

  Value* range_of(Value* value, int64_t start, int64_t rows) {
    Type type = value->type();
    type.dims[0] = rows_of(type.dims[0], rows);
    return add("narrow", {value}, std::move(type), {{"dim", int64_t{0}}, {"start", start}, {"length", rows}});
  }

  // Each chunk's gradient needs the divisor of the mean, over ranks too: it is counted where the loss stood.
  void count_targets() {
    const auto before = build_.before(m_.loss).like(*m_.loss);
    Value* targets = m_.loss->operands[1];
    Type counted = targets->type();
    counted.dtype = ir::DType::b1;
    const auto ignored = m_.loss->attr_or<int64_t>("ignore_index", -100);
    Value* ne = before.value("aten.ne.Scalar", {targets}, counted, "", {{"other", ignored}});
    counted.dtype = m_.loss->result(1)->type().dtype;
    total_ = before.value("aten.sum", {before.value("cast", {ne}, counted)}, m_.loss->result(1)->type());
    build_.replace(m_.loss->result(1), total_);
  }

  void chunk(int64_t start, int64_t rows) {
    made_.clear();
    Value* hidden = range_of(hidden_, start, rows);
    made_[m_.product->operands[0]] = hidden;
    if (!m_.weight_sum) made_[m_.grad_weight->operands[1]] = hidden;
    made_[m_.product->operands[1]] = m_.grad_hidden->operands[1];
    made_[m_.loss->operands[1]] = range_of(m_.loss->operands[1], start, rows);
    made_[m_.loss->result(1)] = total_;
    for (const Op* op : m_.forward) repeat(*op, rows);
    Value* sum = made_.at(m_.loss->result(0));
    sum->producer()->attrs["reduction"] = kSum;
    loss_ = loss_ ? add("aten.add.Tensor", {loss_, sum}, loss_->type()) : sum;
    made_[m_.loss->result(1)] = total_;
    for (const Op* op : m_.gradients) repeat(*op, rows);
    grads_of_hidden_.push_back(made_.at(m_.grad_hidden->result()));
    grad_of_weight_.add(
        m_.weight_sum ? add("linear_dw", {made(m_.grad_hidden->operands[0]), hidden}, m_.weight_sum->result()->type())
                      : made_.at(m_.grad_weight->result()));
  }

  Value* made(Value* value) const {
    const auto found = made_.find(value);
    return found == made_.end() ? value : found->second;
  }

  // `op` again on a chunk's values. A view between rows of samples and rows is nothing here.
  void repeat(const Op& op, int64_t rows) {
    std::vector<Value*> operands;
    for (Value* operand : op.operands) operands.push_back(operand ? made(operand) : nullptr);
    if (ir::has_flag(op, ir::kReshape) &&
        operands[0]->type().shape() == joined_shape(op.result()->type().shape(), m_.rows.at(op.result()), rows)) {
      made_[op.result()] = operands[0];
      return;
    }
    std::vector<ir::Graph::NewResult> results;
    for (const auto& result : op.results()) results.push_back({"", type_of(op, *result, rows)});
    Op* again = place_.again(op, std::move(operands), std::move(results));
    set_attributes(op, *again);
    for (size_t r = 0; r < op.results().size(); ++r) made_[op.results()[r].get()] = again->results()[r].get();
  }

  Type type_of(const Op& op, const Value& result, int64_t rows) const {
    const Dim chunk = rows_of(all_rows(), rows);
    if (&op == m_.loss) {
      Type type = result.type();
      if (!type.dims.empty()) type.dims[0] = chunk;
      return type;
    }
    if (&op == m_.grad_weight) return result.type();
    if (&op == m_.grad_hidden) return joined(result.type(), {0, result.type().dims.size() - 1}, chunk);
    return joined(result.type(), m_.rows.at(&result), chunk);
  }

  // Sizes, the number of a dimension, and strides where it is a view.
  void set_attributes(const Op& op, Op& again) const {
    if (again.has_attr("size")) again.attrs["size"] = again.result()->type().shape();
    const auto rows = m_.rows.find(op.operands[0]);
    if (const auto* dim = op.find_attr<int64_t>("dim"); dim && rows != m_.rows.end())
      again.attrs["dim"] = joined_dim(*dim, rows->second);
    if (!ir::has_flag(op, ir::kPermute) && !ir::has_flag(op, ir::kReshape)) return;
    Type type = again.result()->type();
    const auto geometry = ir::view_geometry(again, 0, {ir::strides_of(again.operands[0]->type()), 0});
    SFSDP_CHECK(geometry, "chunk_loss: ", ir::opcode_at(op), " is no view of a chunk's rows");
    if (!ir::same_places(type, geometry->strides)) type.strides = geometry->strides;
    again.result()->set_type(type);
  }

  void replace_grad_of_hidden() {
    Value* whole = m_.grad_hidden->result();
    const size_t dims = whole->type().dims.size();
    const Type type = joined(whole->type(), {0, dims - 1}, all_rows());
    Value* all = place_.list("aten.cat", grads_of_hidden_, type, "")->result();
    if (dims > 2) all = add("aten.view", {all}, whole->type(), {{"size", whole->type().shape()}});
    build_.replace(whole, all);
  }

  ir::Graph& graph_;
  const LossRows& m_;
  ir::Builder build_;
  ir::Builder::Place place_;
  SumOfChunks grad_of_weight_;
  Value *hidden_ = nullptr, *total_ = nullptr, *loss_ = nullptr;
  std::vector<Value*> grads_of_hidden_;
  std::unordered_map<const Value*, Value*> made_;  // of the chunk that is being made
};

}  // namespace

void chunk_rows_of_loss(ir::Graph& graph, const LossRows& loss, int64_t chunks) {
  RowsRewriter(graph, loss).run(chunks);
}

}  // namespace sfsdp::passes
