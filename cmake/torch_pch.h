// The one precompiled header of all translation units that include LibTorch; built once, see CMakeLists.txt.
// It only makes includes fast: a file still includes what it uses. Measured with g++ 12 at -O2, seconds per unit:
//   no precompiled header: ATen/ATen.h 8.6, torch/nn/module.h 12.4, torch/torch.h 18.9
//   this header 2.9 (521 MB); torch/torch.h in its place 5 to 8 (718 MB), so do not add it, nor include it elsewhere
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
