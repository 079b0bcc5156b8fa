// SPDX-License-Identifier: BSD-3-Clause
// Messages of a group over MPI, which is asked again and again whether they have come: a wait of MPI's own has no deadline.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/messages/messages.h"
#include "sfsdp/comm/mpi/mpi_library.h"

namespace sfsdp::comm {

// In front of a message goes a frame, which says of which call it is and how long. Small ones lie in it: one message of MPI's.
// Frames have one size where they are received: whatever the peer is about, its frame fits, and is told from others.
class MpiMessages final : public Messages {
 public:
  //   tag: of the group, which no other group that shares two ranks has
  MpiMessages(std::shared_ptr<Mpi> mpi, CallSite site, int tag);
  ~MpiMessages() override;

  void set_order(uint64_t order) override { order_ = order; }
  void send(std::span<const std::byte> data, int peer) override;
  void receive(std::span<std::byte> data, int peer) override;
  void wait(std::chrono::milliseconds silence, const Look& look) override;
  // Data that has begun to come cannot be stopped, nor what is sent be taken back: after an error the process goes down, and MPI
  // with it.
  bool drop() override;
  void abort() override { aborted_ = true; }

 private:
  struct Header {
    uint64_t order = 0;
    uint64_t bytes = 0;  // of the message
  };
  static constexpr size_t kFrameBytes = 2048;
  static constexpr size_t kMostInFrame = kFrameBytes - sizeof(Header);
  using Frame = std::array<std::byte, kFrameBytes>;
  // A message of MPI's: a frame, or a piece of what did not fit into one.
  struct Pending {
    Mpi::Message message;
    int peer = 0;
    std::span<std::byte> data;  // of a piece; of a frame that comes, where what lies in it belongs
    std::unique_ptr<Frame> frame;
    Header expected;  // of a frame that comes
  };

  void post(Pending pending, std::span<const std::byte> sent);
  std::unique_ptr<Frame> take_frame();
  bool move();
  bool finish(Pending& pending);
  void open_frame(Pending& pending, size_t received);
  void open_frame_of(int peer);
  int missing_peer() const;

  std::shared_ptr<Mpi> mpi_;
  CallSite site_;
  int tag_;
  uint64_t order_ = 0;
  std::vector<Pending> pending_;  // in the order in which they were posted; one whose request is gone is done
  std::vector<std::unique_ptr<Frame>> frames_;  // free
  std::atomic<bool> aborted_ = false;
  size_t looked_at_ = 0;
};

}  // namespace sfsdp::comm
