// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/vocabulary.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

enum Reduction : int64_t { kEach = 0, kMean = 1 };

OwnClasses of_rank(const ir::Op& op, const comm::Communicator& group, int64_t count) {
  const int64_t all = group.size() * count;
  return {group.rank() * count, count, op.attr_or("classes", op.attr_or("num_weights", all))};
}
OwnClasses own_classes(const KernelContext& c, int64_t count) {
  return c.group ? of_rank(c.op, *c.group->group, count) : OwnClasses{0, count, count};
}

std::span<const int64_t> numbers(const Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

int64_t ignored_class(const ir::Op& op) { return op.attr_or("ignore_index", int64_t{-100}); }

at::ScalarType dtype_of_result(const ir::Op& op, int result) {
  return capture::scalar_type_of(op.result(result)->type().dtype);
}

// Where the targets are classes of the rank's, and which, 0 elsewhere; both [n, 1].
struct OwnTargets {
  Tensor is_own, column;
};
OwnTargets own_targets(const Tensor& targets, int64_t ignored, const OwnClasses& own) {
  const Tensor is_own =
      targets.ge(own.first).logical_and_(targets.lt(own.first + own.counted())).logical_and_(targets.ne(ignored));
  return {is_own.unsqueeze(1), at::where(is_own, targets - own.first, at::zeros_like(targets)).unsqueeze(1)};
}

}  // namespace

OwnClasses own_classes(const ir::Op& op, const Groups& groups, int64_t count) {
  const auto axes = ir::axes_of(op);
  const auto group = axes ? groups.find(axis_key(*axes)) : groups.end();
  if (group == groups.end()) return {0, count, count};
  return of_rank(op, *group->second, count);
}

void check_ids(std::span<const int64_t> ids, const OwnClasses& own) {
  for (const int64_t id : ids)
    TORCH_CHECK_INDEX(own.is_known(id), "index ", id, " is out of bounds of ", own.whole, " rows");
}

int64_t check_targets(std::span<const int64_t> targets, int64_t ignored, const OwnClasses& own) {
  int64_t count = 0;
  for (const int64_t target : targets) {
    if (target == ignored) continue;
    TORCH_CHECK_INDEX(own.is_known(target), "Target ", target, " is out of bounds.");
    ++count;
  }
  return count;
}

void look_up(const Tensor& w, const Tensor& ids, const OwnClasses& own, const Tensor& out) {
  check_ids(numbers(ids), own);
  const auto row_bytes = static_cast<size_t>(w.size(1)) * w.itemsize();
  const auto* from = static_cast<const std::byte*>(w.const_data_ptr());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (const int64_t id : numbers(ids)) {
    if (own.has(id))
      std::memcpy(to, from + static_cast<size_t>(id - own.first) * row_bytes, row_bytes);
    else
      std::memset(to, 0, row_bytes);
    to += row_bytes;
  }
}

// %w [rows, width], %ids
Tensors embedding_of_part(const KernelContext& c) {
  const Tensor w = c.operands[0].contiguous();
  const Tensor out = at::empty(c.op.result()->type().shape(), w.options());
  look_up(w, c.operands[1].to(at::kLong).contiguous(), own_classes(c, w.size(0)), out);
  return {out};
}

// %grad, %ids. What is not the rank's, and the padding, is put into a row after the last, which is left out.
Tensors embedding_backward_of_part(const KernelContext& c) {
  const Tensor ids = c.operands[1].to(at::kLong).contiguous();
  const int64_t count = c.op.result()->type().shape()[0];
  const OwnClasses own = own_classes(c, count);
  check_ids(numbers(ids), own);
  const int64_t padding = c.op.attr_or("padding_idx", int64_t{-1});
  const Tensor local = at::empty_like(ids);
  auto* to = local.mutable_data_ptr<int64_t>();
  for (const int64_t id : numbers(ids)) *to++ = own.has(id) && id != padding ? id - own.first : count;
  const Tensor grad =
      at::embedding_dense_backward(c.operands[0], local, count + 1, count, c.op.attr_or("scale_grad_by_freq", false));
  return {grad.narrow(0, 0, count).contiguous()};
}

