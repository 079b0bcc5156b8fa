// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/tcp/store_wire.h"

namespace sfsdp::comm {
namespace {

// Strangers that may say nothing for some seconds, beside a connection of each rank.
constexpr size_t kMostStrangers = 128;
// What a client may leave unread: a few answers with all ranks of a large world.
constexpr size_t kMostUnread = 2 * kMostAnswerBytes;
constexpr int64_t kTickMs = 100;  // how late a waiter may be told that its time is up

}  // namespace

StoreServer::StoreServer(const Address& listen, const JobToken& token, int world_size)
    : doorman_(listen, token, kMostStrangers + 2 * static_cast<size_t>(world_size)),
      address_(doorman_.address()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !stop_) throw SocketError(concat("no descriptor for the store: ", std::strerror(errno)));
  watch(doorman_.listener(), EPOLLIN, EPOLL_CTL_ADD);
  watch(stop_.get(), EPOLLIN, EPOLL_CTL_ADD);
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

std::vector<std::string> StoreServer::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

void StoreServer::run() {
  std::array<epoll_event, 64> events{};
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), next_timeout_ms());
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<size_t>(i)].data.fd == stop_.get()) return;
      on_event(events[static_cast<size_t>(i)].data.fd, events[static_cast<size_t>(i)].events);
    }
    doorman_.expire();
    for (auto& [key, gate] : gates_) answer_waiters(gate, true);
    std::erase_if(gates_, [](const auto& entry) { return entry.second.waiters.empty(); });
  }
}

