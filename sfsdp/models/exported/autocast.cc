// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/autocast.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::models {
namespace {

// That of a device which LibTorch has a name for and nobody kernels: ops of the lists have ours on it, others pass it by.
constexpr c10::DispatchKey kKey = c10::DispatchKey::AutocastIPU;

constexpr std::string_view kLower =
    "_addmm_activation _convolution.deprecated _native_multi_head_attention addbmm addmm baddbmm bmm conv1d "
    "conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input linalg_vecdot linear matmul mkldnn_rnn_layer mm prelu scaled_dot_product_attention";
constexpr std::string_view kWidest = "cat index_copy stack";
constexpr std::string_view kFloat32 =
    "_grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d "
    "binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky cholesky_inverse cholesky_solve "
    "cosine_embedding_loss cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor fake_quantize_per_tensor_affine "
    "fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn "
    "fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d "
    "grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky linalg_cholesky_ex "
    "linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product "
    "linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_matrix_rank.atol_rtol_float "
    "linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor linalg_matrix_sqrth linalg_qr linalg_solve "
    "linalg_svd "
    "linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d max_unpool2d "
    "max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nanquantile "
    "nanquantile.scalar nll_loss nll_loss2d orgqr ormqr pinverse poisson_nll_loss polar prod prod.dim_int qr "
    "quantile quantile.scalar reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "replication_pad3d smooth_l1_loss soft_margin_loss stft stft.center svd trace triangular_solve "
    "triplet_margin_loss view_as_complex";

thread_local Autocast* innermost = nullptr;

// No tensor of ours has the key, and threads begin with keys of autocast shut out (c10/core/impl/LocalDispatchKeySet.h).
void switch_on(bool on) {
  c10::impl::tls_set_dispatch_key_included(kKey, on);
  c10::impl::tls_set_dispatch_key_excluded(kKey, !on);
}

// What LibTorch casts; float64 stays as it is.
bool is_cast(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
         (tensor.is_cpu() || tensor.is_meta());
}

template <class See>
void each_tensor(std::span<const c10::IValue> arguments, const See& see) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) see(argument.toTensor());
    if (argument.isTensorList())
      for (const at::Tensor& tensor : argument.toTensorVector()) see(tensor);
  }
}

c10::ScalarType dtype_for(AutocastPolicy policy, std::span<const c10::IValue> arguments, c10::ScalarType lower) {
  if (policy == AutocastPolicy::Float32) return at::kFloat;
  if (policy == AutocastPolicy::Lower) return lower;
  c10::ScalarType widest = lower;
  each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (is_cast(tensor) && tensor.scalar_type() == at::kFloat) widest = at::kFloat;
  });
  return widest;
}

template <AutocastPolicy kPolicy>
void run_cast(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);  // also what the op calls takes what it gets
  Autocast& autocast = Autocast::current();
  const std::span<c10::IValue> arguments(*stack);
  const auto own = arguments.last(op.schema().arguments().size());
  const c10::ScalarType dtype = dtype_for(kPolicy, own, autocast.lower());
  for (c10::IValue& argument : own) {
    if (argument.isTensor()) {
      argument = autocast.cast(argument.toTensor(), dtype);
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> tensors = argument.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = autocast.cast(tensor, dtype);
      argument = std::move(tensors);
    }
  }
  op.callBoxed(stack);
}

// Ops that this LibTorch does not have are left out.
template <AutocastPolicy kPolicy>
void add_kernels(std::string_view ops, std::vector<c10::RegistrationHandleRAII>& registrations) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const std::string& op : split(ops, ' ')) {
    const size_t dot = std::min(op.find('.'), op.size());
    const c10::OperatorName name("aten::" + op.substr(0, dot), op.substr(std::min(dot + 1, op.size())));
    if (dispatcher.findSchema(name))
      registrations.push_back(dispatcher.registerImpl(name, kKey,
                                                      c10::KernelFunction::makeFromBoxedFunction<&run_cast<kPolicy>>(),
                                                      std::nullopt, nullptr, "sfsdp autocast"));
  }
}

void register_kernels() {
  static std::vector<c10::RegistrationHandleRAII> registrations;
  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.hasBackendFallbackForDispatchKey(kKey))
    registrations.push_back(
        dispatcher.registerFallback(kKey, c10::KernelFunction::makeFallthrough(), "sfsdp autocast"));
  add_kernels<AutocastPolicy::Lower>(kLower, registrations);
  add_kernels<AutocastPolicy::Float32>(kFloat32, registrations);
  add_kernels<AutocastPolicy::Widest>(kWidest, registrations);
}

}  // namespace

std::optional<AutocastPolicy> autocast_policy(std::string_view op) {
  constexpr std::string_view kNamespace = "aten::";
  if (!op.starts_with(kNamespace)) return std::nullopt;
  op.remove_prefix(kNamespace.size());
  const auto has = [&](std::string_view ops) {
    const std::vector<std::string> names = split(ops, ' ');
    return std::ranges::find(names, op) != names.end();
  };
  if (has(kLower)) return AutocastPolicy::Lower;
  if (has(kFloat32)) return AutocastPolicy::Float32;
  if (has(kWidest)) return AutocastPolicy::Widest;
  return std::nullopt;
}

Autocast::Autocast(bool on, std::optional<c10::ScalarType> lower)
    : outer_(innermost),
      on_(on),
      was_on_(c10::impl::tls_is_dispatch_key_included(kKey)),
      lower_(lower.value_or(outer_ ? outer_->lower_ : at::kBFloat16)),
      casts_(outer_ ? outer_->casts_ : own_casts_) {
  static const bool registered = (register_kernels(), true);
  SFSDP_CHECK(registered);
  innermost = this;
  switch_on(on_);
}

Autocast::~Autocast() {
  innermost = outer_;
  switch_on(was_on_);
}

Autocast& Autocast::current() {
  SFSDP_CHECK(innermost && innermost->on_, "no autocast is on");
  return *innermost;
}

// One cast of a parameter, whoever reads it: its gradients add up before they are cast back, as in LibTorch.
at::Tensor Autocast::cast(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (!is_cast(tensor) || tensor.scalar_type() == dtype) return tensor;
  const bool kept = dtype == lower_ && tensor.scalar_type() == at::kFloat && tensor.requires_grad() &&
                    tensor.is_leaf() && !tensor.is_view();
  if (!kept) return tensor.to(dtype);
  auto& [from, to] = casts_[tensor.unsafeGetTensorImpl()];
  if (!to.defined()) {
    from = tensor;
    to = tensor.to(dtype);
  }
  return to;
}

}  // namespace sfsdp::models
