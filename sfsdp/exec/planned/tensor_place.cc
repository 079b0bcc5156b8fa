// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/tensor_place.h"

#include <ATen/ATen.h>

#include <utility>

#include "sfsdp/capture/tensor_type.h"

namespace sfsdp::exec {

at::Tensor tensor_at(std::byte* begin, const ir::Type& type, std::shared_ptr<RankMemory> memory) {
  const auto options = at::TensorOptions(capture::scalar_type_of(type.dtype));
  const auto keep = [memory = std::move(memory)](void*) {};
  if (type.strides.empty()) return at::from_blob(begin, type.shape(), keep, options);
  return at::from_blob(begin, type.shape(), type.strides, keep, options);
}

bool meet(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.numel() == 0 || b.numel() == 0) return false;
  const auto range = [](const at::Tensor& t) {
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    const auto* begin = static_cast<const std::byte*>(t.const_data_ptr());
    return std::pair(begin, begin + (last + 1) * t.element_size());
  };
  const auto [a_begin, a_end] = range(a);
  const auto [b_begin, b_end] = range(b);
  return a_begin < b_end && b_begin < a_end;
}

void add_bytes(const at::Tensor& tensor, std::vector<device::Bytes>& to) {
  if (tensor.numel() == 0) return;
  int64_t run = 1;  // elements side by side
  int64_t dims = tensor.dim();
  for (; dims > 0 && (tensor.stride(dims - 1) == run || tensor.size(dims - 1) == 1); --dims)
    run *= tensor.size(dims - 1);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::vector<int64_t> at(static_cast<size_t>(dims), 0);
  while (true) {
    int64_t offset = 0;
    for (int64_t d = 0; d < dims; ++d) offset += at[static_cast<size_t>(d)] * tensor.stride(d);
    to.push_back({begin + offset * tensor.element_size(), run * tensor.element_size()});
    int64_t d = dims - 1;
    for (; d >= 0 && ++at[static_cast<size_t>(d)] == tensor.size(d); --d) at[static_cast<size_t>(d)] = 0;
    if (d < 0) return;
  }
}

}  // namespace sfsdp::exec
