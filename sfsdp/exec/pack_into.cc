// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/pack_into.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace sfsdp::exec {

std::vector<at::Tensor> parts_of_pack(const ir::Op& op, std::span<const at::Tensor> operands,
                                      const at::Tensor& bucket) {
  const auto& offsets = op.attr<std::vector<int64_t>>("offsets");
  const int64_t ranks = op.attr_or<int64_t>("ranks", 1);
  const at::Tensor shares = bucket.view({ranks, -1});
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::Tensor part = shares.narrow(1, offsets[i], operands[i].numel() / ranks);
    parts.push_back(ranks == 1 ? part.view(operands[i].sizes()) : part);
  }
  return parts;
}

int64_t pack_into(const ir::Op& op, std::span<const at::Tensor> operands, const at::Tensor& bucket) {
  const auto& offsets = op.attr<std::vector<int64_t>>("offsets");
  const int64_t ranks = op.attr_or<int64_t>("ranks", 1);
  const at::Tensor shares = bucket.view({ranks, -1});
  const std::vector<at::Tensor> parts = parts_of_pack(op, operands, bucket);
  std::vector<std::pair<int64_t, int64_t>> filled;  // of a share: begin, end
  int64_t copied = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const int64_t numel = operands[i].numel() / ranks;
    filled.emplace_back(offsets[i], offsets[i] + numel);
    if (parts[i].const_data_ptr() == operands[i].const_data_ptr()) continue;
    parts[i].copy_(ranks == 1 ? operands[i] : operands[i].reshape({ranks, -1}));
    copied += static_cast<int64_t>(operands[i].nbytes());
  }
  std::ranges::sort(filled);
  int64_t end = 0;
  for (const auto& [begin, next] : filled) {
    if (begin > end) shares.narrow(1, end, begin - end).zero_();
    end = std::max(end, next);
  }
  if (end < shares.size(1)) shares.narrow(1, end, shares.size(1) - end).zero_();
  return copied;
}

}  // namespace sfsdp::exec
