// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/expert_rows.h"
#include "sfsdp/exec/pack_into.h"
#include "sfsdp/exec/row_exchange.h"
#include "sfsdp/exec/sequence.h"
#include "sfsdp/exec/vocabulary.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/update_segments.h"
#include "sfsdp/kernels/sum_squares.h"

namespace sfsdp::exec {
namespace {

using Tensors = std::vector<at::Tensor>;

std::span<std::byte> bytes_of(const at::Tensor& t) {
  SFSDP_CHECK(t.is_contiguous(), "collective on a strided tensor ", t.sizes());
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

at::Tensor empty_result(const KernelContext& c, int index = 0) {
  const ir::Type& type = c.op.result(index)->type();
  return at::empty(type.shape(), at::TensorOptions(capture::scalar_type_of(type.dtype)));
}

Tensors collective(const KernelContext& c) {
  if (!c.group) return {c.operands[0]};
  at::Tensor out = empty_result(c);
  Tensors in(c.operands.begin(), c.operands.end());
  in[0] = in[0].resolve_conj().resolve_neg().contiguous();
  collective_into(c.op, *c.group, in, out);
  return {out};
}

// Results are contiguous, whatever the strides of operands, but for those that are operands themselves.
Tensors cast(const KernelContext& c) {
  return {c.operands[0].to(capture::scalar_type_of(c.op.result()->type().dtype)).contiguous()};
}

Tensors pad(const KernelContext& c) {
  const int64_t dim = c.op.attr<int64_t>("dim");
  const int64_t missing = c.op.attr<int64_t>("size") - c.operands[0].size(dim);
  if (missing == 0) return {c.operands[0].contiguous()};
  auto sizes = c.operands[0].sizes().vec();
  sizes[static_cast<size_t>(dim)] = missing;
  return {at::cat({c.operands[0], at::zeros(sizes, c.operands[0].options())}, dim)};
}

Tensors narrow(const KernelContext& c) {
  return {c.operands[0].narrow(c.op.attr<int64_t>("dim"), c.op.attr<int64_t>("start"), c.op.attr<int64_t>("length"))};
}

// The rank that stands so many before this one on the axis, around its end.
int64_t owner_of(const KernelContext& c, int64_t shift) {
  if (!c.group) return 0;
  const int64_t ranks = c.group->group->size();
  return (c.group->group->rank() + ranks - shift) % ranks;
}

Tensors own_part(const KernelContext& c) {
  if (!c.group) return {c.operands[0].contiguous()};
  const auto dim = c.op.attr<int64_t>("dim"), size = c.operands[0].size(dim) / c.group->group->size();
  return {c.operands[0].narrow(dim, owner_of(c, c.op.attr_or<int64_t>("shift", 0)) * size, size).contiguous()};
}

Tensors join_parts(const KernelContext& c) {
  std::vector<at::Tensor> parts(c.operands.size());
  for (size_t shift = 0; shift < parts.size(); ++shift)
    parts[static_cast<size_t>(owner_of(c, static_cast<int64_t>(shift)))] = c.operands[shift];
  return {at::cat(parts, c.op.attr<int64_t>("dim"))};
}

Tensors add_parts(const KernelContext& c) {
  const c10::ScalarType dtype = c.operands[0].scalar_type(),
                        wide = c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  at::Tensor sum = c.operands[0].to(wide, false, true, at::MemoryFormat::Contiguous);
  for (const at::Tensor& part : c.operands.subspan(1)) sum.add_(part.to(wide));
  return {sum.to(dtype)};
}

Tensors as_summand(const KernelContext& c) {
  const bool is_first = !c.group || c.group->group->rank() == 0;
  return {is_first ? c.operands[0].clone(at::MemoryFormat::Contiguous)
                   : at::zeros(c.operands[0].sizes(), c.operands[0].options())};
}

// Chunks lie in memory as ranges, one for each index of the dimensions before.
Tensors reorder(const KernelContext& c) {
  const at::Tensor from = c.operands[0].contiguous(), out = at::empty_like(from);
  const auto& order = c.op.attr<std::vector<int64_t>>("order");
  const auto dim = static_cast<size_t>(c.op.attr<int64_t>("dim"));
  const auto sizes = from.sizes();
  const int64_t rows = c10::multiply_integers(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(dim));
  if (from.numel() == 0) return {out};
  const size_t bytes = from.nbytes() / static_cast<size_t>(rows) / order.size();
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (int64_t row = 0; row < rows; ++row, source += bytes * order.size())
    for (const int64_t chunk : order) {
      std::memcpy(to, source + static_cast<size_t>(chunk) * bytes, bytes);
      to += bytes;
    }
  return {out};
}

Tensors identity(const KernelContext& c) { return {c.operands[0]}; }

Tensors full(const KernelContext& c) {
  at::Tensor out = empty_result(c);
  out.fill_(ir::number_of(c.op, "value"));
  return {out};
}

Tensors scalar(const KernelContext& c) {
  const auto dtype = capture::scalar_type_of(c.op.result()->type().dtype);
  at::Tensor out = std::visit(
      [&](const auto& v) -> at::Tensor {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(v)>>) return at::scalar_tensor(v, dtype);
        SFSDP_CHECK(false, "scalar %", c.op.result()->name(), " has no number");
        return {};
      },
      c.op.attrs.at("value"));
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return {out};
}

// One f64 per tensor, in operand order, so that the norm is added in parameter order on every mesh; its element i goes to sum
// i mod 32. A gradient that all ranks of `axis` hold alike counts on the first of them only.
Tensors sum_squares(const KernelContext& c) {
  const auto replicated = c.op.attr_or("replicated", std::vector<bool>(c.operands.size()));
  const auto integers = [&](const char* key) { return c.op.attr_or<std::vector<int64_t>>(key, {}); };
  const auto segments = integers("segments"), offsets = integers("offsets"), numels = integers("numels");
  at::Tensor out = at::zeros(c.op.result()->type().shape(), at::kDouble);
  double* sums = out.mutable_data_ptr<double>();
  const auto once = c.op.attr_or("counted_once", std::vector<bool>());
  const auto boxed = c.op.attr_or("boxed", std::vector<bool>(c.operands.size()));
  const int64_t boxes = c.op.attr_or<int64_t>("boxes", 1);
  const int64_t place = c.group ? c.group->group->rank() : 0, inner = c.op.attr_or<int64_t>("inner", 1);
  const int64_t rank = place / inner;
  const bool first_of_inner = place % inner == 0;
  size_t segment = 0, sum = 0;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const at::Tensor g = c.operands[i].contiguous();
    const int64_t parts = segments.empty() ? 0 : segments[i];
    // Where this rank's begins in the bucket, or in its box of one.
    const int64_t shard = replicated[i] ? 0 : (boxed[i] ? rank / boxes : rank) * g.numel();
    for (int64_t part = 0; part < std::max<int64_t>(parts, 1); ++part, ++sums, ++sum) {
      int64_t begin = 0, end = g.numel();
      if (parts > 0) {
        begin = std::clamp(offsets[segment] - shard, int64_t{0}, g.numel());
        end = std::clamp(offsets[segment] + numels[segment] - shard, int64_t{0}, g.numel());
        ++segment;
      }
      if ((replicated[i] && rank != 0) || (sum < once.size() && once[sum] && !first_of_inner)) continue;
      if (const ir::DType dtype = c.op.operands[i]->type().dtype; dtype == ir::DType::f32 || dtype == ir::DType::bf16) {
        *sums += kernels::sum_squares(static_cast<const char*>(g.const_data_ptr()) + begin * g.itemsize(), dtype,
                                      end - begin);
        continue;
      }
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(), "sum_squares", [&] {
        const scalar_t* data = g.const_data_ptr<scalar_t>();
        for (int64_t e = begin; e < end; ++e) *sums += static_cast<double>(data[e]) * static_cast<double>(data[e]);
      });
    }
  }
  return {out};
}

