// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point messages of one group, all that MessageCommunicator needs to make collectives of.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace sfsdp::comm {

// What a transfer throws, with the peer it was for.
struct TransferError {
  int peer = 0;  // in the group
  std::string text;
  bool timed_out = false;
  bool is_of_another_call = false;  // the peer's message
};

class Messages {
 public:
  virtual ~Messages() = default;
  // What follows belongs to the calls that `order` stands for. Every message carries it, and who receives one with another order
  // than its own throws.
  virtual void set_order(uint64_t order) = 0;
  // Order counts per pair of ranks and direction; empty spans are not sent. Nothing need move before wait.
  virtual void send(std::span<const std::byte> data, int peer) = 0;
  virtual void receive(std::span<std::byte> data, int peer) = 0;

  // Until everything posted has been sent and received, however long that takes while bytes move. Where it takes long, calls
  // look(peer) twice a second with a peer that has not answered, a different one each time; what it throws ends the wait.
  //   silence: for how long no byte may move
  //   throws: TransferError
  using Look = std::function<void(int peer)>;
  virtual void wait(std::chrono::milliseconds silence, const Look& look) = 0;
  // After an error; takes no longer than a second, whatever the peers do.
  //   returns: whether what was posted is over: nothing is written to the caller's memory any more. Else the transport may use it
  //            until the process ends
  virtual bool drop() = 0;
  // From any thread: ends a wait, now or later.
  virtual void abort() = 0;
};

}  // namespace sfsdp::comm
