// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/module_rows_torch.h"

namespace sfsdp::testing {
namespace {

// What its forward, which is refused, can be written as.
struct LogProbImpl : nn::Module {
  Tensor forward(const Tensor& in, const Tensor& target) { return at::nll_loss(softmax->log_prob(in), target); }
  nn::AdaptiveLogSoftmaxWithLoss softmax =
      register_module("softmax", nn::AdaptiveLogSoftmaxWithLoss(32, 10, std::vector<int64_t>{4, 8}));
};
TORCH_MODULE(LogProb);

}  // namespace

std::vector<ModuleRow> activations() {
  const Tensor a = x({2, 4, 6});
  return {
      row("ELU", make<nn::ELU>, a),
      row("SELU", make<nn::SELU>, a),
      row("Hardshrink", make<nn::Hardshrink>, a),
      row("Hardtanh", make<nn::Hardtanh>, a),
      row("LeakyReLU", make<nn::LeakyReLU>, a),
      row("LogSigmoid", make<nn::LogSigmoid>, a),
      row(
          "Softmax", [] { return nn::Softmax(1); }, a),
      row(
          "Softmin", [] { return nn::Softmin(1); }, a),
      row(
          "LogSoftmax", [] { return nn::LogSoftmax(1); }, a),
      row("Softmax2d", make<nn::Softmax2d>, x({2, 3, 4, 5})),
      row("PReLU", make<nn::PReLU>, a),
      row("ReLU", make<nn::ReLU>, a),
      row("ReLU6", make<nn::ReLU6>, a),
      row("RReLU", make<nn::RReLU>, a),
      row("CELU", make<nn::CELU>, a),
      row("GLU", make<nn::GLU>, a),
      row("GELU", make<nn::GELU>, a),
      row("SiLU", make<nn::SiLU>, a),
      row("Mish", make<nn::Mish>, a),
      row("Sigmoid", make<nn::Sigmoid>, a),
      row("Softplus", make<nn::Softplus>, a),
      row("Softshrink", make<nn::Softshrink>, a),
      row("Softsign", make<nn::Softsign>, a),
      row("Tanh", make<nn::Tanh>, a),
      row("Tanhshrink", make<nn::Tanhshrink>, a),
      row(
          "Threshold", [] { return nn::Threshold(0.1, 20); }, a),
      row(
          "MultiheadAttention", [] { return nn::MultiheadAttention(8, 2); }, x({5, 2, 8}), x({6, 2, 8}), x({6, 2, 8})),
      row(
          "AdaptiveLogSoftmaxWithLoss",
          [] {
            return nn::AdaptiveLogSoftmaxWithLoss(32, 10, std::vector<int64_t>{4, 8});
          },
          x({5, 32}), below(10, {5})),
      row("AdaptiveLogSoftmaxWithLoss, log_prob", make<LogProb>, x({5, 32}), below(10, {5})),
  };
}

std::vector<ModuleRow> losses() {
  const Tensor a = x({4, 5}), b = fixed({4, 5}), classes = below(5, {4});
  return {
      row("L1Loss", make<nn::L1Loss>, a, b),
      row("KLDivLoss", make<nn::KLDivLoss>, a, b.softmax(1)),
      row("MSELoss", make<nn::MSELoss>, a, b),
      row("BCELoss", make<nn::BCELoss>, positive({4, 5}), at::rand({4, 5})),
      row("HingeEmbeddingLoss", make<nn::HingeEmbeddingLoss>, a, signs({4, 5})),
      row("MultiMarginLoss", make<nn::MultiMarginLoss>, a, classes),
      row("CosineEmbeddingLoss", make<nn::CosineEmbeddingLoss>, a, x({4, 5}), signs({4})),
      row("SmoothL1Loss", make<nn::SmoothL1Loss>, a, b),
      row("HuberLoss", make<nn::HuberLoss>, a, b),
      row("MultiLabelMarginLoss", make<nn::MultiLabelMarginLoss>, a, below(5, {4, 5})),
      row("SoftMarginLoss", make<nn::SoftMarginLoss>, a, signs({4, 5})),
      row("MultiLabelSoftMarginLoss", make<nn::MultiLabelSoftMarginLoss>, a, at::randint(2, {4, 5}, at::kFloat)),
      row("TripletMarginLoss", make<nn::TripletMarginLoss>, a, x({4, 5}), x({4, 5})),
      row("TripletMarginWithDistanceLoss", make<nn::TripletMarginWithDistanceLoss>, a, x({4, 5}), x({4, 5})),
      row("CTCLoss", make<nn::CTCLoss>, x({6, 2, 5}), below(4, {2, 3}) + 1, at::full({2}, 6, at::kLong),
          at::full({2}, 3, at::kLong)),
      row("PoissonNLLLoss", make<nn::PoissonNLLLoss>, a, b.abs()),
      row("MarginRankingLoss", make<nn::MarginRankingLoss>, a, x({4, 5}), signs({4, 5})),
      row("NLLLoss", make<nn::NLLLoss>, a, classes),
      row("CrossEntropyLoss", make<nn::CrossEntropyLoss>, a, classes),
      row("BCEWithLogitsLoss", make<nn::BCEWithLogitsLoss>, a, at::rand({4, 5})),
  };
}

}  // namespace sfsdp::testing
