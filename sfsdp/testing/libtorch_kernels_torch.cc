// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/libtorch_kernels_torch.h"

#include <ATen/ATen.h>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/aten_call.h"

namespace sfsdp::testing {
namespace {

using ir::interp::Array;

at::Tensor to_tensor(const Array& array) {
  return at::tensor(array.data, at::kDouble).reshape(array.shape).to(capture::scalar_type_of(array.dtype));
}

}  // namespace

Array to_array(const at::Tensor& tensor, ir::DType dtype) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {dtype, tensor.sizes().vec(), {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()}};
}

std::vector<Array> run_in_libtorch(const ir::Op& op, std::span<const Array* const> operands) {
  std::vector<at::Tensor> in;
  for (const Array* operand : operands) in.push_back(operand ? to_tensor(*operand) : at::Tensor());
  std::vector<Array> out;
  const std::vector<at::Tensor> results = exec::AtenCall(op).run(in);
  for (size_t i = 0; i < results.size(); ++i)
    out.push_back(to_array(results[i], op.result(static_cast<int>(i))->type().dtype));
  return out;
}

}  // namespace sfsdp::testing
