// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/modules_torch.h"

#include <ATen/ATen.h>
#include <torch/nn/modules.h>

#include "sfsdp/base/error.h"

namespace sfsdp::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

// Whatever a forward returns, as one number.
Tensor loss_of(const Tensor& out) { return out.is_floating_point() ? out.square().mean() : Tensor(); }
Tensor loss_of(const nn::ASMoutput& out) { return loss_of(out.output) + out.loss; }
template <class... Outs>
Tensor loss_of(const std::tuple<Outs...>& outs) {
  Tensor sum;
  const auto add = [&](const Tensor& loss) {
    if (loss.defined()) sum = sum.defined() ? sum + loss : loss;
  };
  std::apply([&](const auto&... out) { (add(loss_of(out)), ...); }, outs);
  return sum;
}

template <class Make, class... Inputs>
ModuleRow row(const std::string& name, Make make, Inputs... inputs) {
  const auto build = [make]() -> BuiltModule {
    const auto module = make().ptr();
    const auto call = [module]<size_t... I>(const Tensors& x, std::index_sequence<I...>) {
      return loss_of(module->forward(x[I]...));
    };
    return {module, [call](const Tensors& x) { return call(x, std::index_sequence_for<Inputs...>()); }};
  };
  return {name, build, {inputs...}};
}
template <class Holder>
Holder make() {
  return Holder();
}

Tensor x(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }
Tensor positive(at::IntArrayRef sizes) { return at::rand(sizes).set_requires_grad(true); }
Tensor fixed(at::IntArrayRef sizes) { return at::randn(sizes); }
Tensor below(int64_t end, at::IntArrayRef sizes) { return at::randint(end, sizes, at::kLong); }
Tensor signs(at::IntArrayRef sizes) { return at::randint(2, sizes, at::kFloat) * 2 - 1; }

// Containers have no forward of their own.
struct ListedImpl : nn::Module {
  Tensor forward(const Tensor& in) { return second->forward(first->forward(in)); }
  nn::Linear first{4, 3}, second{3, 2};
  nn::ModuleList list = register_module("list", nn::ModuleList(first, second));
};
TORCH_MODULE(Listed);
struct NamedImpl : nn::Module {
  Tensor forward(const Tensor& in) { return layer->forward(in); }
  nn::Linear layer{4, 3};
  nn::ModuleDict dict = register_module(
      "dict", nn::ModuleDict(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{{"layer", layer.ptr()}}));
};
TORCH_MODULE(Named);
struct WeightsImpl : nn::Module {
  Tensor forward(const Tensor& in) { return at::mm(in, list[0]) + list[1]; }
  nn::ParameterList list = register_module("list", nn::ParameterList(x({4, 3}), x({3})));
};
TORCH_MODULE(Weights);
struct NamedWeightsImpl : nn::Module {
  NamedWeightsImpl() { dict->insert("weight", x({4, 3})); }
  Tensor forward(const Tensor& in) { return at::mm(in, dict["weight"]); }
  nn::ParameterDict dict = register_module("dict", nn::ParameterDict());
};
TORCH_MODULE(NamedWeights);

// What its forward, which is refused, can be written as.
struct LogProbImpl : nn::Module {
  Tensor forward(const Tensor& in, const Tensor& target) { return at::nll_loss(softmax->log_prob(in), target); }
  nn::AdaptiveLogSoftmaxWithLoss softmax =
      register_module("softmax", nn::AdaptiveLogSoftmaxWithLoss(32, 10, std::vector<int64_t>{4, 8}));
};
TORCH_MODULE(LogProb);

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

