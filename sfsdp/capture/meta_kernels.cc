// SPDX-License-Identifier: BSD-3-Clause
// Sizes, strides, dtypes and aliasing must be those of the real CPU kernel: reshape decides view or copy from strides.
#include "sfsdp/capture/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Pool.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include "sfsdp/capture/meta_rules.h"

namespace sfsdp::capture {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

Tensor meta_index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor meta_embedding_dense_backward(const Tensor& grad, const Tensor&, int64_t num_weights, int64_t, bool) {
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

// bf16 input with float weights keeps float statistics; otherwise statistics have the input's dtype.
at::TensorOptions statistics_of(const Tensor& x, const OptTensor& weight) {
  const bool mixed =
      at::isReducedFloatingType(x.scalar_type()) && weight && weight->defined() && weight->scalar_type() == at::kFloat;
  return mixed ? x.options().dtype(at::kFloat) : x.options();
}

std::tuple<Tensor, Tensor, Tensor> meta_native_layer_norm(const Tensor& x, at::IntArrayRef normalized_shape,
                                                          const OptTensor& weight, const OptTensor&, double) {
  auto rows = x.sizes().vec();
  std::fill(rows.end() - static_cast<int64_t>(normalized_shape.size()), rows.end(), 1);
  const auto stats = statistics_of(x, weight);
  return {at::empty(x.sizes(), x.options()), at::empty(rows, stats), at::empty(rows, stats)};
}

std::tuple<Tensor, Tensor, Tensor> meta_native_layer_norm_backward(const Tensor&, const Tensor& x, at::IntArrayRef,
                                                                   const Tensor&, const Tensor&,
                                                                   const OptTensor& weight, const OptTensor& bias,
                                                                   std::array<bool, 3> mask) {
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = at::empty(x.sizes(), x.options());
  if (mask[1] && weight && weight->defined()) dweight = at::empty(weight->sizes(), weight->options());
  if (mask[2] && bias && bias->defined()) dbias = at::empty(bias->sizes(), bias->options());
  return {dx, dweight, dbias};
}

bool is_dense(const Tensor& t) {
  return t.is_contiguous() || t.is_contiguous(at::MemoryFormat::ChannelsLast) ||
         t.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}
at::MemoryFormat dense_format(const Tensor& t) {
  if (t.is_contiguous()) return at::MemoryFormat::Contiguous;
  return t.is_contiguous(at::MemoryFormat::ChannelsLast3d) ? at::MemoryFormat::ChannelsLast3d
                                                           : at::MemoryFormat::ChannelsLast;
}
// The dtype of batch norm's statistics: that of the first parameter there is, so float beside a bf16 input.
c10::ScalarType statistics_dtype(const Tensor& x, std::initializer_list<OptTensor> parameters) {
  for (const OptTensor& p : parameters)
    if (p && p->defined()) return p->scalar_type();
  return x.scalar_type();
}

std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm(const Tensor& x, const OptTensor& weight,
                                                          const OptTensor& bias, const OptTensor& mean,
                                                          const OptTensor& var, bool training, double, double) {
  bool dense = is_dense(x);
  for (const OptTensor& p : {weight, bias, mean, var})
    if (p && p->defined()) dense &= p->is_contiguous();
  const auto stats = x.options().dtype(statistics_dtype(x, {weight, bias, mean, var}));
  const int64_t channels = training ? x.size(1) : 0;
  return {at::empty_like(x, dense ? dense_format(x) : at::MemoryFormat::Contiguous), at::empty({channels}, stats),
          at::empty({channels}, stats)};
}

// The form with running statistics as arguments of its own, which the functional twin is made of.
std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm_legit(const Tensor& x, const OptTensor& weight,
                                                                const OptTensor& bias, Tensor& mean, Tensor& var,
                                                                bool training, double momentum, double eps) {
  return meta_native_batch_norm(x, weight, bias, mean, var, training, momentum, eps);
}
std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm_no_stats(const Tensor& x, const OptTensor& weight,
                                                                   const OptTensor& bias, bool training,
                                                                   double momentum, double eps) {
  return meta_native_batch_norm(x, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm_backward(const Tensor& grad, const Tensor& x,
                                                                   const OptTensor& weight, const OptTensor& mean,
                                                                   const OptTensor& var, const OptTensor& save_mean,
                                                                   const OptTensor& save_invstd, bool, double,
                                                                   std::array<bool, 3> mask) {
  const bool dense = is_dense(x) && is_dense(grad) && x.suggest_memory_format() == grad.suggest_memory_format();
  const auto stats = x.options().dtype(statistics_dtype(x, {weight, mean, var, save_mean, save_invstd}));
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = at::empty_like(x, dense ? dense_format(x) : x.suggest_memory_format());
  if (mask[1]) dweight = at::empty({x.size(1)}, stats);
  if (mask[2]) dbias = at::empty({x.size(1)}, stats);
  return {dx, dweight, dbias};
}

// A convolution is done on images: a line is an image of height 1. Results are channels_last where the input or the
// weight is; a line's input is first made contiguous, its weight is not. double volumes never are.
struct ConvolutionLayout {
  ConvolutionLayout(const Tensor& x, const Tensor& weight) : line(x.dim() == 3) {
    const auto format_of = [](const Tensor& t) { return t.suggest_memory_format(); };
    format = line ? format_of(x.contiguous().unsqueeze(2)) : format_of(x);
    if (format == at::MemoryFormat::Contiguous) format = format_of(line ? weight.unsqueeze(2) : weight);
    if (x.dim() == 5 && x.scalar_type() == at::kDouble) format = at::MemoryFormat::Contiguous;
  }
  Tensor empty(const std::vector<int64_t>& sizes, const at::TensorOptions& options) const {
    if (!line) return at::empty(sizes, options.memory_format(format));
    return at::empty({sizes[0], sizes[1], 1, sizes[2]}, options.memory_format(format)).squeeze(2);
  }
  bool line;
  at::MemoryFormat format;
};

Tensor meta_convolution(const Tensor& x, const Tensor& weight, const OptTensor&, at::IntArrayRef stride,
                        at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                        at::IntArrayRef output_padding, int64_t groups) {
  std::vector<int64_t> sizes = {x.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const auto at_dim = [&](at::IntArrayRef v) { return v[v.size() == 1 ? 0 : static_cast<size_t>(d)]; };
    const int64_t kernel = at_dim(dilation) * (weight.size(d + 2) - 1) + 1;
    if (transposed)
      sizes.push_back((x.size(d + 2) - 1) * at_dim(stride) - 2 * at_dim(padding) + kernel + at_dim(output_padding));
    else
      sizes.push_back((x.size(d + 2) + 2 * at_dim(padding) - kernel) / at_dim(stride) + 1);
  }
  return ConvolutionLayout(x, weight).empty(sizes, x.options());
}

std::tuple<Tensor, Tensor, Tensor> meta_convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                             at::OptionalIntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                                             at::IntArrayRef, bool, at::IntArrayRef, int64_t,
                                                             std::array<bool, 3> mask) {
  const ConvolutionLayout layout(x, weight);
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = layout.empty(x.sizes().vec(), x.options());
  if (mask[1]) dweight = x.numel() == 0 ? at::empty_like(weight) : layout.empty(weight.sizes().vec(), weight.options());
  if (mask[2]) dbias = at::empty({grad.size(1)}, grad.options());
  return {dx, dweight, dbias};
}

// q, k, v: [B, H, S, D]; gradients lie as [B, S, H, D] in memory.
Tensor empty_bshd(const Tensor& like) {
  return at::empty(like.transpose(1, 2).sizes(), like.options()).transpose(1, 2);
}

std::tuple<Tensor, Tensor> meta_flash_cpu(const Tensor& q, const Tensor&, const Tensor&, double, bool, const OptTensor&,
                                          std::optional<double>) {
  auto lse = q.options();
  if (at::isReducedFloatingType(q.scalar_type())) lse = lse.dtype(at::kFloat);
  return {at::empty_like(q.transpose(1, 2)).transpose(1, 2),
          at::empty({q.size(0), q.size(2), q.size(1)}, lse).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> meta_flash_cpu_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                           const Tensor& v, const Tensor&, const Tensor&, double, bool,
                                                           const OptTensor&, std::optional<double>) {
  return {empty_bshd(q), empty_bshd(k), empty_bshd(v)};
}

bool whole_attention = false;  // one trace at a time

// Attention of the target cpu: the kernel that LibTorch would choose for CPU tensors of these shapes. Left alone it
// chooses by device, and for meta tensors always takes plain products.
Tensor attention_for_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask_or_none,
                         double dropout, bool causal, std::optional<double> scale, bool enable_gqa) {
  if (whole_attention) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;  // where the tracer records it
    return at::scaled_dot_product_attention(q, k, v, mask_or_none, dropout, causal, scale, enable_gqa);
  }
  OptTensor mask = mask_or_none;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool)  // both kernels add the mask
    mask = at::where(*mask, at::scalar_tensor(0.0, q.options()),
                     at::scalar_tensor(-std::numeric_limits<double>::infinity(), q.options()));
  static const auto choice = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("aten::_fused_sdp_choice", "")
                                 .typed<decltype(at::_fused_sdp_choice)>();
  const int64_t kernel =
      choice.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), q, k, v, mask, dropout, causal, scale, enable_gqa);
  if (kernel == static_cast<int64_t>(at::SDPBackend::flash_attention))
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
  return std::get<0>(
      at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, enable_gqa));
}

