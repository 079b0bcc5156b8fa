// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLookEvery{500};
constexpr size_t kMostStrangers = 128;

[[noreturn]] void refuse(const CallSite& site, const std::string& why) {
  throw CommError(concat("CommError on rank ", site.global_rank(), " of ", site.world_size, ": group ", site.group,
                         "\n  cannot connect to the other ranks: ", why));
}

// One system call for what is left of the header and the data.
template <class Send>
ssize_t move(void* header, size_t header_bytes, void* data, size_t bytes, size_t done, Send send) {
  std::array<iovec, 2> parts{};
  size_t count = 0;
  if (done < header_bytes) parts[count++] = {static_cast<char*>(header) + done, header_bytes - done};
  const size_t data_done = done - std::min(done, header_bytes);
  if (data_done < bytes) parts[count++] = {static_cast<char*>(data) + data_done, bytes - data_done};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  return send(&message);
}

}  // namespace

Links::Links(const CallSite& site, const std::string& key, const Address& listen, Rendezvous& store, int64_t timeout_ms)
    : peers_(site.ranks.size()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  const std::string what = "group " + site.group;
  const uint64_t target = hash_path(key);
  try {
    Doorman doorman(listen, store.token(), kMostStrangers + peers_.size());
    store.store().set(concat(key, "/at/", site.global_rank()), doorman.address().text());
    const auto places = store.wait_for(key + "/at/", site.ranks, what);
    // To lower ranks first: rank 0 only accepts, so that somebody always does.
    for (size_t peer = 0; peer < static_cast<size_t>(site.rank); ++peer)
      peers_[peer].fd = connect_and_greet(parse_address(places[peer]), store.token(),
                                          {Purpose::Link, site.global_rank(), target}, deadline);
    accept_peers(doorman, site, target, deadline);
  } catch (const SocketError& error) {
    refuse(site, concat(error.what(), "; check GLOO_SOCKET_IFNAME, and the logs of ranks that are gone"));
  }
}

void Links::accept_peers(Doorman& doorman, const CallSite& site, uint64_t target, Clock::time_point deadline) {
  const auto first = peers_.begin() + site.rank + 1;
  while (std::any_of(first, peers_.end(), [](const Peer& peer) { return !peer.fd; })) {
    std::vector<pollfd> fds = {{doorman.listener(), POLLIN, 0}};
    for (const int fd : doorman.waiting()) fds.push_back({fd, POLLIN, 0});
    const auto until = std::min(deadline, doorman.next_expiry());
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0 || !doorman.has(fds[i].fd)) continue;
      auto guest = doorman.serve(fds[i].fd);
      if (!guest || guest->hello.purpose != Purpose::Link || guest->hello.target != target) continue;
      const auto found = std::ranges::find(site.ranks, guest->hello.rank);
      if (found == site.ranks.end()) continue;
      // Again from one that has come already: its first connection was lost on the way, before it was told of it.
      peers_[static_cast<size_t>(found - site.ranks.begin())].fd = std::move(guest->fd);
    }
    if (fds[0].revents != 0) doorman.accept_new();
    doorman.expire();
    if (Clock::now() < deadline) continue;
    std::vector<std::string> missing;
    for (auto peer = first; peer != peers_.end(); ++peer)
      if (!peer->fd) missing.push_back(std::to_string(site.ranks[static_cast<size_t>(peer - peers_.begin())]));
    if (!missing.empty()) refuse(site, concat("rank ", join(missing, ", "), " did not connect; read its log"));
  }
}

void Links::send(std::span<const std::byte> data, int peer) {
  if (data.empty()) return;
  Peer& to = peers_[static_cast<size_t>(peer)];
  to.outgoing.push_back({{++to.sent, data.size(), order_}, data, 0, {}, false});
}

void Links::receive(std::span<std::byte> data, int peer) {
  if (data.empty()) return;
  Peer& from = peers_[static_cast<size_t>(peer)];
  from.incoming.push_back({{++from.received, data.size(), order_}, data, 0, {}, false});
}

