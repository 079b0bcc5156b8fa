// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/sequence.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>
#include <span>
#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

size_t query_of(const ir::Op& op) { return op.is("sdpa_backward") ? 1 : 0; }

std::vector<ir::PositionRun> positions_of(const ir::Op& op, const comm::Communicator* group) {
  const size_t query = query_of(op);
  const ir::SequenceCut cut = ir::sequence_cut(op, op.operands[query]->type(), op.operands[query + 1]->type());
  SFSDP_CHECK(cut.ranks == (group ? group->size() : 1), op.opcode, " %", op.result()->name(), " has a part of ",
              cut.ranks, ", there are ", group ? group->size() : 1, " ranks");
  return ir::positions_of_rank(cut, group ? group->rank() : 0);
}

// What is added to the scores, [B or 1, 1, Q, T]: 0 where a query sees the key, else -inf.
//   documents: [B, T], undefined: all are one
Tensor mask_of(const KernelContext& c, const Tensor& documents) {
  const Tensor& keys = c.operands[query_of(c.op) + 1];
  Tensors runs;
  for (const ir::PositionRun& run : positions_of(c.op, c.group ? c.group->group.get() : nullptr))
    runs.push_back(at::arange(run.first, run.first + run.count, at::kLong));
  const Tensor positions = at::cat(runs);
  Tensor seen = at::arange(keys.size(2), at::kLong).le(positions.unsqueeze(1)).unsqueeze(0);
  if (documents.defined())
    seen = documents.index_select(1, positions).unsqueeze(2).eq(documents.unsqueeze(1)).logical_and_(seen);
  return at::zeros(seen.sizes(), keys.options())
      .masked_fill_(seen.logical_not_(), -std::numeric_limits<double>::infinity())
      .unsqueeze(1);
}

Tensor documents_in(const KernelContext& c, size_t index) {
  return c.operands.size() > index ? c.operands[index] : Tensor();
}

// LibTorch's kernel takes the elements of a row to lie side by side, whatever the strides.
Tensors by_row(std::span<const Tensor> tensors) {
  Tensors rows;
  for (const Tensor& t : tensors) rows.push_back(t.stride(-1) == 1 ? t : t.contiguous());
  return rows;
}

std::optional<double> scale_of(const ir::Op& op) {
  const bool is_number = op.find_attr<double>("scale") || op.find_attr<int64_t>("scale");
  return is_number ? std::optional(ir::number_of(op, "scale")) : std::nullopt;
}

// In the strides of the op's types.
Tensors laid_out(const ir::Op& op, std::span<const Tensor> results) {
  Tensors placed;
  for (const Tensor& result : results) {
    const ir::Type& type = op.result(static_cast<int>(placed.size()))->type();
    if (type.strides.empty())
      placed.push_back(result.contiguous());
    else if (result.strides() == at::IntArrayRef(type.strides))
      placed.push_back(result);
    else
      placed.push_back(at::empty_strided(type.shape(), type.strides, result.options()).copy_(result));
  }
  return placed;
}

}  // namespace

std::vector<ir::PositionRun> own_positions(const ir::Op& op, const Groups& groups) {
  const auto group = groups.find(axis_key(op.attrs.at("axis")));
  return positions_of(op, group == groups.end() ? nullptr : group->second.get());
}

// %q, %k, %v[, %documents]
Tensors attention_of_part(const KernelContext& c) {
  const Tensors in = by_row(c.operands.first(3));
  const auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      in[0], in[1], in[2], ir::number_of(c.op, "dropout_p", 0), /*is_causal=*/false, mask_of(c, documents_in(c, 3)),
      scale_of(c.op));
  return laid_out(c.op, Tensors{out, log_sum});
}

// %grad, %q, %k, %v, %o, %lse[, %documents]
Tensors attention_backward_of_part(const KernelContext& c) {
  const Tensors in = by_row(c.operands.first(5));
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      in[0], in[1], in[2], in[3], in[4], c.operands[5], ir::number_of(c.op, "dropout_p", 0), /*is_causal=*/false,
      mask_of(c, documents_in(c, 6)), scale_of(c.op));
  return laid_out(c.op, Tensors{q, k, v});
}

}  // namespace sfsdp::exec