Tensors pack(const KernelContext& c) {
  at::Tensor out = at::empty(c.op.result()->type().shape(), c.operands[0].options());
  pack_into(c.op, c.operands, out);
  return {out};
}

Tensors unpack(const KernelContext& c) {
  at::Tensor out = at::empty(c.op.result()->type().shape(), c.operands[0].options());
  const at::Tensor parts = out.view({c.op.attr<int64_t>("ranks"), -1});
  const at::Tensor shares = c.operands[0].view({parts.size(0), -1});
  parts.copy_(shares.narrow(1, c.op.attr<int64_t>("offset"), parts.size(1)));
  return {out};
}

// A part of a contiguous operand, without a copy.
Tensors view(const KernelContext& c) {
  const std::vector<int64_t> shape = c.op.result()->type().shape();
  const at::Tensor flat = c.operands[0].reshape({-1});
  if (!c.op.has_attr("offset")) return {flat.view(shape)};
  return {flat.narrow(0, c.op.attr<int64_t>("offset"), c10::multiply_integers(shape)).view(shape)};
}

// sqrt of the sum; divided by the number of targets where the loss is (sum, count).
Tensors grad_norm(const KernelContext& c) {
  const double* values = c.operands[0].const_data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < c.operands[0].numel(); ++i) sum += values[i];
  double norm = std::sqrt(sum);
  if (c.operands.size() > 1 && c.operands[1].defined()) norm /= c.operands[1].item<double>();
  return {at::scalar_tensor(norm, at::kDouble)};
}