// Both move what they can of the oldest messages; false: they would block, or there is nothing to do.
bool Links::push(size_t peer) {
  Peer& to = peers_[peer];
  bool moved = false;
  while (!to.outgoing.empty()) {
    auto& m = to.outgoing.front();
    const ssize_t n = move(&m.header, sizeof m.header, const_cast<std::byte*>(m.data.data()), m.data.size(), m.done,
                           [&](const msghdr* text) { return sendmsg(to.fd.get(), text, MSG_NOSIGNAL); });
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw TransferError{static_cast<int>(peer), std::strerror(errno), false};
    moved = true;
    m.done += static_cast<size_t>(n);
    if (m.done == sizeof m.header + m.data.size()) to.outgoing.pop_front();
  }
  return moved;
}

bool Links::pull(size_t peer) {
  Peer& from = peers_[peer];
  bool moved = false;
  while (!from.incoming.empty()) {
    auto& m = from.incoming.front();
    const ssize_t n = move(&m.received, sizeof m.received, m.data.data(), m.data.size(), m.done,
                           [&](msghdr* text) { return recvmsg(from.fd.get(), text, 0); });
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw TransferError{static_cast<int>(peer), n == 0 ? "closed by the peer" : std::strerror(errno), false};
    moved = true;
    m.done += static_cast<size_t>(n);
    if (!m.checked && m.done >= sizeof m.received) {
      m.checked = true;
      if (m.received != m.header)
        throw TransferError{static_cast<int>(peer),
                            concat("its message ", m.received.sequence, " of ", m.received.bytes,
                                   " bytes is not what this rank expects, message ", m.header.sequence, " of ",
                                   m.header.bytes, " bytes"),
                            false, m.received.order != m.header.order};
    }
    if (m.done == sizeof m.received + m.data.size()) from.incoming.pop_front();
  }
  return moved;
}

bool Links::is_pending() const {
  return std::ranges::any_of(peers_, [](const Peer& p) { return !p.outgoing.empty() || !p.incoming.empty(); });
}

int Links::missing_peer() const {
  for (size_t i = 0; i < peers_.size(); ++i)
    if (!peers_[i].incoming.empty()) return static_cast<int>(i);
  for (size_t i = 0; i < peers_.size(); ++i)
    if (!peers_[i].outgoing.empty()) return static_cast<int>(i);
  return -1;
}

void Links::wait(milliseconds silence, const Look& look) {
  auto last_moved = Clock::now(), next_look = last_moved + kLookEvery;
  while (is_pending()) {
    if (aborted_) throw TransferError{std::max(missing_peer(), 0), "aborted", false};
    bool moved = false;
    for (size_t i = 0; i < peers_.size(); ++i) {
      moved = push(i) || moved;
      moved = pull(i) || moved;
    }
    if (moved) {
      last_moved = Clock::now();
      continue;
    }
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    std::vector<int> silent;
    for (size_t i = 0; i < peers_.size(); ++i) {
      const Peer& p = peers_[i];
      const int events = (p.incoming.empty() ? 0 : POLLIN) | (p.outgoing.empty() ? 0 : POLLOUT);
      if (events == 0) continue;
      fds.push_back({p.fd.get(), static_cast<short>(events), 0});
      silent.push_back(static_cast<int>(i));
    }
    const auto now = Clock::now();
    const auto deadline = last_moved + silence;
    if (now >= deadline) throw TransferError{missing_peer(), concat("no byte for ", silence.count(), " ms"), true};
    if (now >= next_look) {
      next_look = now + kLookEvery;
      look(silent[looked_at_++ % silent.size()]);
    }
    const auto left = std::chrono::ceil<milliseconds>(std::min(deadline, next_look) - now).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left, 1)));
  }
}

bool Links::drop() {
  for (Peer& peer : peers_) {
    peer.outgoing.clear();
    peer.incoming.clear();
  }
  return true;
}

void Links::abort() {
  aborted_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace sfsdp::comm