// native_group_norm also exists as a composite of ops that lack shape functions themselves.
std::tuple<Tensor, Tensor, Tensor> meta_native_group_norm(const Tensor& x, const OptTensor& weight, const OptTensor&,
                                                          int64_t samples, int64_t, int64_t, int64_t groups, double) {
  const auto stats = statistics_of(x, weight);
  return {at::empty_like(x, x.suggest_memory_format()), at::empty({samples, groups}, stats),
          at::empty({samples, groups}, stats)};
}

std::tuple<Tensor, Tensor, Tensor> meta_native_group_norm_backward(const Tensor&, const Tensor& x, const Tensor&,
                                                                   const Tensor&, const OptTensor& weight, int64_t,
                                                                   int64_t channels, int64_t, int64_t,
                                                                   std::array<bool, 3> mask) {
  const auto options = weight && weight->defined() ? weight->options() : x.options();
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = at::empty_like(x, x.suggest_memory_format());
  if (mask[1]) dweight = at::empty({channels}, options);
  if (mask[2]) dbias = at::empty({channels}, options);
  return {dx, dweight, dbias};
}

// The last sizes replaced.
std::vector<int64_t> with_tail(const Tensor& x, at::IntArrayRef tail) {
  auto sizes = x.sizes().vec();
  std::copy(tail.begin(), tail.end(), sizes.end() - static_cast<int64_t>(tail.size()));
  return sizes;
}
// The same; batched images keep channels_last.
Tensor empty_image(const Tensor& x, at::IntArrayRef tail) {
  return at::empty(with_tail(x, tail), x.options().memory_format(x.suggest_memory_format()));
}