// What every gradient is multiplied by: min(1, max_norm / (norm + 1e-6)), and 1 / count where there is one.
Tensors clip_coefficient(const KernelContext& c) {
  const double max_norm = ir::number_of(c.op, "max_norm");
  const double norm = c.operands[0].item<double>();
  double coefficient = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  if (c.operands.size() > 1 && c.operands[1].defined()) coefficient /= c.operands[1].item<double>();
  return {at::scalar_tensor(coefficient, capture::scalar_type_of(c.op.result()->type().dtype))};
}

Tensors non_finite(const KernelContext& c) {
  return {at::scalar_tensor(std::isfinite(c.operands[0].item<double>()) ? 0.0 : 1.0, at::kFloat)};
}

// Out of place: two parameters may have one and the same gradient tensor. In the gradient's dtype, also where both are
// scalars and LibTorch would promote.
Tensors scale(const KernelContext& c) {
  return {(c.operands[0] * c.operands[1]).to(c.operands[0].scalar_type()).contiguous()};
}

Tensors div(const KernelContext& c) { return {at::div(c.operands[0], c.operands[1]).contiguous()}; }

Tensors mul_scalar(const KernelContext& c) {
  return {at::mul(c.operands[0], ir::number_of(c.op, "value")).contiguous()};
}

// Into the sum's own buffer where it is given away.
Tensors add_into(const KernelContext& c) {
  if (c.op.has_attr("donates")) return {c.operands[0].add_(c.operands[1])};
  return {c.operands[0].add(c.operands[1].to(c.operands[0].scalar_type())).contiguous()};
}

Tensors store(const KernelContext& c) { return {c.operands[0].copy_(c.operands[1])}; }

// A step that updates nothing is not counted.
Tensors step_count(const KernelContext& c) { return {c.operands[0] + (1.0 - c.operands[1])}; }

// Calls `update` for each segment of this rank's part with parameter, moments and gradient of it. The gradient is
// contiguous there: LibTorch's kernels take element i of each tensor's memory, whatever the strides.
template <class Update>
void for_segments(const KernelContext& c, const Update& update) {
  const size_t gradient = ir::gradient_operand(c.op);
  Tensors whole(c.operands.begin(), c.operands.begin() + static_cast<std::ptrdiff_t>(gradient) + 1);
  whole[gradient] = whole[gradient].resolve_neg().contiguous();
  const int64_t numel = whole[0].numel();
  for (const ir::UpdateSegment& s : ir::update_segments(c.op, c.group ? c.group->group->rank() * numel : 0, numel)) {
    Tensors parts = whole;
    if (s.end - s.begin != numel)
      for (at::Tensor& part : parts)
        if (part.defined()) part = part.view({-1}).narrow(0, s.begin, s.end - s.begin);
    update(parts, s.weight_decay, c.scalars.lr * s.lr_factor);
  }
}

// LibTorch's at::_fused_adamw_, and others of its kind.
using FusedAdam = void (*)(at::TensorList p, at::TensorList g, at::TensorList m, at::TensorList v, at::TensorList max_v,
                           at::TensorList steps, double lr, double beta1, double beta2, double weight_decay, double eps,
                           bool amsgrad, bool maximize, const std::optional<at::Tensor>& grad_scale,
                           const std::optional<at::Tensor>& found_inf);