std::vector<ModuleRow> layers() {
  return {
      row("Identity", make<nn::Identity>, x({2, 3})),
      row(
          "Linear", [] { return nn::Linear(4, 3); }, x({5, 4})),
      row("Flatten", make<nn::Flatten>, x({2, 3, 4})),
      row(
          "Unflatten",
          [] {
            return nn::Unflatten(nn::UnflattenOptions(1, {2, 3}));
          },
          x({2, 6})),
      row(
          "Bilinear", [] { return nn::Bilinear(4, 3, 2); }, x({5, 4}), x({5, 3})),
      row(
          "Embedding", [] { return nn::Embedding(10, 4); }, below(10, {3, 5})),
      row(
          "Embedding, sparse", [] { return nn::Embedding(nn::EmbeddingOptions(10, 4).sparse(true)); },
          below(10, {3, 5})),
      row(
          "Embedding, max_norm", [] { return nn::Embedding(nn::EmbeddingOptions(10, 4).max_norm(1)); },
          below(10, {3, 5})),
      row(
          "EmbeddingBag", [] { return nn::EmbeddingBag(10, 4); }, below(10, {3, 5})),
      row("Dropout", make<nn::Dropout>, x({4, 5})),
      row("Dropout2d", make<nn::Dropout2d>, x({2, 3, 4, 5})),
      row("Dropout3d", make<nn::Dropout3d>, x({2, 3, 4, 5, 2})),
      row("AlphaDropout", make<nn::AlphaDropout>, x({4, 5})),
      row("FeatureAlphaDropout", make<nn::FeatureAlphaDropout>, x({2, 3, 4})),
      row("CosineSimilarity", make<nn::CosineSimilarity>, x({3, 4}), x({3, 4})),
      row("PairwiseDistance", make<nn::PairwiseDistance>, x({3, 4}), x({3, 4})),
      row(
          "LayerNorm", [] { return nn::LayerNorm(nn::LayerNormOptions({6})); }, x({2, 4, 6})),
      row(
          "LocalResponseNorm", [] { return nn::LocalResponseNorm(2); }, x({2, 4, 6, 5})),
      row(
          "CrossMapLRN2d", [] { return nn::CrossMapLRN2d(3); }, x({2, 4, 6, 5})),
      row(
          "GroupNorm", [] { return nn::GroupNorm(2, 4); }, x({2, 4, 6})),
      row(
          "BatchNorm1d", [] { return nn::BatchNorm1d(4); }, x({3, 4, 6})),
      row(
          "BatchNorm2d", [] { return nn::BatchNorm2d(4); }, x({3, 4, 6, 5})),
      row(
          "BatchNorm3d", [] { return nn::BatchNorm3d(4); }, x({3, 4, 2, 6, 5})),
      row(
          "InstanceNorm1d", [] { return nn::InstanceNorm1d(4); }, x({3, 4, 6})),
      row(
          "InstanceNorm2d", [] { return nn::InstanceNorm2d(4); }, x({3, 4, 6, 5})),
      row(
          "InstanceNorm3d", [] { return nn::InstanceNorm3d(4); }, x({3, 4, 2, 6, 5})),
      row("ModuleList", make<Listed>, x({5, 4})),
      row("ModuleDict", make<Named>, x({5, 4})),
      row("ParameterList", make<Weights>, x({5, 4})),
      row("ParameterDict", make<NamedWeights>, x({5, 4})),
      row(
          "Functional", [] { return nn::Functional([](const Tensor& in) { return in.exp(); }); }, x({5, 4})),
      row(
          "Sequential", [] { return nn::Sequential(nn::Linear(4, 3), nn::ReLU(), nn::Linear(3, 2)); }, x({5, 4})),
  };
}