Tensor meta_adaptive_avg_pool2d(const Tensor& x, at::IntArrayRef size) { return empty_image(x, size); }
Tensor meta_adaptive_avg_pool3d(const Tensor& x, at::IntArrayRef size) {
  return at::empty(with_tail(x, size), x.options());
}

// [left, right, top, bottom, …], innermost dimension first.
std::vector<int64_t> padded_tail(const Tensor& x, at::IntArrayRef padding) {
  std::vector<int64_t> tail;
  for (size_t i = padding.size() / 2; i-- > 0;)
    tail.push_back(x.size(-1 - static_cast<int64_t>(i)) + padding[2 * i] + padding[2 * i + 1]);
  return tail;
}
Tensor meta_reflection_pad2d(const Tensor& x, at::IntArrayRef padding) {
  return empty_image(x, padded_tail(x, padding));
}

Tensor meta_im2col(const Tensor& x, at::IntArrayRef kernel, at::IntArrayRef dilation, at::IntArrayRef padding,
                   at::IntArrayRef stride) {
  int64_t columns = 1;
  for (int64_t d = 0; d < 2; ++d) {
    const auto i = static_cast<size_t>(d);
    columns *= (x.size(d - 2) + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
  auto sizes = x.sizes().vec();
  sizes.pop_back();
  sizes[sizes.size() - 2] *= kernel[0] * kernel[1];
  sizes.back() = columns;
  return at::empty(sizes, x.options());
}

Tensor meta_col2im(const Tensor& x, at::IntArrayRef output, at::IntArrayRef kernel, at::IntArrayRef, at::IntArrayRef,
                   at::IntArrayRef) {
  auto sizes = x.sizes().vec();
  sizes[sizes.size() - 2] /= kernel[0] * kernel[1];
  sizes.back() = output[0];
  sizes.push_back(output[1]);
  return at::empty(sizes, x.options());
}

Tensor meta_unfold_backward(const Tensor& grad, at::IntArrayRef sizes, int64_t, int64_t, int64_t) {
  return at::empty(sizes, grad.options());
}

// sub with its operands turned round.
Tensor meta_rsub(const Tensor& x, const Tensor& other, const at::Scalar& alpha) { return at::sub(other, x, alpha); }

// The CPU kernel joins the two parts of each dimension, and cat chooses the strides.
Tensor meta_roll(const Tensor& x, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (x.numel() == 0) return at::empty_like(x);
  if (dims.empty()) return at::empty(x.sizes(), x.options());
  Tensor result = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t size = x.size(dims[i]), start = ((size - shifts[i]) % size + size) % size;
    result = at::cat({result.narrow(dims[i], start, size - start), result.narrow(dims[i], 0, start)}, dims[i]);
  }
  return result;
}

Tensor meta_take(const Tensor& x, const Tensor& index) { return at::empty(index.sizes(), x.options()); }

Tensor meta_bucketize(const Tensor& x, const Tensor&, bool int32, bool) {
  return at::empty(x.sizes(), x.options().dtype(int32 ? at::kInt : at::kLong));
}
Tensor meta_searchsorted(const Tensor& sorted, const Tensor& x, bool int32, bool right, std::optional<std::string_view>,
                         const OptTensor&) {
  return meta_bucketize(x, sorted, int32, right);
}

Tensor meta_addbmm(const Tensor& bias, const Tensor& a, const Tensor& b, const at::Scalar&, const at::Scalar&) {
  return at::empty({a.size(1), b.size(2)}, bias.options());
}

Tensor meta_polar(const Tensor& magnitude, const Tensor& angle) {
  return broadcast_all({magnitude, angle}, at::toComplexType(magnitude.scalar_type()));
}

std::tuple<Tensor, Tensor> meta_cumulative_extreme(const Tensor& x, int64_t) {
  return {at::empty(x.sizes(), x.options()), at::empty(x.sizes(), x.options().dtype(at::kLong))};
}

Tensor meta_log_sigmoid_backward(const Tensor& grad, const Tensor&, const Tensor&) { return at::empty_like(grad); }

std::tuple<Tensor, Tensor> meta_prelu_kernel_backward(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  const std::vector<Tensor> inputs = {x, weight, grad};
  return {broadcast_all(inputs, x.scalar_type()), broadcast_all(inputs, x.scalar_type())};
}

std::tuple<Tensor, Tensor> meta_nll_loss2d_forward(const Tensor& x, const Tensor& target, const OptTensor&,
                                                   int64_t reduction, int64_t) {
  const bool none = reduction == at::Reduction::None;
  return {none ? at::empty(target.sizes(), x.options()) : at::empty({}, x.options()), at::empty({}, x.options())};
}

// [batch..., rows of a, last]
Tensor empty_cdist(const Tensor& a, const Tensor& b, int64_t last) {
  const auto batch = [](const Tensor& t) { return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 2); };
  auto sizes = at::infer_size(batch(a), batch(b));
  sizes.insert(sizes.end(), {a.size(-2), last});
  return at::empty(sizes, a.options());
}
Tensor meta_cdist_forward(const Tensor& a, const Tensor& b, double, std::optional<int64_t>) {
  return empty_cdist(a, b, b.size(-2));
}
Tensor meta_cdist_backward(const Tensor&, const Tensor& a, const Tensor& b, double, const Tensor&) {
  return empty_cdist(a, b, a.size(-1));
}

