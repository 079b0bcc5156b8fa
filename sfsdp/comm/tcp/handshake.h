// SPDX-License-Identifier: BSD-3-Clause
// How a connection begins: both sides prove that they hold the job token, without sending it. Nothing else is read from a
// connection before that, and nothing is allocated for it: all messages are of a fixed size.
//
//   client: hello      magic, what for, rank, nonce                                       64 bytes
//   server: challenge  magic, nonce, HMAC(token, "server", hello, nonce)                  56 bytes
//   client: proof      HMAC(token, "client", hello, nonce)                                32 bytes
//   server: verdict    1 or 0                                                              1 byte
//
// Naive idea: the client sends the token. What breaks it: whoever listens at the port in rank 0's place then has it.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/comm/tcp/job_token.h"
#include "sfsdp/comm/tcp/socket.h"

namespace sfsdp::comm {

enum class Purpose : uint32_t { Store = 1, Heartbeat = 2, Link = 3 };

struct Hello {
  Purpose purpose = Purpose::Store;
  int32_t rank = 0;     // global
  uint64_t target = 0;  // of a link: which group
};

// The other side does not hold this side's token.
class RefusedError : public SocketError {
 public:
  using SocketError::SocketError;
};

// The client's side; blocks.   throws: RefusedError; SocketError, after which another attempt may succeed
void greet(int fd, const JobToken& token, const Hello& hello, Clock::time_point deadline);
// Connects and greets, again and again until the deadline: the other side may not listen yet, or have thrown this connection
// out for strangers.   throws: RefusedError; SocketError with the last attempt's reason
Fd connect_and_greet(const Address& address, const JobToken& token, const Hello& hello, Clock::time_point deadline);

// The server's side: accepts connections and lets those in that prove the token. It never blocks; the owner waits for events
// on its descriptors. Strangers cost a slot for a few seconds, at most: of `most_waiting` the oldest gives way.
class Doorman {
 public:
  struct Guest {
    Fd fd;
    Hello hello;
  };

  Doorman(const Address& address, const JobToken& token, size_t most_waiting);

  Address address() const { return local_address(listener_); }
  int listener() const { return listener_.get(); }
  bool has(int fd) const;            // one of those that have not been let in
  std::vector<int> waiting() const;  // their descriptors; each is ready to be read
  // The listener has events; returns the descriptors of new connections.
  std::vector<int> accept_new();
  // `fd`, one of those waiting, has events: a guest once it is let in. Closes what is no rank of this run.
  std::optional<Guest> serve(int fd);
  // Closes those that have said too little for too long.
  void expire();
  // When expire has something to do; max() if nobody waits.
  Clock::time_point next_expiry() const;
  // Who has been refused for its token: "rank 3 at 127.0.0.1:50123", the first few of them.
  const std::vector<std::string>& refused() const { return refused_; }

 private:
  struct Visitor {
    Fd fd;
    Clock::time_point expires;
    std::array<std::byte, 64> text{};
    size_t got = 0;
    bool challenged = false;
    Hello hello;
    std::array<std::byte, 32> expected{};  // the proof
  };
  // Reads what there is of `size` bytes. True: all are there. Nothing is left of the visitor if it has gone.
  bool read(Visitor& visitor, size_t size);
  bool challenge(Visitor& visitor);
  std::optional<Guest> judge(Visitor& visitor);
  void close(int fd);

  JobToken token_;
  size_t most_waiting_;
  Fd listener_;
  std::list<Visitor> visitors_;  // oldest first
  std::vector<std::string> refused_;
};

}  // namespace sfsdp::comm
