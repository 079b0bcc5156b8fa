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
  size_t bytes = 0;        // of the data, which may differ from rank to rank
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

// Every rank of the group shows its data; then all act; then all know that nobody reads this rank's memory any more.
void ShmCommunicator::run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) {
  ++sequence_;
  call_ = &call;
  if (recorder_) recorder_->enter(site(), call, sequence_);
  try {
    show(call.is_read(rank()) ? in : std::span<const std::byte>{});
    if (call.kind() == CallKind::AllToAllV) show_counts();
    board_->enter(site(), call, sequence_, *timeout_ms_);
    if (call.kind() != CallKind::Barrier) {
      act(in, out);
      meet();
    }
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

void ShmCommunicator::act(std::span<const std::byte> in, std::span<std::byte> out) {
  if (call_->kind() == CallKind::AllReduce) return all_reduce(out);
  if (call_->dtype()) return reduce_scatter(in, out);
  move(in, out);
}

void ShmCommunicator::show(std::span<const std::byte> data) {
  ShmSlot& slot = own_->slot();
  slot.bytes = data.size();
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

// Through the staging area, which all may write when the last call is over.
void ShmCommunicator::show_counts() {
  const std::vector<int64_t> counts = call_->counts(size());
  const auto bytes = std::as_bytes(std::span(counts));
  copy(bytes, own_->stage(turn_, bytes.size()));
}

// Where in the ranks' inputs the parts for this rank lie.   throws: CommError on all ranks if their counts do not fit
std::vector<Range> ShmCommunicator::compare_counts() {
  const size_t n = site().ranks.size();
  std::vector<std::span<const int64_t>> rows;
  for (int r = 0; r < size(); ++r)
    rows.emplace_back(reinterpret_cast<const int64_t*>(peer_stage(r, 2 * n * sizeof(int64_t)).data()), 2 * n);
  if (const std::string cause = counts_disagreement(site(), rows); !cause.empty())
    board_->throw_failure(site(), *call_, sequence_, cause, 0, 0);
  std::vector<Range> sent;
  for (const auto& row : rows) sent.push_back(ByteChunks(row.first(n)).at(rank()));
  ++turn_;
  return sent;
}

// All ranks find the same: they look at the same slots.
bool ShmCommunicator::are_parts_in_place() const {
  for (int r = 0; r < size(); ++r)
    if (slot(r).bytes > kSmallBytes && !slot(r).is_shared) return false;
  return true;
}

// Small data is read from slots, this rank's too: a reduction writes over what it was given.
std::span<const std::byte> ShmCommunicator::part(int rank, std::span<const std::byte> own) {
  const size_t bytes = slot(rank).bytes;
  return rank == site().rank && bytes > kSmallBytes ? own : std::span(place(rank), bytes);
}

ShmCommunicator::Parts ShmCommunicator::parts(std::span<const std::byte> own) {
  Parts parts;
  for (int r = 0; r < size(); ++r) parts.push_back(part(r, own));
  return parts;
}

const std::byte* ShmCommunicator::place(int rank) {
  const ShmSlot& slot = this->slot(rank);
  if (slot.bytes <= kSmallBytes) return slot.small.data();
  auto& windows = mapped_[static_cast<size_t>(rank)];
  // A call reads one window of each rank; those that have gone take addresses until they are dropped here.
  if (windows.size() >= kMostWindows && !windows.contains(slot.place.memory.inode)) windows.clear();
  auto& window = windows[slot.place.memory.inode];
  if (!window) window = std::make_unique<PeerMemory>(slot.place.memory);
  SFSDP_CHECK(slot.place.offset <= window->bytes() && slot.bytes <= window->bytes() - slot.place.offset, slot.bytes,
              " bytes at ", slot.place.offset, " of a window of ", window->bytes());
  return window->begin() + slot.place.offset;
}

std::span<const std::byte> ShmCommunicator::peer_stage(int rank, size_t bytes) const {
  if (rank == site().rank) return own_->stage(turn_, bytes);
  return {areas_[static_cast<size_t>(rank)]->begin() + kStageBegin + turn_ % 2 * kStageBytes, bytes};
}

// Each rank copies its parts from where they lie.
void ShmCommunicator::move(std::span<const std::byte> in, std::span<std::byte> out) {
  std::vector<Range> sent;
  if (call_->kind() == CallKind::AllToAllV)
    sent = compare_counts();
  else
    for (int r = 0; r < size(); ++r) sent.push_back(call_->sent(r, rank()));
  if (!are_parts_in_place()) return move_staged(in, out, sent);
  for (int r = 0; r < size(); ++r)
    if (const Range range = sent[static_cast<size_t>(r)]; range.bytes > 0)
      copy(range.of(part(r, in)), call_->received(r, rank()).of(out));
}

void ShmCommunicator::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out) {
  if (!are_parts_in_place()) return reduce_scatter_staged(in, out);
  Parts all = parts(in);
  for (auto& part : all) part = call_->chunks().of(part, rank());
  reduce(all, out, *call_->dtype(), call_->op());
}

// Large data in windows: each rank reduces its chunk in place, where no peer looks; then all copy the others' chunks.
void ShmCommunicator::all_reduce(std::span<std::byte> data) {
  if (!are_parts_in_place()) return all_reduce_staged(data);
  const Parts all = parts(data);
  if (data.size() <= kSmallBytes) return reduce(all, data, *call_->dtype(), call_->op());
  const ByteChunks chunks(data.size(), ir::size_in_bytes(*call_->dtype()), size());
  Parts mine;
  for (const auto& part : all) mine.push_back(chunks.of(part, rank()));
  reduce(mine, chunks.of(data, rank()), *call_->dtype(), call_->op());
  meet();
  for (int r = 0; r < size(); ++r) copy(chunks.of(all[static_cast<size_t>(r)], r), chunks.of(data, r));
}

// A half of a staging area is written again only after a meeting that its readers reach when they have read it.

// Each rank shows its input piece by piece; those for whom something lies in a piece copy that.
void ShmCommunicator::move_staged(std::span<const std::byte> in, std::span<std::byte> out,
                                  const std::vector<Range>& sent) {
  const size_t shown = slot(rank()).bytes;
  size_t most = 0;
  for (int r = 0; r < size(); ++r) most = std::max(most, slot(r).bytes);
  for (size_t begin = 0; begin < most; begin += kStageBytes, ++turn_) {
    const auto piece = Range{0, shown}.within(begin, kStageBytes).of(in);
    copy(piece, own_->stage(turn_, piece.size()));
    meet();
    for (int r = 0; r < size(); ++r) {
      const Range range = sent[static_cast<size_t>(r)], here = range.within(begin, kStageBytes);
      if (here.bytes == 0) continue;
      const auto to = call_->received(r, rank()).of(out).subspan(here.begin - range.begin, here.bytes);
      copy(peer_stage(r, here.begin - begin + here.bytes).subspan(here.begin - begin), to);
    }
  }
}

// A piece holds a part for each rank.
void ShmCommunicator::reduce_scatter_staged(std::span<const std::byte> in, std::span<std::byte> out) {
  const ByteChunks& chunks = call_->chunks();
  const size_t most = kStageBytes / site().ranks.size() / 64 * 64;
  for (size_t begin = 0; begin < chunks.largest(); begin += most, ++turn_) {
    const size_t pitch = std::min(most, chunks.largest() - begin), staged = pitch * site().ranks.size();
    const auto stage = own_->stage(turn_, staged);
    const auto piece = [&](auto chunk) { return Range{0, chunk.size()}.within(begin, most).of(chunk); };
    for (int r = 0; r < size(); ++r) {
      const auto part = piece(chunks.of(in, r));
      copy(part, stage.subspan(static_cast<size_t>(r) * pitch, part.size()));
    }
    meet();
    const auto mine = piece(out);
    Parts parts;
    for (int r = 0; r < size(); ++r)
      parts.push_back(peer_stage(r, staged).subspan(static_cast<size_t>(rank()) * pitch, mine.size()));
    reduce(parts, mine, *call_->dtype(), call_->op());
  }
}

// Each rank reduces its chunk of a piece where it is staged, then all copy the chunks.
void ShmCommunicator::all_reduce_staged(std::span<std::byte> data) {
  for (size_t begin = 0; begin < data.size(); begin += kStageBytes, ++turn_) {
    const auto piece = data.subspan(begin, std::min(kStageBytes, data.size() - begin));
    const ByteChunks chunks(piece.size(), ir::size_in_bytes(*call_->dtype()), size());
    const auto stage = own_->stage(turn_, piece.size());
    copy(piece, stage);
    meet();
    Parts parts;
    for (int r = 0; r < size(); ++r) parts.push_back(chunks.of(peer_stage(r, piece.size()), rank()));
    reduce(parts, chunks.of(stage, rank()), *call_->dtype(), call_->op());
    meet();
    for (int r = 0; r < size(); ++r) copy(chunks.of(peer_stage(r, piece.size()), r), chunks.of(piece, r));
  }
}

}  // namespace sfsdp::comm