std::tuple<Tensor, Tensor> meta_weight_norm(const Tensor& v, const Tensor& g, int64_t) {
  const bool reduced = at::isReducedFloatingType(g.scalar_type());
  return {at::empty(v.sizes(), v.options()),
          at::empty(g.sizes(), reduced ? g.options().dtype(at::kFloat) : g.options())};
}
std::tuple<Tensor, Tensor> meta_weight_norm_backward(const Tensor&, const Tensor& v, const Tensor& g, const Tensor&,
                                                     int64_t) {
  return {at::empty(v.sizes(), v.options()), at::empty(g.sizes(), g.options())};
}

Tensor meta_safe_softmax(const Tensor& x, int64_t dim, std::optional<at::ScalarType> dtype) {
  return at::empty_like(at::softmax(x, dim, dtype));
}

Tensor meta_grid_sampler_2d(const Tensor& x, const Tensor& grid, int64_t, int64_t, bool) {
  return at::empty({x.size(0), x.size(1), grid.size(1), grid.size(2)}, x.options());
}
std::tuple<Tensor, Tensor> meta_grid_sampler_2d_backward(const Tensor&, const Tensor& x, const Tensor& grid, int64_t,
                                                         int64_t, bool, std::array<bool, 2> mask) {
  return {mask[0] ? at::empty(x.sizes(), x.options()) : Tensor(), at::empty(grid.sizes(), grid.options())};
}

