// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

SocketError system_error(const std::string& what) { return SocketError(concat(what, ": ", std::strerror(errno))); }

const sockaddr* pointer(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

Address address_from(const sockaddr* from, socklen_t size) {
  Address address;
  address.size = size;
  std::memcpy(&address.storage, from, size);
  return address;
}

in6_addr ipv6_of(const Address& address) { return reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr; }
uint32_t ipv4_of(const Address& address) {
  return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr);
}

}  // namespace

std::string Address::text() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (storage.ss_family == AF_INET6) {
    const in6_addr ip = ipv6_of(*this);
    inet_ntop(AF_INET6, &ip, host.data(), host.size());
    return concat("[", host.data(), "]:", port());
  }
  if (storage.ss_family != AF_INET) return "no address";
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, host.data(), host.size());
  return concat(host.data(), ":", port());
}

int Address::port() const {
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void Address::set_port(int port) {
  reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(static_cast<uint16_t>(port));
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET) return ipv4_of(*this) >> 24 == 127;
  const in6_addr ip = ipv6_of(*this);
  return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
}

bool Address::is_any() const {
  if (storage.ss_family == AF_INET) return ipv4_of(*this) == INADDR_ANY;
  const in6_addr ip = ipv6_of(*this);
  return IN6_IS_ADDR_UNSPECIFIED(&ip);
}

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) throw SocketError(concat("no address of ", host, ": ", gai_strerror(status)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* a = found; a; a = a->ai_next) addresses.push_back(address_from(a->ai_addr, a->ai_addrlen));
  return addresses;
}

Address parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::optional<int64_t> port = colon == std::string::npos ? std::nullopt : parse_int(text.substr(colon + 1));
  Address address;
  if (port && *port > 0 && *port < 65536) {
    std::string host = text.substr(0, colon);
    auto& four = reinterpret_cast<sockaddr_in&>(address.storage);
    auto& six = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']' &&
        inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six.sin6_addr) == 1) {
      six.sin6_family = AF_INET6;
      address.size = sizeof six;
    } else if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
      four.sin_family = AF_INET;
      address.size = sizeof four;
    }
  }
  if (address.size == 0) throw SocketError(concat("\"", text.substr(0, 80), "\" is no address and port"));
  address.set_port(static_cast<int>(*port));
  return address;
}

Address address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) throw system_error("no list of interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  std::optional<Address> six;
  std::vector<std::string> names;
  for (const ifaddrs* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    if (std::ranges::find(names, i->ifa_name) == names.end()) names.emplace_back(i->ifa_name);
    if (name != i->ifa_name) continue;
    if (i->ifa_addr->sa_family == AF_INET) return address_from(i->ifa_addr, sizeof(sockaddr_in));
    if (!six) six = address_from(i->ifa_addr, sizeof(sockaddr_in6));
  }
  if (six) return *six;
  throw SocketError(concat("no interface ", name, " with an address; there are ", join(names, ", ")));
}

Address source_address_towards(const Address& peer) {
  const Fd fd(socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), pointer(peer), peer.size) != 0) throw system_error("no route to " + peer.text());
  Address address = local_address(fd);
  address.set_port(0);
  return address;
}

Fd listen_at(const Address& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("no socket");
  // Connections of the last group may linger at the port for a minute; a listener there still refuses us.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), pointer(address), address.size) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) throw PortInUse("the port is in use");
    throw system_error("cannot listen at " + address.text());
  }
  return fd;
}

Address local_address(const Fd& socket) {
  Address address;
  address.size = sizeof address.storage;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    throw system_error("no address of a socket");
  return address;
}

Address peer_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address = Address();
  return address;
}

void make_fast(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(fd, F_SETFL, O_NONBLOCK);
}

Fd connect_to(const Address& address, Clock::time_point deadline) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("no socket");
  make_fast(fd.get());
  if (::connect(fd.get(), pointer(address), address.size) != 0) {
    if (errno != EINPROGRESS) throw system_error("cannot connect to " + address.text());
    if (!wait_for_events(fd.get(), POLLOUT, deadline))
      throw SocketError(concat("cannot connect to ", address.text(), ": timed out"));
    socklen_t size = sizeof errno;
    int error = 0;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) throw system_error("cannot connect to " + address.text());
  }
  return fd;
}

bool wait_for_events(int fd, short events, Clock::time_point deadline) {
  pollfd entry = {fd, events, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000))) > 0) return true;
  }
}

void send_all(int fd, std::span<const std::byte> data, Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for_events(fd, POLLOUT, deadline)) throw SocketError("timed out");
    } else if (errno != EINTR) {
      throw SocketError(std::strerror(errno));
    }
  }
}

void receive_all(int fd, std::span<std::byte> data, Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t got = recv(fd, data.data(), data.size(), 0);
    if (got > 0) {
      data = data.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      throw SocketError("closed by the peer");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for_events(fd, POLLIN, deadline)) throw SocketError("timed out");
    } else if (errno != EINTR) {
      throw SocketError(std::strerror(errno));
    }
  }
}

}  // namespace sfsdp::comm
