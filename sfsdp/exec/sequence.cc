// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/sequence.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>
#include <span>
#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

PartPositions positions_of(const ir::Op& op, const comm::Communicator* group) {
  const int64_t ranks = group ? group->size() : 1, rank = group ? group->rank() : 0;
  const ir::SequenceCut cut = ir::sequence_cut(op, ranks);
  PartPositions positions = {ir::positions_of_rank(cut, rank), {{0, cut.length}}, cut.length};
  if (op.has_attr("shift")) positions.keys = ir::positions_of_rank(cut, ir::rank_of_keys(op, rank, ranks));
  return positions;
}

Tensor listed(const std::vector<ir::PositionRun>& runs) {
  Tensors all;
  for (const ir::PositionRun& run : runs) all.push_back(at::arange(run.first, run.first + run.count, at::kLong));
  return at::cat(all);
}

// Whether a query sees a key, [B or 1, Q, K].
//   documents: [B, T], of each position of the sequence; undefined: all are one
Tensor seen_by(const KernelContext& c, const Tensor& documents) {
  const PartPositions positions = positions_of(c.op, c.group ? c.group->group.get() : nullptr);
  const Tensor queries = listed(positions.queries), keys = listed(positions.keys);
  const Tensor seen = keys.le(queries.unsqueeze(1)).unsqueeze(0);
  if (!documents.defined()) return seen;
  return documents.index_select(1, queries)
      .unsqueeze(2)
      .eq(documents.index_select(1, keys).unsqueeze(1))
      .logical_and_(seen);
}

// What is added to the scores, [B or 1, 1, Q, K]: 0 where a query sees the key, else -inf.
Tensor mask_of(const Tensor& seen, const at::TensorOptions& options) {
  return at::zeros(seen.sizes(), options).masked_fill_(seen.logical_not(), kMinusInfinity).unsqueeze(1);
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

PartPositions positions_of_part(const ir::Op& op, const Groups& groups) {
  const auto group = groups.find(axis_key(op.attrs.at("axis")));
  return positions_of(op, group == groups.end() ? nullptr : group->second.get());
}

// %q, %k, %v[, %documents]
Tensors attention_of_part(const KernelContext& c) {
  const Tensors in = by_row(c.operands.first(3));
  const Tensor seen = seen_by(c, documents_in(c, 3));
  const auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      in[0], in[1], in[2], ir::number_of(c.op, "dropout_p", 0), /*is_causal=*/false, mask_of(seen, in[0].options()),
      scale_of(c.op));
  if (c.op.has_attr("shift")) {                                    // LibTorch divides by the sum of nothing
    const Tensor none = seen.any(-1).logical_not_().unsqueeze(1);  // [B or 1, 1, Q]
    log_sum.masked_fill_(none, kMinusInfinity);
    out.masked_fill_(none.unsqueeze(-1), 0);
  }
  return laid_out(c.op, Tensors{out, log_sum});
}

// %grad, %q, %k, %v, %o, %lse[, %documents]
Tensors attention_backward_of_part(const KernelContext& c) {
  const Tensors in = by_row(c.operands.first(5));
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      in[0], in[1], in[2], in[3], in[4], c.operands[5], ir::number_of(c.op, "dropout_p", 0), /*is_causal=*/false,
      mask_of(seen_by(c, documents_in(c, 6)), in[1].options()), scale_of(c.op));
  return laid_out(c.op, Tensors{q, k, v});
}

// %o_a, %lse_a, %o_b, %lse_b
Tensors merge_attention(const KernelContext& c) {
  const Tensor &lse_a = c.operands[1], &lse_b = c.operands[3];
  const Tensor most = at::maximum(lse_a, lse_b);
  const Tensor base = most.masked_fill(most.eq(kMinusInfinity), 0);  // neither has seen a key
  const Tensor of_a = lse_a.sub(base).exp_(), of_b = lse_b.sub(base).exp_(), sum = of_a.add(of_b);
  const Tensor by = sum.masked_fill(sum.eq(0), 1);
  const Tensor share_a = of_a.div_(by).unsqueeze(-1), share_b = of_b.div_(by).unsqueeze(-1);
  const Tensor out =
      c.operands[0].to(lse_a.scalar_type()).mul(share_a).addcmul_(c.operands[2].to(lse_a.scalar_type()), share_b);
  const Tensor log_sum = sum.log().add_(base);
  return laid_out(c.op, Tensors{out.to(capture::scalar_type_of(c.op.result(0)->type().dtype)), log_sum});
}

}  // namespace sfsdp::exec