template <bool lower>
Tensor meta_tri_indices(int64_t rows, int64_t columns, int64_t offset, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r)
    count +=
        lower ? std::clamp<int64_t>(r + offset + 1, 0, columns) : columns - std::clamp<int64_t>(r + offset, 0, columns);
  return at::empty({2, count}, at::TensorOptions(dtype.value_or(at::kLong)).device(at::kMeta));
}

// Window arguments are one number or three; no stride: the kernel's.
std::tuple<Tensor, Tensor> meta_max_pool3d(const Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride,
                                           at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  if (stride.empty()) stride = kernel;
  std::vector<int64_t> tail;
  for (size_t d = 0; d < 3; ++d) {
    const auto of = [d](at::IntArrayRef v) { return v[v.size() == 1 ? 0 : d]; };
    tail.push_back(at::native::pooling_output_shape(x.size(static_cast<int64_t>(d) - 3), of(kernel), of(padding),
                                                    of(stride), of(dilation), ceil_mode));
  }
  Tensor out = empty_image(x, tail);
  // Without a batch dimension, a volume may lie channels last as one with it does.
  if (x.dim() == 4 && x.unsqueeze(0).is_contiguous(at::MemoryFormat::ChannelsLast3d))
    out = at::empty_like(out.unsqueeze(0), at::MemoryFormat::ChannelsLast3d).squeeze(0);
  return {out, at::empty_like(out, at::kLong)};
}

Tensor meta_max_unpool2d(const Tensor& x, const Tensor&, at::IntArrayRef size) { return empty_image(x, size); }
Tensor meta_max_unpool3d(const Tensor& x, const Tensor&, at::IntArrayRef size, at::IntArrayRef, at::IntArrayRef) {
  return at::empty(with_tail(x, size), x.options());
}

// Losses of rows of classes: a number for each target, or one.
std::vector<int64_t> row_loss_shape(const Tensor& x, bool each) {
  return each ? std::vector<int64_t>{x.dim() > 1 ? x.size(0) : 1} : std::vector<int64_t>{};
}
Tensor meta_multi_margin_loss(const Tensor& x, const Tensor& target, const at::Scalar&, const at::Scalar&,
                              const OptTensor&, int64_t reduction) {
  return at::empty(row_loss_shape(x, reduction == at::Reduction::None && target.dim() > 0), x.options());
}
std::tuple<Tensor, Tensor> meta_multilabel_margin_loss(const Tensor& x, const Tensor& target, int64_t reduction) {
  return {at::empty(row_loss_shape(x, reduction == at::Reduction::None && target.dim() > 1), x.options()),
          at::empty(target.sizes(), x.options())};
}

