// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/expert_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

std::vector<int64_t> row_bounds(const ir::Op& op, const at::Tensor& ends, int64_t rows, int64_t ranks) {
  const std::span<const int32_t> all(ends.const_data_ptr<int32_t>(), static_cast<size_t>(ends.numel()));
  const size_t groups = all.size() / static_cast<size_t>(ranks);
  std::vector<int64_t> bounds = {0};
  int32_t before = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] < before || (rows >= 0 && all[i] > rows))
      throw UserError(concat(ir::opcode_at(op), ": group ", i, " ends at row ", all[i], ", the one before it at ",
                             before, rows >= 0 ? concat(", of ", rows, " rows") : std::string(),
                             "\n  expected groups of rows side by side, as a cumulative sum of their sizes says"));
    before = all[i];
    if ((i + 1) % groups == 0) bounds.push_back(before);
  }
  return bounds;
}

int64_t round_of(std::span<const at::Tensor> operands, size_t index) {
  return index < operands.size() && operands[index].defined() ? *operands[index].const_data_ptr<int64_t>() : 0;
}

namespace {

struct OwnGroups {
  std::span<const int32_t> ends;
  int64_t begin = 0;  // the first row of the rank's groups
  int64_t rows() const { return ends.empty() ? 0 : ends.back() - begin; }
};

// rows: how many there are; -1: not known here
OwnGroups own_groups(const KernelContext& c, const at::Tensor& ends, int64_t rows) {
  const int64_t ranks = c.group ? c.group->group->size() : 1, rank = c.group ? c.group->group->rank() : 0;
  const std::vector<int64_t> bounds = row_bounds(c.op, ends, rows, ranks);
  const std::span<const int32_t> all(ends.const_data_ptr<int32_t>(), static_cast<size_t>(ends.numel()));
  const size_t count = all.size() / static_cast<size_t>(ranks);
  return {all.subspan(count * static_cast<size_t>(rank), count), bounds[static_cast<size_t>(rank)]};
}

// From their place to the front, or back.
std::vector<at::Tensor> move_rows(const KernelContext& c, bool to_front) {
  const auto dim = c.op.attr<int64_t>("dim");
  const at::Tensor &rows = c.operands[0], ends = c.operands[1].contiguous();
  const OwnGroups own = own_groups(c, ends, rows.size(dim));
  at::Tensor out = at::zeros(rows.sizes(), rows.options());
  const int64_t from = to_front ? own.begin : 0, to = own.begin - from;
  out.narrow(dim, to, own.rows()).copy_(rows.narrow(dim, from, own.rows()));
  return {out};
}

}  // namespace

std::vector<at::Tensor> own_rows(const KernelContext& c) { return move_rows(c, true); }
std::vector<at::Tensor> spread_rows(const KernelContext& c) { return move_rows(c, false); }

std::vector<at::Tensor> own_ends(const KernelContext& c) {
  const at::Tensor ends = c.operands[0].contiguous();
  const OwnGroups own = own_groups(c, ends, -1);
  const auto room = c.op.attr_or<int64_t>("room", 0);
  const int64_t begin = own.begin + round_of(c.operands, 1) * room;
  at::Tensor out = at::empty({static_cast<int64_t>(own.ends.size())}, ends.options());
  for (size_t i = 0; i < own.ends.size(); ++i) {
    const int64_t end = own.ends[i] - begin;
    out.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(room > 0 ? std::clamp<int64_t>(end, 0, room) : end);
  }
  return {out};
}

std::vector<at::Tensor> further_rounds(const KernelContext& c) {
  const int64_t ranks = c.group ? c.group->group->size() : 1, room = c.op.attr<int64_t>("room");
  const std::vector<int64_t> bounds = row_bounds(c.op, c.operands[0].contiguous(), -1, ranks);
  int64_t most = 0;
  for (size_t r = 1; r < bounds.size(); ++r) most = std::max(most, bounds[r] - bounds[r - 1]);
  return {at::scalar_tensor(std::max<int64_t>((most + room - 1) / room, 1) - 1, at::kLong)};
}

}  // namespace sfsdp::exec
