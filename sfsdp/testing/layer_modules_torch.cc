// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/module_rows_torch.h"

namespace sfsdp::testing {
namespace {

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

// LibTorch's CPU kernels of recurrent modules multiply the inputs of all time steps at once, and oneDNN's LSTM sums in an
// order of its own; a trace has one product a time step. n·eps over some 10 products of 4 terms each.
constexpr double kOtherOrder = 1e-5;

}  // namespace

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

}  // namespace sfsdp::testing