// Bags of rows, one after the other: offsets are where each begins. The kernel sums rows that lie dense in one call, and
// then leaves out the table of which bag a row is in.
std::tuple<Tensor, Tensor, Tensor, Tensor> meta_embedding_bag(const Tensor& weight, const Tensor& indices,
                                                              const Tensor& offsets, bool, int64_t mode, bool,
                                                              const OptTensor& scales, bool last_is_end,
                                                              int64_t padding) {
  constexpr int64_t kSum = 0, kMax = 2;
  const int64_t bags = offsets.size(0) - (last_is_end ? 1 : 0);
  const bool scaled = scales && scales->defined();
  const bool dense = weight.scalar_type() != at::kDouble && weight.stride(1) == 1 && padding < 0 &&
                     (!scaled || scales->stride(0) == 1);
  return {at::empty({bags, weight.size(1)}, weight.options()),
          at::empty({mode == kSum && dense ? 0 : indices.size(0)}, offsets.options()),
          at::empty({bags}, offsets.options()),
          mode == kMax ? at::empty({bags, weight.size(1)}, offsets.options()) : at::empty({bags}, offsets.options())};
}
Tensor meta_embedding_bag_backward(const Tensor& grad, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, int64_t rows, bool, int64_t, bool sparse, const OptTensor&, int64_t) {
  TORCH_CHECK(!sparse, "the gradient of an embedding with sparse(true) is a sparse tensor; set sparse(false)");
  return at::empty({rows, grad.size(1)}, grad.options());
}
Tensor meta_embedding_bag_scale_backward(const Tensor& grad, const Tensor&, const Tensor& indices, const Tensor&,
                                         const Tensor&, int64_t, int64_t) {
  return at::empty({indices.size(0)}, grad.options());
}

std::tuple<Tensor, Tensor> meta_ctc_loss(const Tensor& log_probs, const Tensor&, at::IntArrayRef,
                                         at::IntArrayRef target_lengths, int64_t, bool) {
  const int64_t steps = log_probs.size(0), batch = log_probs.size(1);
  const int64_t longest = target_lengths.empty() ? 0 : *std::ranges::max_element(target_lengths);
  return {at::empty({batch}, log_probs.options()), at::empty({batch, steps, 2 * longest + 1}, log_probs.options())};
}
Tensor meta_ctc_loss_backward(const Tensor&, const Tensor& log_probs, const Tensor&, at::IntArrayRef, at::IntArrayRef,
                              const Tensor&, const Tensor&, int64_t, bool) {
  return at::empty(log_probs.sizes(), log_probs.options());
}

// Products of groups: offsets are where each group ends, in the rows of a, the columns of b, or what both are summed over.
// Rows of the result begin at multiples of 16 bytes.
Tensor meta_grouped_mm(const Tensor& a, const Tensor& b, const OptTensor& offsets, const OptTensor&,
                       std::optional<at::ScalarType> dtype) {
  const auto options = a.options().dtype(dtype.value_or(a.scalar_type()));
  std::vector<int64_t> sizes = {a.size(-2), b.size(-1)};
  if (a.dim() == b.dim()) sizes.insert(sizes.begin(), a.dim() == 3 ? a.size(0) : offsets->size(0));
  const int64_t each = 16 / static_cast<int64_t>(options.dtype().itemsize());
  const int64_t row = (sizes.back() + each - 1) / each * each;
  if (sizes.size() == 2) return at::empty_strided(sizes, {row, 1}, options);
  return at::empty_strided(sizes, {sizes[1] * row, row, 1}, options);
}

Tensor meta_histc(const Tensor& x, int64_t bins, const at::Scalar&, const at::Scalar&) {
  return at::empty({bins}, x.options());
}