std::vector<ModuleRow> images() {
  const Tensor line = x({2, 3, 9}), image = x({2, 3, 9, 8}), volume = x({2, 3, 6, 7, 5});
  return {
      row(
          "Conv1d", [] { return nn::Conv1d(3, 4, 3); }, line),
      row(
          "Conv2d", [] { return nn::Conv2d(3, 4, 3); }, image),
      row(
          "Conv3d", [] { return nn::Conv3d(3, 4, 3); }, volume),
      row(
          "ConvTranspose1d", [] { return nn::ConvTranspose1d(3, 4, 3); }, line),
      row(
          "ConvTranspose2d", [] { return nn::ConvTranspose2d(3, 4, 3); }, image),
      row(
          "ConvTranspose3d", [] { return nn::ConvTranspose3d(3, 4, 3); }, volume),
      row(
          "Fold",
          [] {
            return nn::Fold(nn::FoldOptions({4, 5}, {2, 2}));
          },
          x({2, 12, 12})),
      row(
          "Unfold",
          [] {
            return nn::Unfold(nn::UnfoldOptions({2, 3}));
          },
          image),
      row(
          "ReflectionPad1d", [] { return nn::ReflectionPad1d(2); }, line),
      row(
          "ReflectionPad2d", [] { return nn::ReflectionPad2d(2); }, image),
      row(
          "ReflectionPad3d", [] { return nn::ReflectionPad3d(2); }, volume),
      row(
          "ReplicationPad1d", [] { return nn::ReplicationPad1d(2); }, line),
      row(
          "ReplicationPad2d", [] { return nn::ReplicationPad2d(2); }, image),
      row(
          "ReplicationPad3d", [] { return nn::ReplicationPad3d(2); }, volume),
      row(
          "ZeroPad1d", [] { return nn::ZeroPad1d(2); }, line),
      row(
          "ZeroPad2d", [] { return nn::ZeroPad2d(2); }, image),
      row(
          "ZeroPad3d", [] { return nn::ZeroPad3d(2); }, volume),
      row(
          "ConstantPad1d", [] { return nn::ConstantPad1d(2, 0.5); }, line),
      row(
          "ConstantPad2d", [] { return nn::ConstantPad2d(2, 0.5); }, image),
      row(
          "ConstantPad3d", [] { return nn::ConstantPad3d(2, 0.5); }, volume),
      row(
          "PixelShuffle", [] { return nn::PixelShuffle(2); }, x({2, 8, 3, 4})),
      row(
          "PixelUnshuffle", [] { return nn::PixelUnshuffle(2); }, x({2, 3, 6, 4})),
      row(
          "Upsample",
          [] {
            return nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}));
          },
          image),
  };
}

std::vector<ModuleRow> pools() {
  const Tensor line = x({2, 3, 9}), image = x({2, 3, 9, 8}), volume = x({2, 3, 6, 7, 5});
  return {
      row(
          "AvgPool1d", [] { return nn::AvgPool1d(2); }, line),
      row(
          "AvgPool2d", [] { return nn::AvgPool2d(2); }, image),
      row(
          "AvgPool3d", [] { return nn::AvgPool3d(2); }, volume),
      row(
          "MaxPool1d", [] { return nn::MaxPool1d(2); }, line),
      row(
          "MaxPool2d", [] { return nn::MaxPool2d(2); }, image),
      row(
          "MaxPool3d", [] { return nn::MaxPool3d(2); }, volume),
      row(
          "AdaptiveMaxPool1d", [] { return nn::AdaptiveMaxPool1d(3); }, line),
      row(
          "AdaptiveMaxPool2d", [] { return nn::AdaptiveMaxPool2d(3); }, image),
      row(
          "AdaptiveMaxPool3d", [] { return nn::AdaptiveMaxPool3d(3); }, volume),
      row(
          "AdaptiveAvgPool1d", [] { return nn::AdaptiveAvgPool1d(3); }, line),
      row(
          "AdaptiveAvgPool2d", [] { return nn::AdaptiveAvgPool2d(3); }, image),
      row(
          "AdaptiveAvgPool3d", [] { return nn::AdaptiveAvgPool3d(3); }, volume),
      row(
          "MaxUnpool1d", [] { return nn::MaxUnpool1d(2); }, x({2, 3, 4}), at::arange(4).mul(2).expand({2, 3, 4})),
      row(
          "MaxUnpool2d", [] { return nn::MaxUnpool2d(2); }, x({2, 3, 2, 2}),
          at::arange(4).mul(2).view({2, 2}).expand({2, 3, 2, 2})),
      row(
          "MaxUnpool3d", [] { return nn::MaxUnpool3d(2); }, x({2, 3, 2, 2, 1}),
          at::arange(4).mul(2).view({2, 2, 1}).expand({2, 3, 2, 2, 1})),
      row(
          "FractionalMaxPool2d",
          [] { return nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(4)); }, image),
      row(
          "FractionalMaxPool3d",
          [] { return nn::FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(3)); }, volume),
      row(
          "LPPool1d", [] { return nn::LPPool1d(2, 3); }, line),
      row(
          "LPPool2d", [] { return nn::LPPool2d(2, 3); }, image),
      row(
          "LPPool3d", [] { return nn::LPPool3d(2, 3); }, volume),
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

