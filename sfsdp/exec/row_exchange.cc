// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exec/expert_rows.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

// Which rank has each row, of rows in ranges side by side: those of rank r are [bounds[r], bounds[r + 1]), in a round of `room` rows some of
// them.
class Owners {
 public:
  explicit Owners(std::vector<int64_t> bounds, int64_t room = 0, int64_t round = 0)
      : bounds_(std::move(bounds)), room_(room), round_(round) {}
  static Owners even(int64_t rows, int64_t ranks) {
    std::vector<int64_t> bounds;
    for (int64_t r = 0; r <= ranks; ++r) bounds.push_back(r * (rows / ranks));
    return Owners(std::move(bounds));
  }
  // -1: of none
  int of(int64_t row) const {
    if (row >= bounds_.back()) return -1;
    const auto rank = static_cast<size_t>(std::ranges::upper_bound(bounds_, row) - bounds_.begin()) - 1;
    return room_ > 0 && (row - bounds_[rank]) / room_ != round_ ? -1 : static_cast<int>(rank);
  }
  // Its first row.
  int64_t begin(int rank) const { return bounds_[static_cast<size_t>(rank)] + round_ * room_; }

 private:
  std::vector<int64_t> bounds_;
  int64_t room_ = 0, round_ = 0;
};

// By rank, the rows that this one sends there, and where those go that come from there; rows of its own tensors.
struct Moves {
  std::vector<std::vector<int64_t>> sent, received;
};

Moves moves_of(const ir::Op& op, int rank, const Owners& senders, const Owners& receivers, const at::Tensor& index,
               int64_t ranks) {
  const auto rows = op.attr<int64_t>("rows");
  const bool adds = op.has_attr("adds");
  const at::Tensor named = index.to(at::kLong).contiguous();
  const std::span<const int64_t> of(named.const_data_ptr<int64_t>(), static_cast<size_t>(named.numel()));
  Moves moves{.sent = std::vector<std::vector<int64_t>>(static_cast<size_t>(ranks)),
              .received = std::vector<std::vector<int64_t>>(static_cast<size_t>(ranks))};
  for (size_t j = 0; j < of.size(); ++j) {
    const auto place = static_cast<int64_t>(j);
    if (of[j] < 0 || of[j] >= rows)
      throw UserError(
          concat(ir::opcode_at(op), ": index ", j, " names row ", of[j], "\n  expected one of ", rows, " rows"));
    const int64_t from = adds ? place : of[j], to = adds ? of[j] : place;
    const int sender = senders.of(from), receiver = receivers.of(to);
    if (sender < 0 || receiver < 0) continue;
    if (sender == rank) moves.sent[static_cast<size_t>(receiver)].push_back(from - senders.begin(rank));
    if (receiver == rank) moves.received[static_cast<size_t>(sender)].push_back(to - receivers.begin(rank));
  }
  return moves;
}

std::vector<int64_t> bytes_by_rank(const std::vector<std::vector<int64_t>>& rows, int64_t row_bytes) {
  std::vector<int64_t> bytes;
  for (const std::vector<int64_t>& of_rank : rows) bytes.push_back(std::ssize(of_rank) * row_bytes);
  return bytes;
}

at::Tensor joined(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& of_rank : rows) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return at::tensor(all, at::kLong);
}

std::span<std::byte> bytes_in(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

}  // namespace

void exchange_rows(const ir::Op& op, comm::Communicator& group, std::span<const at::Tensor> operands,
                   const at::Tensor& out) {
  const at::Tensor &in = operands[0], &index = operands[1];
  const bool to_rows = ir::sends_to_rows(op), adds = op.has_attr("adds");
  const int64_t ranks = group.size(), indexes = index.numel(), rows = op.attr<int64_t>("rows");
  const int64_t sent = adds ? indexes : rows, made = adds ? rows : indexes;
  const Owners groups(row_bounds(op, operands[2].contiguous(), to_rows ? made : sent, ranks),
                      op.attr_or<int64_t>("room", 0), round_of(operands, 3));
  const Owners parts = Owners::even(to_rows ? sent : made, ranks);
  const Owners &senders = to_rows ? parts : groups, &receivers = to_rows ? groups : parts;
  const Moves moves = moves_of(op, group.rank(), senders, receivers, index, ranks);

  const at::Tensor places = joined(moves.received), packed = in.index_select(0, joined(moves.sent));
  std::vector<int64_t> shape = out.sizes().vec();
  shape[0] = places.numel();
  const at::Tensor received = at::empty(shape, out.options());
  const int64_t row_bytes = out.size(0) == 0 ? 0 : static_cast<int64_t>(out.nbytes()) / out.size(0);
  group.all_to_all_v(bytes_in(packed), bytes_by_rank(moves.sent, row_bytes), bytes_in(received),
                     bytes_by_rank(moves.received, row_bytes), {"%" + op.result()->name(), op.module_path});
  if (adds || places.numel() < out.size(0)) out.zero_();
  if (adds)
    out.index_add_(0, places, received);
  else
    out.index_copy_(0, places, received);
}

}  // namespace sfsdp::exec
