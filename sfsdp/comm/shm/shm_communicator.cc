// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/shm/shm_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

// What a slot carries itself.
constexpr size_t kSmallBytes = 3072;
// Where the staging area begins, and one half of it.
constexpr size_t kStageBegin = 4096;
constexpr size_t kStageBytes = 1 << 20;
// Windows of a rank that stay mapped.
constexpr size_t kMostWindows = 4;

}  // namespace

// Written by its rank before it enters a call, read by the others until they have met after it.
struct ShmSlot {
  bool is_shared = false;  // else the data is in `small`, or too large for that
  SharedPlace place;
  std::array<std::byte, kSmallBytes> small{};
};
static_assert(sizeof(ShmSlot) <= kStageBegin && std::is_trivially_destructible_v<ShmSlot>);

ShmArea::ShmArea() : memory_(GrowingMemory::Kind::Shared, kStageBegin + 2 * kStageBytes) {
  memory_.grow(kStageBegin);
  new (memory_.begin()) ShmSlot;
}

ShmSlot& ShmArea::slot() const { return *std::launder(reinterpret_cast<ShmSlot*>(memory_.begin())); }

// Where it is not used, it takes no memory.
std::span<std::byte> ShmArea::stage(uint64_t turn, size_t bytes) {
  const size_t begin = kStageBegin + turn % 2 * kStageBytes;
  memory_.grow(static_cast<int64_t>(begin + bytes));
  return {memory_.begin() + begin, bytes};
}

ShmCommunicator::ShmCommunicator(CallSite site, std::unique_ptr<Board> board, std::unique_ptr<ShmArea> own,
                                 std::vector<std::unique_ptr<PeerMemory>> areas, std::shared_ptr<const Windows> windows,
                                 std::shared_ptr<const Timeout> timeout_ms, std::shared_ptr<FlightRecorder> recorder)
    : GroupCommunicator(std::move(site)),
      board_(std::move(board)),
      own_(std::move(own)),
      areas_(std::move(areas)),
      windows_(std::move(windows)),
      timeout_ms_(std::move(timeout_ms)),
      recorder_(std::move(recorder)),
      mapped_(areas_.size()) {}

ShmCommunicator::~ShmCommunicator() = default;

void ShmCommunicator::all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) {
  run(all_gather_call(in.size(), out.size(), size(), info), in, [&] {
    if (!are_parts_in_place(in.size())) return gather_staged(in, out);
    const Parts all = parts(in);
    for (size_t r = 0; r < all.size(); ++r) copy(all[r], out.subspan(r * in.size(), in.size()));
  });
}

void ShmCommunicator::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype,
                                     ReduceOp op, const CallInfo& info) {
  run(reduce_scatter_call(in.size(), out.size(), size(), dtype, op, info), in, [&] {
    if (!are_parts_in_place(in.size())) return reduce_scatter_staged(in, out, dtype, op);
    Parts all = parts(in);
    for (auto& part : all) part = part.subspan(static_cast<size_t>(rank()) * out.size(), out.size());
    reduce(all, out, dtype, op);
  });
}

// Large data in windows: each rank reduces its chunk in place, where no peer looks; then all copy the others' chunks.
void ShmCommunicator::all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) {
  run(all_reduce_call(data.size(), dtype, op, info), data, [&] {
    if (!are_parts_in_place(data.size())) return all_reduce_staged(data, dtype, op);
    const Parts all = parts(data);
    if (data.size() <= kSmallBytes) return reduce(all, data, dtype, op);
    const ByteChunks chunks(data.size(), ir::size_in_bytes(dtype), size());
    Parts mine;
    for (const auto& part : all) mine.push_back(chunks.of(part, rank()));
    reduce(mine, chunks.of(data, rank()), dtype, op);
    meet();
    for (int r = 0; r < size(); ++r) copy(chunks.of(all[static_cast<size_t>(r)], r), chunks.of(data, r));
  });
}

void ShmCommunicator::broadcast(std::span<std::byte> data, int root, const CallInfo& info) {
  run(broadcast_call(data.size(), root, size(), info), data, [&] {
    if (are_parts_in_place(data.size())) return copy(parts(data)[static_cast<size_t>(root)], data);
    for (size_t begin = 0; begin < data.size(); begin += kStageBytes, ++turn_) {
      const auto piece = data.subspan(begin, std::min(kStageBytes, data.size() - begin));
      if (rank() == root) copy(piece, own_->stage(turn_, piece.size()));
      meet();
      if (rank() != root) copy(peer_stage(root, piece.size()), piece);
    }
  });
}

void ShmCommunicator::barrier(const CallInfo& info) {
  run(barrier_call(info), {}, [] {});
}

// Every rank of the group shows its data; then all act; then all know that nobody reads this rank's memory any more.
template <class Action>
void ShmCommunicator::run(const Call& call, std::span<const std::byte> shown, Action action) {
  ++sequence_;
  call_ = &call;
  if (recorder_) recorder_->enter(site(), call, sequence_);
  try {
    show(shown);
    board_->enter(site(), call, sequence_, *timeout_ms_);
    action();
    if (call.kind != CallKind::Barrier) meet();
    board_->finish(site(), call, sequence_);
  } catch (const std::system_error& error) {
    broken_ = true;
    board_->throw_failure(site(), call, sequence_,
                          concat("rank ", site().global_rank(), " has no shared memory: ", error.what(),
                                 "; TcpOptions::shared_memory = false goes without"),
                          0, 0);
  } catch (const CommError&) {
    broken_ = true;
    throw;
  } catch (const std::exception& error) {
    broken_ = true;
    board_->abort(site().global_rank(), error.what());
    throw;
  }
  if (recorder_) recorder_->finish(site(), sequence_);
}

