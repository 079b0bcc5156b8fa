// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/libtorch_kernels_torch.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "sfsdp/base/philox.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::testing {
namespace {

using ir::interp::Array;

at::Tensor to_tensor(const Array& array) {
  return at::tensor(array.data, at::kDouble).reshape(array.shape).to(capture::scalar_type_of(array.dtype));
}

// The same numbers whenever and on whichever thread the op runs; LibTorch's generator is left as it was.
std::vector<at::Tensor> draw(const ir::Op& op, const std::vector<at::Tensor>& in) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor state = generator.get_state();
  generator.set_current_seed(hash_path(ir::name_of(op)));
  const auto restore = [&] { generator.set_state(state); };
  try {
    auto results = exec::AtenCall(op).run(in);
    restore();
    return results;
  } catch (...) {
    restore();
    throw;
  }
}

}  // namespace

Array to_array(const at::Tensor& tensor, ir::DType dtype) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {dtype, tensor.sizes().vec(), {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()}};
}

std::vector<Array> run_in_libtorch(const ir::Op& op, std::span<const Array* const> operands) {
  std::vector<at::Tensor> in;
  for (const Array* operand : operands) in.push_back(operand ? to_tensor(*operand) : at::Tensor());
  // Where a kernel's other results lie over the chances, it is asked with those too.
  if (op.is("aten.bernoulli.Tensor")) in[1] = in[1].nan_to_num().clamp(0, 1);
  std::vector<Array> out;
  const std::vector<at::Tensor> results = ir::is_random(op) ? draw(op, in) : exec::AtenCall(op).run(in);
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Type& type = op.result(static_cast<int>(i))->type();
    out.push_back(results[i].defined() ? to_array(results[i], type.dtype) : Array::zeros(type.dtype, type.shape()));
  }
  if (op.opcode.str().find("empty") != std::string::npos)  // what nobody has written is zero, whenever it runs
    for (Array& array : out) std::ranges::fill(array.data, 0.0);
  return out;
}

}  // namespace sfsdp::testing
