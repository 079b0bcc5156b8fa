// SPDX-License-Identifier: BSD-3-Clause
// Messages of a group over MPI, which is asked again and again whether they have come: a wait of MPI's own has no deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/messages/messages.h"
#include "sfsdp/comm/mpi/mpi_library.h"

namespace sfsdp::comm {

class MpiMessages final : public Messages {
 public:
  //   tag: of the group, which no other group that shares two ranks has
  MpiMessages(std::shared_ptr<Mpi> mpi, CallSite site, int tag);
  ~MpiMessages() override;

  void send(std::span<const std::byte> data, int peer) override;
  void receive(std::span<std::byte> data, int peer) override;
  void wait(std::chrono::milliseconds silence, const Look& look) override;
  // What is sent cannot be taken back: after an error the process goes down, and MPI with it.
  void drop() override;
  void abort() override { aborted_ = true; }

 private:
  struct Pending {
    int peer = 0;
    Mpi::Request request = nullptr;
    size_t bytes = 0;
    Mpi::Way way = Mpi::Way::Sent;
  };

  bool move();
  int missing_peer() const;

  std::shared_ptr<Mpi> mpi_;
  CallSite site_;
  int tag_;
  std::vector<Pending> pending_;
  std::atomic<bool> aborted_ = false;
  size_t looked_at_ = 0;
};

}  // namespace sfsdp::comm
