// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_messages.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/messages/kept.h"
#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/mpi/nap.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{500};
// A message of MPI counts its bytes in an int, and tells of no progress before all have come.
constexpr size_t kMostBytes = 64 << 20;
// How long a failed call waits for messages that cannot be taken back.
constexpr milliseconds kDropPatience{1000};

}  // namespace

MpiMessages::MpiMessages(std::shared_ptr<Mpi> mpi, CallSite site, int tag)
    : mpi_(std::move(mpi)), site_(std::move(site)), tag_(tag) {}

MpiMessages::~MpiMessages() { drop(); }

// Hands a message to MPI.
//   sent: what of it goes out; of one that comes, nothing
void MpiMessages::post(Pending p, std::span<const std::byte> sent) {
  const int rank = site_.ranks[static_cast<size_t>(p.peer)];
  try {
    if (p.message.way == Mpi::Way::Sent) {
      p.message.request = mpi_->send(sent.data(), sent.size(), rank, tag_);
    } else {
      const std::span<std::byte> place = p.frame ? std::span<std::byte>(*p.frame) : p.data;
      p.message.request = mpi_->receive(place.data(), place.size(), rank, tag_);
    }
  } catch (const TransportError& error) {
    throw TransferError{p.peer, error.what(), false};
  }
  pending_.push_back(std::move(p));
}

std::unique_ptr<MpiMessages::Frame> MpiMessages::take_frame() {
  if (frames_.empty()) return std::make_unique<Frame>();
  std::unique_ptr<Frame> frame = std::move(frames_.back());
  frames_.pop_back();
  return frame;
}

void MpiMessages::send(std::span<const std::byte> data, int peer) {
  if (data.empty()) return;
  const Header header = {order_, data.size()};
  const size_t in_frame = data.size() <= kMostInFrame ? data.size() : 0;
  std::unique_ptr<Frame> frame = take_frame();
  const std::span<std::byte> content(*frame);
  copy(std::as_bytes(std::span(&header, 1)), content.first(sizeof header));
  copy(data.first(in_frame), content.subspan(sizeof header, in_frame));
  post({{nullptr, Mpi::Way::Sent}, peer, {}, std::move(frame), {}}, content.first(sizeof header + in_frame));
  for (size_t begin = in_frame; begin < data.size(); begin += kMostBytes)
    post({{nullptr, Mpi::Way::Sent}, peer, {}, nullptr, {}}, Range{0, data.size()}.within(begin, kMostBytes).of(data));
}

void MpiMessages::receive(std::span<std::byte> data, int peer) {
  if (data.empty()) return;
  const size_t in_frame = data.size() <= kMostInFrame ? data.size() : 0;
  post({{nullptr, Mpi::Way::Received}, peer, data.first(in_frame), take_frame(), {order_, data.size()}}, {});
  for (size_t begin = in_frame; begin < data.size(); begin += kMostBytes)
    post({{nullptr, Mpi::Way::Received}, peer, Range{0, data.size()}.within(begin, kMostBytes).of(data), nullptr, {}},
         {});
}

// Whether a message is done; those that are leave the list.
bool MpiMessages::move() {
  bool moved = false;
  for (Pending& p : pending_) moved = finish(p) || moved;
  if (moved) std::erase_if(pending_, [](const Pending& p) { return !p.message.request; });
  return moved;
}

bool MpiMessages::finish(Pending& p) {
  if (!p.message.request) return false;
  const bool comes = p.message.way == Mpi::Way::Received;
  size_t received = 0;
  std::string fault;
  try {
    if (!mpi_->test(p.message.request, received)) return false;
    if (comes && !p.frame && received != p.data.size())
      fault =
          concat("its message of ", received, " bytes is not what this rank expects, one of ", p.data.size(), " bytes");
  } catch (const TransportError& error) {
    fault = error.what();
  }
  if (!fault.empty()) {
    open_frame_of(p.peer);  // why it does not fit
    throw TransferError{p.peer, fault, false};
  }
  if (p.frame && comes) open_frame(p, received);
  if (p.frame) frames_.push_back(std::move(p.frame));
  return true;
}

void MpiMessages::open_frame(Pending& p, size_t received) {
  Header header;
  const std::span<const std::byte> content(*p.frame);
  copy(content.first(sizeof header), std::as_writable_bytes(std::span(&header, 1)));
  if (received >= sizeof header && header.order != p.expected.order)
    throw TransferError{p.peer, "its message is of another call than this rank's", false, true};
  if (received != sizeof header + p.data.size() || header.bytes != p.expected.bytes)
    throw TransferError{p.peer,
                        concat("its message of ", header.bytes, " bytes is not what this rank expects, one of ",
                               p.expected.bytes, " bytes"),
                        false};
  copy(content.subspan(sizeof header, p.data.size()), p.data);
}

// The first frame that this rank waits for, if it is there: MPI may show what has come after it first.
void MpiMessages::open_frame_of(int peer) {
  for (Pending& p : pending_)
    if (p.peer == peer && p.frame && p.message.request && p.message.way == Mpi::Way::Received) {
      size_t received = 0;
      try {
        if (mpi_->test(p.message.request, received)) open_frame(p, received);
      } catch (const TransportError&) {
        // The first fault is the one to tell.
      }
      return;
    }
}

int MpiMessages::missing_peer() const {
  const auto received = std::ranges::find(pending_, Mpi::Way::Received, [](const Pending& p) { return p.message.way; });
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

bool MpiMessages::drop() {
  std::vector<Mpi::Message*> messages;
  for (Pending& p : pending_) messages.push_back(&p.message);
  const bool all = mpi_->end(messages, kDropPatience);
  for (Pending& p : pending_)
    if (p.message.request && p.frame) keep_for_ever(std::move(p.frame));
  pending_.clear();
  return all;
}

}  // namespace sfsdp::comm