void ShmCommunicator::show(std::span<const std::byte> data) {
  ShmSlot& slot = own_->slot();
  if (data.size() <= kSmallBytes) {
    slot.is_shared = false;
    copy(data, std::span(slot.small).first(data.size()));
    return;
  }
  const auto found = windows_->find(data);
  slot.is_shared = found.has_value();
  if (found) slot.place = *found;
}

void ShmCommunicator::meet() { board_->meet(site(), *call_, sequence_, *timeout_ms_); }

const ShmSlot& ShmCommunicator::slot(int rank) const {
  if (rank == site().rank) return own_->slot();
  return *std::launder(reinterpret_cast<const ShmSlot*>(areas_[static_cast<size_t>(rank)]->begin()));
}

// All ranks find the same: they look at the same slots.
bool ShmCommunicator::are_parts_in_place(size_t bytes) const {
  if (bytes <= kSmallBytes) return true;
  for (int r = 0; r < size(); ++r)
    if (!slot(r).is_shared) return false;
  return true;
}

ShmCommunicator::Parts ShmCommunicator::parts(std::span<const std::byte> own) {
  Parts parts;
  for (int r = 0; r < size(); ++r)
    parts.push_back(r == rank() && own.size() > kSmallBytes ? own : std::span(place(r, own.size()), own.size()));
  return parts;
}

// Small data is read from slots, this rank's too: a reduction writes over what it was given.
const std::byte* ShmCommunicator::place(int rank, size_t bytes) {
  const ShmSlot& slot = this->slot(rank);
  if (bytes <= kSmallBytes) return slot.small.data();
  auto& windows = mapped_[static_cast<size_t>(rank)];
  // A call reads one window of each rank; those that have gone take addresses until they are dropped here.
  if (windows.size() >= kMostWindows && !windows.contains(slot.place.memory.inode)) windows.clear();
  auto& window = windows[slot.place.memory.inode];
  if (!window) window = std::make_unique<PeerMemory>(slot.place.memory);
  SFSDP_CHECK(slot.place.offset <= window->bytes() && bytes <= window->bytes() - slot.place.offset, bytes, " bytes at ",
              slot.place.offset, " of a window of ", window->bytes());
  return window->begin() + slot.place.offset;
}

std::span<const std::byte> ShmCommunicator::peer_stage(int rank, size_t bytes) const {
  if (rank == site().rank) return own_->stage(turn_, bytes);
  return {areas_[static_cast<size_t>(rank)]->begin() + kStageBegin + turn_ % 2 * kStageBytes, bytes};
}

ShmCommunicator::Parts ShmCommunicator::staged(size_t offset, size_t bytes) const {
  Parts parts;
  for (int r = 0; r < size(); ++r) parts.push_back(peer_stage(r, offset + bytes).subspan(offset));
  return parts;
}

// A half of a staging area is written again only after a meeting that its readers reach when they have read it.

void ShmCommunicator::gather_staged(std::span<const std::byte> in, std::span<std::byte> out) {
  for (size_t begin = 0; begin < in.size(); begin += kStageBytes, ++turn_) {
    const size_t bytes = std::min(kStageBytes, in.size() - begin);
    copy(in.subspan(begin, bytes), own_->stage(turn_, bytes));
    meet();
    for (int r = 0; r < size(); ++r)
      copy(peer_stage(r, bytes), out.subspan(static_cast<size_t>(r) * in.size() + begin, bytes));
  }
}

// A piece holds a part for each rank.
void ShmCommunicator::reduce_scatter_staged(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype,
                                            ReduceOp op) {
  const size_t most = kStageBytes / site().ranks.size() / 64 * 64;
  for (size_t begin = 0; begin < out.size(); begin += most, ++turn_) {
    const size_t bytes = std::min(most, out.size() - begin);
    const auto stage = own_->stage(turn_, bytes * site().ranks.size());
    for (size_t r = 0; r < site().ranks.size(); ++r)
      copy(in.subspan(r * out.size() + begin, bytes), stage.subspan(r * bytes, bytes));
    meet();
    reduce(staged(static_cast<size_t>(rank()) * bytes, bytes), out.subspan(begin, bytes), dtype, op);
  }
}

// Each rank reduces its chunk of a piece where it is staged, then all copy the chunks.
void ShmCommunicator::all_reduce_staged(std::span<std::byte> data, ir::DType dtype, ReduceOp op) {
  for (size_t begin = 0; begin < data.size(); begin += kStageBytes, ++turn_) {
    const auto piece = data.subspan(begin, std::min(kStageBytes, data.size() - begin));
    const ByteChunks chunks(piece.size(), ir::size_in_bytes(dtype), size());
    const auto stage = own_->stage(turn_, piece.size());
    copy(piece, stage);
    meet();
    reduce(staged(chunks.begin(rank()), chunks.size(rank())), chunks.of(stage, rank()), dtype, op);
    meet();
    for (int r = 0; r < size(); ++r) copy(chunks.of(peer_stage(r, piece.size()), r), chunks.of(piece, r));
  }
}

}  // namespace sfsdp::comm