// LibTorch's CPU kernels of recurrent modules multiply the inputs of all time steps at once, and oneDNN's LSTM sums in an
// order of its own; a trace has one product a time step. n·eps over some 10 products of 4 terms each.
constexpr double kOtherOrder = 1e-5;

std::vector<ModuleRow> sequences() {
  const Tensor steps = x({5, 2, 3});
  return {
      row(
          "RNN", [] { return nn::RNN(3, 4); }, steps)
          .within(kOtherOrder),
      row(
          "LSTM", [] { return nn::LSTM(3, 4); }, steps)
          .within(kOtherOrder),
      row(
          "GRU", [] { return nn::GRU(3, 4); }, steps)
          .within(kOtherOrder),
      row(
          "RNN, batch_first", [] { return nn::RNN(nn::RNNOptions(3, 4).batch_first(true).num_layers(2)); }, steps)
          .within(kOtherOrder),
      row(
          "LSTM, batch_first", [] { return nn::LSTM(nn::LSTMOptions(3, 4).batch_first(true)); }, steps)
          .within(kOtherOrder),
      row(
          "GRU, batch_first", [] { return nn::GRU(nn::GRUOptions(3, 4).batch_first(true).bidirectional(true)); }, steps)
          .within(kOtherOrder),
      row(
          "RNNCell", [] { return nn::RNNCell(3, 4); }, x({2, 3})),
      row(
          "LSTMCell", [] { return nn::LSTMCell(3, 4); }, x({2, 3})),
      row(
          "GRUCell", [] { return nn::GRUCell(3, 4); }, x({2, 3})),
      row(
          "TransformerEncoderLayer", [] { return nn::TransformerEncoderLayer(8, 2); }, x({5, 2, 8})),
      row(
          "TransformerDecoderLayer", [] { return nn::TransformerDecoderLayer(8, 2); }, x({5, 2, 8}), x({5, 2, 8})),
      row(
          "TransformerEncoder", [] { return nn::TransformerEncoder(nn::TransformerEncoderLayer(8, 2), 2); },
          x({5, 2, 8})),
      row(
          "TransformerDecoder", [] { return nn::TransformerDecoder(nn::TransformerDecoderLayer(8, 2), 2); },
          x({5, 2, 8}), x({6, 2, 8})),
      row(
          "Transformer", [] { return nn::Transformer(nn::TransformerOptions(8, 2, 2, 2)); }, x({5, 2, 8}),
          x({5, 2, 8})),
  };
}

}  // namespace

HarnessImpl::HarnessImpl(const std::shared_ptr<nn::Module>& module, const Tensors& examples) {
  register_module("module", module);
  for (size_t i = 0; i < examples.size(); ++i)
    inputs.push_back(examples[i].requires_grad()
                         ? register_parameter("input" + std::to_string(i), examples[i].detach().clone())
                         : examples[i]);
}

std::shared_ptr<HarnessImpl> build(const ModuleRow& row, std::function<Tensor(const Tensors&)>& loss) {
  at::manual_seed(3);
  BuiltModule built = row.build();
  loss = built.loss;
  return std::make_shared<HarnessImpl>(built.module, row.inputs);
}

std::vector<ModuleRow> module_rows() {
  at::manual_seed(1);
  std::vector<ModuleRow> rows;
  for (const auto& some : {activations(), layers(), images(), pools(), sequences(), losses()})
    rows.insert(rows.end(), some.begin(), some.end());
  return rows;
}

CapturedModule capture_module(const ModuleRow& row) {
  std::function<Tensor(const Tensors&)> loss;
  auto harness = build(row, loss);
  CapturedModule captured;
  for (const Tensor& t : row.inputs)
    if (!t.requires_grad()) captured.batch.push_back(t);
  captured.state = capture::take_state(*harness);
  const auto traced = [&](const capture::Batch& batch) {
    Tensors inputs = harness->inputs;
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!row.inputs[i].requires_grad()) inputs[i] = batch[next++];
    return capture::LossValue{loss(inputs), {}};
  };
  captured.step = capture::capture_step(*harness, captured.state, traced, captured.batch, {});
  return captured;
}

}  // namespace sfsdp::testing
