// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/layers.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "sfsdp/models/init.h"

namespace sfsdp::models {
namespace {

at::Tensor weight_parameter(torch::nn::Module& module, std::vector<int64_t> sizes) {
  return module.register_parameter("weight", torch::empty(sizes));
}

}  // namespace

RMSNormImpl::RMSNormImpl(int64_t dim, double eps)
    : weight(register_parameter("weight", torch::ones({dim}))), eps_(eps) {}

at::Tensor RMSNormImpl::forward(const at::Tensor& x_BSD) { return at::rms_norm(x_BSD, {x_BSD.size(-1)}, weight, eps_); }

LinearMapImpl::LinearMapImpl(int64_t in, int64_t out, Bias starts) : weight(weight_parameter(*this, {out, in})) {
  if (starts == Bias::Zero) bias = register_parameter("bias", torch::zeros({out}));
}

at::Tensor LinearMapImpl::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t hidden, double output_std) {
  w1_ = register_module("w1", LinearMap(dim, hidden));
  w2_ = register_module("w2", LinearMap(hidden, dim));
  w3_ = register_module("w3", LinearMap(dim, hidden));
  init_linear(w1_->weight, 0.02);
  for (LinearMap* w : {&w2_, &w3_}) init_linear((*w)->weight, output_std);
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BSD) { return w2_(at::silu(w1_(x_BSD)) * w3_(x_BSD)); }

}  // namespace sfsdp::models
