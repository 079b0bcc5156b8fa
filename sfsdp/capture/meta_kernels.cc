// SPDX-License-Identifier: BSD-3-Clause
// Sizes, strides, dtypes and aliasing must be those of the real CPU kernel: reshape decides view or copy from strides.
#include "sfsdp/capture/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>

#include "sfsdp/base/check.h"

namespace sfsdp::capture {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

Tensor meta_relu(const Tensor& x) { return at::empty_like(x); }

Tensor meta_where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto dtype = at::result_type(x, y);
  // Broadcasting and memory format are those of a pointwise op of all three.
  return at::add(at::add(at::empty_like(x, x.options().dtype(dtype)), at::empty_like(y, y.options().dtype(dtype))),
                 at::empty_like(condition, condition.options().dtype(dtype)))
      .to(dtype);
}

Tensor meta_index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor meta_embedding_dense_backward(const Tensor& grad, const Tensor& indices, int64_t num_weights, int64_t, bool) {
  (void)indices;
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

std::vector<int64_t> layer_norm_stat_shape(const Tensor& x, at::IntArrayRef normalized_shape) {
  auto shape = x.sizes().vec();
  for (size_t i = shape.size() - normalized_shape.size(); i < shape.size(); ++i) shape[i] = 1;
  return shape;
}

std::tuple<Tensor, Tensor, Tensor> meta_native_layer_norm(const Tensor& x, at::IntArrayRef normalized_shape,
                                                          const OptTensor& weight, const OptTensor& bias, double) {
  (void)bias;
  // bf16 input with float weights keeps float statistics; otherwise statistics have the input's dtype.
  const bool mixed =
      at::isReducedFloatingType(x.scalar_type()) && weight && weight->defined() && weight->scalar_type() == at::kFloat;
  auto stats = x.options();
  if (mixed) stats = stats.dtype(at::kFloat);
  const auto shape = layer_norm_stat_shape(x, normalized_shape);
  return {at::empty(x.sizes(), x.options()), at::empty(shape, stats), at::empty(shape, stats)};
}

std::tuple<Tensor, Tensor, Tensor> meta_native_layer_norm_backward(const Tensor&, const Tensor& x,
                                                                   at::IntArrayRef normalized_shape, const Tensor&,
                                                                   const Tensor&, const OptTensor& weight,
                                                                   const OptTensor& bias, std::array<bool, 3> mask) {
  (void)normalized_shape;
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = at::empty(x.sizes(), x.options());
  if (mask[1] && weight && weight->defined()) dweight = at::empty(weight->sizes(), weight->options());
  if (mask[2] && bias && bias->defined()) dbias = at::empty(bias->sizes(), bias->options());
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm(const Tensor& x, const OptTensor&, const OptTensor&,
                                                          const OptTensor&, const OptTensor&, bool training, double,
                                                          double) {
  const int64_t channels = training ? x.size(1) : 0;
  auto stats = x.options();
  if (at::isReducedFloatingType(x.scalar_type())) stats = stats.dtype(at::kFloat);
  return {at::empty_like(x), at::empty({channels}, stats), at::empty({channels}, stats)};
}

std::tuple<Tensor, Tensor, Tensor> meta_native_batch_norm_backward(const Tensor&, const Tensor& x,
                                                                   const OptTensor& weight, const OptTensor&,
                                                                   const OptTensor&, const OptTensor&, const OptTensor&,
                                                                   bool, double, std::array<bool, 3> mask) {
  Tensor dx, dweight, dbias;
  auto stats = weight && weight->defined() ? weight->options() : x.options();
  if (mask[0]) dx = at::empty_like(x);
  if (mask[1]) dweight = at::empty({x.size(1)}, stats);
  if (mask[2]) dbias = at::empty({x.size(1)}, stats);
  return {dx, dweight, dbias};
}

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
  return at::empty(sizes, x.options());
}

std::tuple<Tensor, Tensor, Tensor> meta_convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                             at::OptionalIntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                                             at::IntArrayRef, bool transposed, at::IntArrayRef,
                                                             int64_t groups, std::array<bool, 3> mask) {
  (void)transposed, (void)groups;
  Tensor dx, dweight, dbias;
  if (mask[0]) dx = at::empty(x.sizes(), x.options());
  if (mask[1]) dweight = at::empty(weight.sizes(), weight.options());
  if (mask[2]) dbias = at::empty({grad.size(1)}, grad.options());
  return {dx, dweight, dbias};
}

// q, k, v: [B, H, S, D]. Outputs and gradients lie as [B, S, H, D] in memory.
Tensor empty_bshd(const Tensor& like) {
  return at::empty_like(like.transpose(1, 2), at::MemoryFormat::Contiguous).transpose(1, 2);
}

std::tuple<Tensor, Tensor> meta_flash_cpu(const Tensor& q, const Tensor& k, const Tensor& v, double, bool,
                                          const OptTensor&, std::optional<double>) {
  (void)k, (void)v;
  auto lse = q.options();
  if (at::isReducedFloatingType(q.scalar_type())) lse = lse.dtype(at::kFloat);
  return {empty_bshd(q), at::empty({q.size(0), q.size(2), q.size(1)}, lse).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> meta_flash_cpu_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                           const Tensor& v, const Tensor&, const Tensor&, double, bool,
                                                           const OptTensor&, std::optional<double>) {
  return {empty_bshd(q), empty_bshd(k), empty_bshd(v)};
}

// Attention of the target cpu: its flash kernel where it applies, else plain products (LibTorch would trace the
// products always, since it chooses by the device of the tensors, which is meta).
Tensor attention_for_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask, double dropout,
                         bool causal, std::optional<double> scale, bool enable_gqa) {
  const bool same_heads = q.size(-3) == k.size(-3) || enable_gqa;
  const bool flash = q.dim() == 4 && k.dim() == 4 && dropout == 0.0 && same_heads && q.size(3) == v.size(3) &&
                     q.size(3) == k.size(3) && (!mask || !mask->defined());
  if (flash)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, std::nullopt, scale));
  return std::get<0>(
      at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, enable_gqa));
}

struct Registrar {
  torch::Library& meta;
  std::vector<std::string>* names;
  template <class F>
  void add(const char* name, F* function) {
    names->push_back(std::string("aten::") + name);
    const std::string full = names->back();
    const size_t dot = full.find('.');
    auto op = c10::Dispatcher::singleton().findSchema(
        {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
    meta.impl(name, function);
  }
};

std::vector<std::string> registered_names;

}  // namespace

void register_meta_kernels() {
  static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  Registrar registrar{meta, &registered_names};
  registrar.add("relu", &meta_relu);
  registrar.add("where.self", &meta_where);
  registrar.add("index_select", &meta_index_select);
  registrar.add("embedding_dense_backward", &meta_embedding_dense_backward);
  registrar.add("native_layer_norm", &meta_native_layer_norm);
  registrar.add("native_layer_norm_backward", &meta_native_layer_norm_backward);
  registrar.add("native_batch_norm", &meta_native_batch_norm);
  registrar.add("native_batch_norm_backward", &meta_native_batch_norm_backward);
  registrar.add("convolution", &meta_convolution);
  registrar.add("convolution_backward", &meta_convolution_backward);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu", &meta_flash_cpu);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu_backward", &meta_flash_cpu_backward);
  autograd.impl("scaled_dot_product_attention", &attention_for_cpu);
}

std::vector<std::string> meta_kernel_names() { return registered_names; }

}  // namespace sfsdp::capture