struct Registrar {
  torch::Library& meta;
  std::vector<std::string>* names;
  // Whether this LibTorch has the op and no shape function of its own for it.
  bool lacks(const char* name) {
    names->push_back(std::string("aten::") + name);
    const std::string full = names->back();
    const size_t dot = full.find('.');
    auto op = c10::Dispatcher::singleton().findSchema(
        {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
    return op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta);
  }
  template <class F>
  void add(const char* name, F* function) {
    if (lacks(name)) meta.impl(name, function);
  }
  void add(const MetaRuleRow& row) {
    if (lacks(row.name)) register_rule(meta, row);
  }
};

std::vector<std::string> registered_names;

void register_once() {
  static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  Registrar registrar{meta, &registered_names};
  for (const MetaRuleRow& row : meta_rules()) registrar.add(row);
  registrar.add("index_select", &meta_index_select);
  registrar.add("embedding_dense_backward", &meta_embedding_dense_backward);
  registrar.add("native_layer_norm", &meta_native_layer_norm);
  registrar.add("native_layer_norm_backward", &meta_native_layer_norm_backward);
  registrar.add("native_batch_norm", &meta_native_batch_norm);
  registrar.add("_native_batch_norm_legit", &meta_native_batch_norm_legit);
  registrar.add("_native_batch_norm_legit.no_stats", &meta_native_batch_norm_no_stats);
  registrar.add("native_batch_norm_backward", &meta_native_batch_norm_backward);
  registrar.add("convolution", &meta_convolution);
  registrar.add("convolution_backward", &meta_convolution_backward);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu", &meta_flash_cpu);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu_backward", &meta_flash_cpu_backward);
  registrar.add("native_group_norm", &meta_native_group_norm);
  registrar.add("native_group_norm_backward", &meta_native_group_norm_backward);
  registrar.add("_adaptive_avg_pool2d", &meta_adaptive_avg_pool2d);
  registrar.add("_adaptive_avg_pool3d", &meta_adaptive_avg_pool3d);
  registrar.add("reflection_pad2d", &meta_reflection_pad2d);
  registrar.add("im2col", &meta_im2col);
  registrar.add("col2im", &meta_col2im);
  registrar.add("unfold_backward", &meta_unfold_backward);
  registrar.add("rsub.Tensor", &meta_rsub);
  registrar.add("roll", &meta_roll);
  registrar.add("take", &meta_take);
  registrar.add("bucketize.Tensor", &meta_bucketize);
  registrar.add("searchsorted.Tensor", &meta_searchsorted);
  registrar.add("addbmm", &meta_addbmm);
  registrar.add("_grouped_mm", &meta_grouped_mm);
  registrar.add("histc", &meta_histc);
  registrar.add("polar", &meta_polar);
  registrar.add("cummax", &meta_cumulative_extreme);
  registrar.add("cummin", &meta_cumulative_extreme);
  registrar.add("log_sigmoid_backward", &meta_log_sigmoid_backward);
  registrar.add("_prelu_kernel_backward", &meta_prelu_kernel_backward);
  registrar.add("nll_loss2d_forward", &meta_nll_loss2d_forward);
  registrar.add("_cdist_forward", &meta_cdist_forward);
  registrar.add("_cdist_backward", &meta_cdist_backward);
  registrar.add("_weight_norm_interface", &meta_weight_norm);
  registrar.add("_weight_norm_interface_backward", &meta_weight_norm_backward);
  registrar.add("grid_sampler_2d", &meta_grid_sampler_2d);
  registrar.add("grid_sampler_2d_backward", &meta_grid_sampler_2d_backward);
  registrar.add("_safe_softmax", &meta_safe_softmax);
  registrar.add("max_pool3d_with_indices", &meta_max_pool3d);
  registrar.add("max_unpool2d", &meta_max_unpool2d);
  registrar.add("max_unpool3d", &meta_max_unpool3d);
  registrar.add("multi_margin_loss", &meta_multi_margin_loss);
  registrar.add("multilabel_margin_loss_forward", &meta_multilabel_margin_loss);
  registrar.add("_embedding_bag", &meta_embedding_bag);
  registrar.add("_embedding_bag_backward", &meta_embedding_bag_backward);
  registrar.add("_embedding_bag_per_sample_weights_backward", &meta_embedding_bag_scale_backward);
  registrar.add("_ctc_loss", &meta_ctc_loss);
  registrar.add("_ctc_loss_backward", &meta_ctc_loss_backward);
  registrar.add("tril_indices", &meta_tri_indices<true>);
  registrar.add("triu_indices", &meta_tri_indices<false>);
  autograd.impl("scaled_dot_product_attention", &attention_for_cpu);
}

}  // namespace

void register_meta_kernels() {
  static const bool registered = (register_once(), true);
  static_cast<void>(registered);
}

WholeAttention::WholeAttention() { whole_attention = true; }
WholeAttention::~WholeAttention() { whole_attention = false; }

std::vector<std::string> meta_kernel_names() { return registered_names; }

}  // namespace sfsdp::capture