// %p, %m, %v, %g, %step, %non_finite -> the three updated, in their own buffers.
Tensors adam_by(const KernelContext& c, FusedAdam fused) {
  const auto& in = c.operands;
  for_segments(c, [&](const Tensors& part, double weight_decay, double lr) {
    fused({part[0]}, {part[3]}, {part[1]}, {part[2]}, {}, {in[4]}, lr, ir::number_of(c.op, "beta1"),
          ir::number_of(c.op, "beta2"), weight_decay, ir::number_of(c.op, "eps"), /*amsgrad=*/false,
          /*maximize=*/false, /*grad_scale=*/std::nullopt, /*found_inf=*/in[5]);
  });
  return {in[0], in[1], in[2]};
}

// torch.optim.AdamW's formula, and torch.optim.Adam's.
Tensors adamw(const KernelContext& c) { return adam_by(c, &at::_fused_adamw_); }
Tensors adam(const KernelContext& c) { return adam_by(c, &at::_fused_adam_); }

// %p, %momentum, %g, %non_finite -> the two updated. torch.optim.SGD's formula; %momentum is none without momentum.
Tensors sgd(const KernelContext& c) {
  const auto& in = c.operands;
  if (in[3].item<float>() == 0.0f)
    for_segments(c, [&](const Tensors& part, double weight_decay, double lr) {
      at::Tensor direction = part[2];
      if (weight_decay != 0) direction = direction.add(part[0], weight_decay);
      if (part[1].defined()) {
        part[1].mul_(ir::number_of(c.op, "momentum")).add_(direction);
        direction = part[1];
      }
      part[0].add_(direction, -lr);
    });
  if (c.op.results().size() == 1) return {in[0]};
  return {in[0], in[1]};
}

// What is carried lies where it lay: the executor says how often what stands in between runs.
Tensors begin_trip(const KernelContext& c) { return {c.operands.begin() + 1, c.operands.end()}; }
Tensors end_trips(const KernelContext& c) { return {c.operands.begin(), c.operands.end()}; }

struct Row {
  std::string_view opcode;
  Kernel kernel;
};
constexpr Row kKernels[] = {
    {"all_gather", &collective},
    {"reduce_scatter", &collective},
    {"all_reduce", &collective},
    {"all_to_all", &collective},
    {"all_to_all_v", &collective},
    {"permute", &collective},
    {"cast", &cast},
    {"pad", &pad},
    {"narrow", &narrow},
    {"as_summand", &as_summand},
    {"own_part", &own_part},
    {"join_parts", &join_parts},
    {"add_parts", &add_parts},
    {"own_rows", &own_rows},
    {"spread_rows", &spread_rows},
    {"own_ends", &own_ends},
    {"further_rounds", &further_rounds},
    {"reorder", &reorder},
    {"embedding", &embedding_of_part},
    {"embedding_backward", &embedding_backward_of_part},
    {"cross_entropy_parts", &cross_entropy_parts},
    {"cross_entropy_of_parts", &cross_entropy_of_parts},
    {"cross_entropy_backward", &cross_entropy_backward_of_part},
    {"sdpa", &attention_of_part},
    {"sdpa_backward", &attention_backward_of_part},
    {"sdpa_merge", &merge_attention},
    {"view", &view},
    {"gradient", &identity},
    {"full", &full},
    {"scalar", &scalar},
    {"sum_squares", &sum_squares},
    {"pack", &pack},
    {"unpack", &unpack},
    {"all_gather.start", &collective},  // in order, op by op: done when it has started
    {"reduce_scatter.start", &collective},
    {"all_reduce.start", &collective},
    {"all_to_all.start", &collective},
    {"all_to_all_v.start", &collective},
    {"permute.start", &collective},
    {"wait", &identity},
    {"loop", &begin_trip},
    {"when", &begin_trip},
    {"end", &end_trips},
    {"grad_norm", &grad_norm},
    {"clip_coefficient", &clip_coefficient},
    {"non_finite", &non_finite},
    {"add_into", &add_into},
    {"store", &store},
    {"scale", &scale},
    {"div", &div},
    {"mul_scalar", &mul_scalar},
    {"step_count", &step_count},
    {"adamw", &adamw},
    {"adam", &adam},
    {"sgd", &sgd},
};

