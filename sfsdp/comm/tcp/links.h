// SPDX-License-Identifier: BSD-3-Clause
// Messages of one group over TCP: a connection to each peer. They need no copies, name the peer that fails, and leave the order
// of sums to us.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/messages/messages.h"
#include "sfsdp/comm/tcp/rendezvous.h"

namespace sfsdp::comm {

class Links final : public Messages {
 public:
  // A collective call of the group: connects every pair, the ranks with the higher number to those with the lower. Nobody
  // listens any more when it returns.
  //   key:    of the group in the store
  //   listen: where this rank does; port 0
  //   throws: CommError naming ranks that cannot be connected to
  Links(const CallSite& site, const std::string& key, const Address& listen, Rendezvous& store, int64_t timeout_ms);

  void set_order(uint64_t order) override { order_ = order; }
  void send(std::span<const std::byte> data, int peer) override;
  void receive(std::span<std::byte> data, int peer) override;
  void wait(std::chrono::milliseconds silence, const Look& look) override;
  // The first peer that data is waited for, -1 if none.
  int missing_peer() const;
  bool drop() override;
  void abort() override;

 private:
  // Sent in front of each message: both sides must have the same one in mind.
  struct Header {
    uint64_t sequence = 0;  // of this pair and direction
    uint64_t bytes = 0;
    uint64_t order = 0;
    bool operator==(const Header&) const = default;
  };
  template <class Byte>
  struct Message {
    Header header;
    std::span<Byte> data;
    size_t done = 0;    // bytes of header and data
    Header received{};  // what has come, of an incoming one
    bool checked = false;
  };
  struct Peer {
    Fd fd;
    uint64_t sent = 0, received = 0;  // messages begun
    std::deque<Message<const std::byte>> outgoing;
    std::deque<Message<std::byte>> incoming;
  };

  void accept_peers(Doorman& doorman, const CallSite& site, uint64_t target, Clock::time_point deadline);
  bool push(size_t peer);
  bool pull(size_t peer);
  bool is_pending() const;

  uint64_t order_ = 0;
  std::vector<Peer> peers_;  // by rank in the group; none for this one
  Fd wake_;
  std::atomic<bool> aborted_ = false;
  size_t looked_at_ = 0;
};

}  // namespace sfsdp::comm