// %logits [n, classes], %targets
Tensors cross_entropy_parts(const KernelContext& c) {
  const Tensor logits = c.operands[0].to(dtype_of_result(c.op, 0)), targets = c.operands[1].contiguous();
  const OwnClasses own = own_classes(c, logits.size(1));
  const int64_t ignored = ignored_class(c.op);
  check_targets(numbers(targets), ignored, own);
  const Tensor x = logits.narrow(1, 0, own.counted());
  if (own.counted() == 0) {
    const Tensor none = at::zeros({3, targets.numel()}, x.options());
    none[0].fill_(-std::numeric_limits<double>::infinity());
    return {none};
  }
  const Tensor largest = x.amax(1);
  // Where all are -inf, nothing is relative to them: the sum is 0.
  const Tensor base = largest.masked_fill(largest.eq(-std::numeric_limits<double>::infinity()), 0).unsqueeze(1);
  const OwnTargets own_target = own_targets(targets, ignored, own);
  const Tensor picked = x.gather(1, own_target.column).masked_fill(own_target.is_own.logical_not(), 0).squeeze(1);
  return {at::stack({largest, (x - base).exp().sum(1), picked})};
}

// %parts [3 · ranks, n], %targets. Added in the order of the ranks, so that all of them have the same bits.
Tensors cross_entropy_of_parts(const KernelContext& c) {
  const Tensor targets = c.operands[1].contiguous();
  const Tensor parts = c.operands[0].view({-1, 3, targets.numel()});
  const Tensor base = parts.select(1, 0).amax(0);
  Tensor sum = at::zeros_like(base), target = at::zeros_like(base);
  for (int64_t rank = 0; rank < parts.size(0); ++rank) {
    const Tensor part = parts[rank];
    sum = sum + part[1] * (part[0] - base).exp();
    target = target + part[2];
  }
  const Tensor log_sum = sum.log(), is_ignored = targets.eq(ignored_class(c.op));
  // The largest logit goes first: of large ones the difference is what counts.
  const Tensor each = ((base - target) + log_sum).masked_fill(is_ignored, 0);
  const int64_t reduction = c.op.attr_or("reduction", int64_t{kMean});
  // As nll_loss leaves it where no loss is reduced: 0.
  const Tensor count = (reduction == kEach ? at::zeros({}, at::kLong) : is_ignored.logical_not().sum());
  const Tensor loss = reduction == kEach ? each : reduction == kMean ? each.sum() / count : each.sum();
  return {loss.to(dtype_of_result(c.op, 0)), count.to(dtype_of_result(c.op, 1)), base + log_sum};
}

// %grad, %logits [n, classes], %targets, %count, %lse
Tensors cross_entropy_backward_of_part(const KernelContext& c) {
  const Tensor &lse = c.operands[4], targets = c.operands[2].contiguous();
  const Tensor x = c.operands[1].to(lse.scalar_type());
  const int64_t ignored = ignored_class(c.op), reduction = c.op.attr_or("reduction", int64_t{kMean});
  const OwnClasses classes = own_classes(c, x.size(1));
  const OwnTargets own = own_targets(targets, ignored, classes);
  Tensor factor = c.operands[0].to(lse.scalar_type());
  if (reduction == kMean) factor = factor / c.operands[3].to(lse.scalar_type());
  const Tensor by_row = factor.expand_as(targets).masked_fill(targets.eq(ignored), 0).unsqueeze(1);
  Tensor slope = (x - lse.unsqueeze(1)).exp();
  slope.narrow(1, classes.counted(), classes.count - classes.counted()).zero_();
  slope.scatter_add_(1, own.column, own.is_own.to(slope.scalar_type()).neg());
  return {slope.mul_(by_row).to(c.operands[1].scalar_type())};
}

}  // namespace sfsdp::exec
