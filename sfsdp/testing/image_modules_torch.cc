// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/module_rows_torch.h"

namespace sfsdp::testing {

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

}  // namespace sfsdp::testing