// Around the axis: each rank sends to the one that stands so many after it.
std::vector<comm::RankPair> pairs_of(const ir::Op& permute, int ranks) {
  std::vector<comm::RankPair> pairs;
  for (int rank = 0; rank < ranks; ++rank)
    pairs.push_back({rank, (rank + static_cast<int>(permute.attr<int64_t>("shift"))) % ranks});
  return pairs;
}

}  // namespace

GroupCall::GroupCall(const ir::Op& op, std::shared_ptr<comm::Communicator> ranks) : group(std::move(ranks)) {
  const std::string_view kind = ir::collective_kind(op);
  if (!ir::is_collective(op)) return;
  const comm::CallInfo info = {"%" + op.result()->name(), op.module_path};
  const ir::Type& out = op.result()->type();
  const auto in_bytes = static_cast<size_t>(op.operands[0]->type().bytes());
  const auto out_bytes = static_cast<size_t>(out.bytes());
  if (kind == "all_gather")
    call = comm::all_gather_call(in_bytes, out_bytes, group->size(), info);
  else if (kind == "reduce_scatter")
    call = comm::reduce_scatter_call(in_bytes, out_bytes, group->size(), out.dtype, ir::reduce_op(op), info);
  else if (kind == "all_reduce")
    call = comm::all_reduce_call(out_bytes, out.dtype, ir::reduce_op(op), info);
  else if (kind == "all_to_all")
    call = comm::all_to_all_call(in_bytes, out_bytes, group->size(), info);
  else if (kind == "permute")
    call = comm::permute_call(out_bytes, pairs_of(op, group->size()), group->size(), info);
}

namespace {

// The dimension as ranks and a rank's part, ranks in front.
at::Tensor by_rank(const at::Tensor& t, int64_t dim, int64_t ranks) {
  return t.unflatten(dim, {ranks, t.size(dim) / ranks}).movedim(dim, 0);
}

// What goes to a rank, and what comes from one, lies together in memory: copies, but where the dimension leads.
void exchange(const ir::Op& op, const GroupCall& group, const at::Tensor& in, const at::Tensor& out) {
  const int64_t ranks = group.group->size();
  const at::Tensor sent = by_rank(in, op.attr<int64_t>("split"), ranks).contiguous();
  const at::Tensor parts = by_rank(out, op.attr<int64_t>("join"), ranks);
  const at::Tensor received = parts.is_contiguous() ? parts : at::empty(parts.sizes(), parts.options());
  group.group->run(*group.call, bytes_of(sent), bytes_of(received));
  if (!parts.is_contiguous()) parts.copy_(received);
}

}  // namespace

int64_t trips_of(const ir::Op& loop, const at::Tensor& number) {
  const auto trips = number.item<int64_t>();
  if (trips < 0 || trips > ir::most_trips(loop))
    throw UserError(concat(ir::name_of(loop), " is to make ", trips, " trips\n  expected 0 to ", ir::most_trips(loop)));
  return trips;
}

void collective_into(const ir::Op& op, const GroupCall& group, std::span<const at::Tensor> operands,
                     const at::Tensor& out) {
  if (ir::collective_kind(op) == "all_to_all_v") return exchange_rows(op, *group.group, operands, out);
  const at::Tensor& in = operands[0];
  SFSDP_CHECK(group.call, "no kernel for ", op.opcode);
  if (group.call->kind() == comm::CallKind::AllToAll) return exchange(op, group, in, out);
  const bool in_place = group.call->kind() == comm::CallKind::AllReduce;
  if (in_place && in.const_data_ptr() != out.const_data_ptr()) out.view(in.sizes()).copy_(in);
  group.group->run(*group.call, bytes_of(in_place ? out : in), bytes_of(out));
}

Kernel find_kernel(std::string_view opcode) {
  const auto* row = std::ranges::find(kKernels, opcode, &Row::opcode);
  return row == std::end(kKernels) ? nullptr : row->kernel;
}

}  // namespace sfsdp::exec
