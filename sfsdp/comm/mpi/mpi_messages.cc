// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_messages.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/mpi/nap.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{500};
// A message of MPI counts its bytes in an int, and tells of no progress before all have come.
constexpr size_t kMostBytes = 64 << 20;

}  // namespace

MpiMessages::MpiMessages(std::shared_ptr<Mpi> mpi, CallSite site, int tag)
    : mpi_(std::move(mpi)), site_(std::move(site)), tag_(tag) {}

MpiMessages::~MpiMessages() { drop(); }

void MpiMessages::send(std::span<const std::byte> data, int peer) {
  for (size_t begin = 0; begin < data.size(); begin += kMostBytes) {
    const auto piece = Range{0, data.size()}.within(begin, kMostBytes).of(data);
    try {
      pending_.push_back({peer, mpi_->send(piece.data(), piece.size(), site_.ranks[static_cast<size_t>(peer)], tag_),
                          piece.size(), Mpi::Way::Sent});
    } catch (const TransportError& error) {
      throw TransferError{peer, error.what(), false};
    }
  }
}

void MpiMessages::receive(std::span<std::byte> data, int peer) {
  for (size_t begin = 0; begin < data.size(); begin += kMostBytes) {
    const auto piece = Range{0, data.size()}.within(begin, kMostBytes).of(data);
    try {
      pending_.push_back({peer, mpi_->receive(piece.data(), piece.size(), site_.ranks[static_cast<size_t>(peer)], tag_),
                          piece.size(), Mpi::Way::Received});
    } catch (const TransportError& error) {
      throw TransferError{peer, error.what(), false};
    }
  }
}

// Whether a message is done; those that are leave the list.
bool MpiMessages::move() {
  bool moved = false;
  for (size_t i = 0; i < pending_.size();) {
    Pending& p = pending_[i];
    size_t received = p.bytes;
    try {
      if (!mpi_->test(p.request, received)) {
        ++i;
        continue;
      }
    } catch (const TransportError& error) {
      const int peer = p.peer;
      if (!p.request) pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      throw TransferError{peer, error.what(), false};
    }
    if (p.way == Mpi::Way::Received && received != p.bytes) {
      const std::string text =
          concat("its message of ", received, " bytes is not what this rank expects, one of ", p.bytes, " bytes");
      const int peer = p.peer;
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      throw TransferError{peer, text, false};
    }
    moved = true;
    std::swap(p, pending_.back());
    pending_.pop_back();
  }
  return moved;
}

int MpiMessages::missing_peer() const {
  const auto received = std::ranges::find(pending_, Mpi::Way::Received, &Pending::way);
  if (received != pending_.end()) return received->peer;
  return pending_.empty() ? 0 : pending_.front().peer;
}

void MpiMessages::wait(milliseconds silence, const Look& look) {
  auto last_moved = Clock::now(), next_look = last_moved + kLookEvery;
  Nap nap;
  while (!pending_.empty()) {
    if (aborted_) throw TransferError{missing_peer(), "aborted", false};
    if (move()) {
      last_moved = Clock::now();
      nap.wake();
      continue;
    }
    const auto now = Clock::now();
    if (now >= last_moved + silence)
      throw TransferError{missing_peer(), concat("no message for ", silence.count(), " ms"), true};
    if (now >= next_look) {
      next_look = now + kLookEvery;
      look(pending_[looked_at_++ % pending_.size()].peer);
    }
    nap.rest();
  }
}

void MpiMessages::drop() {
  for (Pending& p : pending_)
    if (p.request) mpi_->drop(p.request, p.way);
  pending_.clear();
}

}  // namespace sfsdp::comm