int StoreServer::next_timeout_ms() const {
  if (!gates_.empty()) return kTickMs;
  const Clock::time_point expiry = doorman_.next_expiry();
  if (expiry == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(expiry - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

// A descriptor of an earlier event may be closed by now, and even be another connection's: each case looks it up.
void StoreServer::on_event(int fd, uint32_t events) {
  if (fd == doorman_.listener()) {
    const std::vector<int> fds = doorman_.accept_new();
    for (const int visitor : fds)
      if (doorman_.has(visitor)) watch(visitor, EPOLLIN, EPOLL_CTL_ADD);
    // Without descriptors left the listener stays ready: the loop must not spin on it.
    if (fds.empty() && (errno == EMFILE || errno == ENFILE)) usleep(10'000);
  } else if (doorman_.has(fd)) {
    if (auto guest = doorman_.serve(fd)) add(std::move(*guest));
    const std::lock_guard lock(mutex_);
    refused_ = doorman_.refused();
  } else if (const auto client = clients_.find(fd); client != clients_.end()) {
    const bool lives = ((events & EPOLLIN) == 0 || read(client->second)) && (events & (EPOLLERR | EPOLLHUP)) == 0 &&
                       write(client->second);
    if (!lives) drop(fd);
  }
}

void StoreServer::add(Doorman::Guest guest) {
  const int fd = guest.fd.get();
  clients_[fd] = {std::move(guest.fd), guest.hello, {}, {}};
}

void StoreServer::drop(int fd) {
  const Client& client = clients_.at(fd);
  const std::string rank = std::to_string(client.hello.rank);
  // The first rank that is lost without having said goodbye: the others' ends may follow from its.
  if (client.hello.purpose == Purpose::Heartbeat && !entries_.contains("bye/" + rank) && !entries_.contains("lost"))
    set("lost", rank);
  for (auto& [key, gate] : gates_) gate.waiters.erase(fd);
  clients_.erase(fd);
}

bool StoreServer::read(Client& client) {
  std::array<char, 65536> buffer;
  const ssize_t n = recv(client.fd.get(), buffer.data(), buffer.size(), 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (n < 0) return true;
  client.in.append(buffer.data(), static_cast<size_t>(n));
  size_t begin = 0;
  try {
    while (client.in.size() - begin >= sizeof(uint32_t)) {
      uint32_t size = 0;
      std::memcpy(&size, client.in.data() + begin, sizeof size);
      if (size > kMostRequestBytes) return false;
      if (client.in.size() - begin - sizeof size < size) break;
      answer(client, std::string_view(client.in).substr(begin + sizeof size, size));
      begin += sizeof size + size;
    }
  } catch (const SocketError&) {
    return false;  // no request of ours
  }
  client.in.erase(0, begin);
  return true;
}

void StoreServer::answer(Client& client, std::string_view request) {
  FrameReader reader(request);
  const auto op = static_cast<StoreOp>(reader.number<uint8_t>());
  std::string key = reader.text(kMostKeyBytes);
  FrameWriter writer;
  if (op == StoreOp::Set) {
    set(key, reader.text(kMostValueBytes));
  } else if (op == StoreOp::SetFirst) {
    std::string value = reader.text(kMostValueBytes);
    if (!entries_.contains(key)) set(key, std::move(value));
    writer.text(entries_.at(key).value);
  } else if (op == StoreOp::Get) {
    const auto entry = entries_.find(key);
    writer.number<uint8_t>(entry != entries_.end());
    if (entry != entries_.end()) {
      const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - entry->second.set_at);
      writer.text(entry->second.value).number<int64_t>(age.count());
    }
  } else if (op == StoreOp::Collect) {
    const auto wait_ms = reader.number<int64_t>();
    const auto count = reader.number<uint32_t>();
    if (count != reader.left() / sizeof(uint32_t)) throw SocketError("a message is cut off");
    std::vector<uint32_t> numbers(count);
    for (uint32_t& number : numbers) number = reader.number<uint32_t>();
    return collect(client, std::move(key), std::move(numbers), wait_ms);
  } else {
    throw SocketError("no request of the store");
  }
  send(client, writer.frame());
}

void StoreServer::set(const std::string& key, std::string value) {
  const bool is_new = !entries_.contains(key);
  entries_[key] = {std::move(value), Clock::now()};
  if (!is_new) return;
  for (auto& [name, gate] : gates_) {
    gate.missing.erase(key);
    if (gate.missing.empty() || key == "aborted") answer_waiters(gate, false);
  }
}

void StoreServer::collect(Client& client, std::string prefix, std::vector<uint32_t> numbers, int64_t wait_ms) {
  std::string name = prefix;
  name.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t));
  auto [place, is_new] = gates_.try_emplace(std::move(name));
  Gate& gate = place->second;
  if (is_new) {
    gate.prefix = std::move(prefix);
    gate.numbers = std::move(numbers);
    for (const uint32_t number : gate.numbers)
      if (std::string key = gate.prefix + std::to_string(number); !entries_.contains(key))
        gate.missing.insert(std::move(key));
  }
  gate.waiters[client.fd.get()] = Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(wait_ms, 0, 60'000));
  if (gate.missing.empty() || entries_.contains("aborted")) answer_waiters(gate, false);
}

void StoreServer::answer_waiters(Gate& gate, bool only_late) {
  const auto now = Clock::now();
  std::string frame;  // the same for all
  std::erase_if(gate.waiters, [&](const auto& waiter) {
    if (only_late && waiter.second > now) return false;
    if (frame.empty()) frame = collected(gate);
    send(clients_.at(waiter.first), frame);
    return true;
  });
}

std::string StoreServer::collected(const Gate& gate) const {
  FrameWriter writer;
  writer.number<uint8_t>(gate.missing.empty());
  for (const uint32_t number : gate.numbers) {
    const auto entry = entries_.find(gate.prefix + std::to_string(number));
    writer.number<uint8_t>(entry != entries_.end());
    if (entry != entries_.end()) writer.text(entry->second.value);
  }
  return writer.frame();
}

// Here the answer is only noted where the socket is full. An error is found when the client's descriptor is next looked at.
void StoreServer::send(Client& client, const std::string& frame) {
  client.out += frame;
  write(client);
}

bool StoreServer::write(Client& client) {
  size_t sent = 0;
  while (sent < client.out.size()) {
    const ssize_t n = ::send(client.fd.get(), client.out.data() + sent, client.out.size() - sent, MSG_NOSIGNAL);
    if (n > 0)
      sent += static_cast<size_t>(n);
    else if (errno == EAGAIN)
      break;
    else if (errno != EINTR)
      return false;
  }
  client.out.erase(0, sent);
  watch(client.fd.get(), client.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
  return client.out.size() <= kMostUnread;
}

void StoreServer::watch(int fd, uint32_t events, int how) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), how, fd, &event);
}

}  // namespace sfsdp::comm
