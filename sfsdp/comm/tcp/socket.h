// SPDX-License-Identifier: BSD-3-Clause
// Sockets with deadlines: addresses, listening, connecting, sending and receiving whole messages.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/fd.h"
#include "sfsdp/comm/messages/store.h"

namespace sfsdp::comm {

using Clock = std::chrono::steady_clock;

// What a socket reports; errors of the callers add rank and place.
class SocketError : public TransportError {
 public:
  using TransportError::TransportError;
};

// An IPv4 or IPv6 address, with or without a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  std::string text() const;  // "127.0.0.1:29500", "[::1]:29500"
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
  bool is_any() const;  // 0.0.0.0 or ::
};

// The addresses of a host name, best first.   throws: SocketError
std::vector<Address> resolve(const std::string& host, int port);
// "127.0.0.1:29500" or "[::1]:29500", as Address::text writes them.   throws: SocketError
Address parse_address(const std::string& text);
// The first IPv4 address of an interface, else its first IPv6 one.   throws: SocketError listing those there are
Address address_of_interface(const std::string& name);
// From which address this host would talk to `peer`. Sends nothing.
Address source_address_towards(const Address& peer);

// Listens; port 0: any free one. Non-blocking.   throws: SocketError; in_use says whether the port is taken
class PortInUse : public SocketError {
 public:
  using SocketError::SocketError;
};
Fd listen_at(const Address& address);
Address local_address(const Fd& socket);
Address peer_address(int fd);

// A connected non-blocking socket without Nagle's delay.   throws: SocketError
Fd connect_to(const Address& address, Clock::time_point deadline);
// Both throw SocketError: "timed out", "closed by the peer", or the system's reason.
void send_all(int fd, std::span<const std::byte> data, Clock::time_point deadline);
void receive_all(int fd, std::span<std::byte> data, Clock::time_point deadline);
void make_fast(int fd);  // non-blocking, TCP_NODELAY

// Waits for events of poll(2) on one descriptor; false at the deadline.
bool wait_for_events(int fd, short events, Clock::time_point deadline);

}  // namespace sfsdp::comm
