// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/rope_call.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/kernels/rope.h"

namespace sfsdp::exec {
namespace {

constexpr int64_t kRowsOfThread = 256;

// The dimensions of rows end where those of `call.sizes` do; a missing one, or one of size 1, is the same for all.
kernels::RopeRows rows_of(const at::Tensor& tensor) {
  kernels::RopeRows rows;
  rows.data = tensor.const_data_ptr();
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d)
    if (tensor.size(d) > 1) rows.strides[kernels::kRopeDims - tensor.dim() + 1 + d] = tensor.stride(d);
  return rows;
}

}  // namespace

RopeCall::RopeCall(const ir::Op& op)
    : OwnCall(op), halves_(op.attr_or("halves", false)), inverse_(op.is("rope_inverse")) {}

bool RopeCall::can_write(size_t /*index*/, const at::Tensor& place) const { return place.stride(-1) == 1; }

std::span<at::Tensor> RopeCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  at::Tensor out = by_row(results[0]);  // its own memory where the type has elements of a row apart
  const at::Tensor x = by_row(operands[0]);
  kernels::Rope call;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) call.sizes[kernels::kRopeDims - x.dim() + 1 + d] = x.size(d);
  call.pairs = x.size(-1) / 2;
  call.halves = halves_;
  call.inverse = inverse_;
  call.dtype = capture::dtype_of(x.scalar_type());
  call.x = rows_of(x);
  call.out = rows_of(out);
  // One number for all pairs is written out: a row of a table has as many as it is asked for.
  const auto table = [&](const at::Tensor& angles, int64_t count) {
    if (angles.dim() > 0 && angles.size(-1) == count) return by_row(angles);
    std::vector<int64_t> sizes = angles.sizes().vec();
    if (sizes.empty()) sizes.push_back(1);
    sizes.back() = count;
    return by_row(angles.expand(sizes));
  };
  call.complex = operands.size() == 2;
  const at::Tensor& cos = operands[1];
  call.full = !call.complex && call.halves && cos.dim() > 0 && cos.size(-1) == x.size(-1);
  const at::Tensor first = table(cos, call.full ? 2 * call.pairs : call.pairs);
  call.cos = rows_of(first);
  at::Tensor second;
  if (!call.complex) {
    second = table(operands[2], call.full ? 2 * call.pairs : call.pairs);
    call.sin = rows_of(second);
    call.angle_dtype = capture::dtype_of(first.scalar_type());
  }
  at::parallel_for(0, kernels::rope_rows(call), kRowsOfThread,
                   [&](int64_t begin, int64_t end) { kernels::rope(call, begin, end); });
  if (!out.is_same(results[0])) results[0].copy_(out);
  return results;
}

}  // namespace sfsdp::exec
