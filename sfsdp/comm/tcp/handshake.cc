// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "sfsdp/base/check.h"

namespace sfsdp::comm {
namespace {

constexpr std::string_view kMagic = "sfsdp/1\n";  // a new number for every other form
constexpr size_t kNonceBytes = 16, kHelloBytes = 64, kChallengeBytes = 8 + kNonceBytes + 32, kProofBytes = 32;
// A rank needs microseconds, a few seconds on a machine that is out of breath.
constexpr std::chrono::seconds kPatience{5};
constexpr size_t kMostRefused = 8;

using HelloBytes = std::array<std::byte, kHelloBytes>;
using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

template <class T>
void put(std::span<std::byte> bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <class T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
bool has_magic(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

HelloBytes write_hello(const Hello& hello, const Nonce& nonce) {
  HelloBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, 8, hello.purpose);
  put(bytes, 12, hello.rank);
  put(bytes, 16, hello.target);
  put(bytes, 24, nonce);
  return bytes;
}

Proof prove(const JobToken& token, std::string_view side, std::span<const std::byte> hello, const Nonce& nonce) {
  std::vector<std::byte> message;
  const auto add = [&](std::span<const std::byte> part) { message.insert(message.end(), part.begin(), part.end()); };
  add(std::as_bytes(std::span(side)));
  add(hello);
  add(nonce);
  Proof proof{};
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  const auto* made = HMAC(EVP_sha256(), token.bytes().data(), static_cast<int>(token.bytes().size()), data,
                          message.size(), reinterpret_cast<unsigned char*>(proof.data()), nullptr);
  SFSDP_CHECK(made, "HMAC");
  return proof;
}

// Takes as long whether they differ at the first byte or the last, so that time tells a guesser nothing.
bool is_same(const Proof& a, std::span<const std::byte, kProofBytes> b) {
  return CRYPTO_memcmp(a.data(), b.data(), kProofBytes) == 0;
}

}  // namespace

void greet(int fd, const JobToken& token, const Hello& hello, Clock::time_point deadline) {
  Nonce nonce{};
  fill_random(nonce);
  const HelloBytes bytes = write_hello(hello, nonce);
  send_all(fd, bytes, deadline);
  std::array<std::byte, kChallengeBytes> challenge{};
  receive_all(fd, challenge, deadline);
  if (!has_magic(challenge)) throw SocketError("what answers there is no rank of sfsdp");
  const auto theirs = get<Nonce>(challenge, 8);
  // The proof is sent in any case: the other side then knows, too, whom it has refused.
  send_all(fd, prove(token, "client", bytes, theirs), deadline);
  std::byte verdict{};
  const bool known =
      is_same(prove(token, "server", bytes, theirs), std::span(challenge).subspan<8 + kNonceBytes, kProofBytes>());
  try {
    receive_all(fd, {&verdict, 1}, deadline);
  } catch (const SocketError&) {
    if (known) throw;
  }
  if (!known || verdict != std::byte{1}) throw RefusedError("the job token of this rank is not that of the run");
}

Fd connect_and_greet(const Address& address, const JobToken& token, const Hello& hello, Clock::time_point deadline) {
  for (std::chrono::milliseconds nap(1);; nap = std::min(2 * nap, std::chrono::milliseconds(50))) {
    try {
      Fd fd = connect_to(address, deadline);
      // Whoever accepts but does not answer may be a stranger at a port that rank 0 is about to take.
      greet(fd.get(), token, hello, std::min(deadline, Clock::now() + 2 * kPatience));
      return fd;
    } catch (const RefusedError&) {
      throw;
    } catch (const SocketError&) {
      if (Clock::now() + nap >= deadline) throw;
    }
    std::this_thread::sleep_for(nap);
  }
}

Doorman::Doorman(const Address& address, const JobToken& token, size_t most_waiting)
    : token_(token), most_waiting_(most_waiting), listener_(listen_at(address)) {}

bool Doorman::has(int fd) const {
  return std::ranges::any_of(visitors_, [&](const Visitor& visitor) { return visitor.fd.get() == fd; });
}

std::vector<int> Doorman::waiting() const {
  std::vector<int> fds;
  for (const Visitor& visitor : visitors_) fds.push_back(visitor.fd.get());
  return fds;
}

std::vector<int> Doorman::accept_new() {
  std::vector<int> fds;
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == ECONNABORTED || errno == EINTR || errno == EPROTO) continue;
      if ((errno == EMFILE || errno == ENFILE) && !visitors_.empty()) {
        visitors_.pop_front();  // of all that are open, strangers' may go
        continue;
      }
      return fds;
    }
    make_fast(fd.get());
    if (visitors_.size() >= most_waiting_) visitors_.pop_front();
    fds.push_back(fd.get());
    Visitor& visitor = visitors_.emplace_back();
    visitor.fd = std::move(fd);
    visitor.expires = Clock::now() + kPatience;
  }
}

std::optional<Doorman::Guest> Doorman::serve(int fd) {
  const auto visitor = std::ranges::find_if(visitors_, [&](const Visitor& v) { return v.fd.get() == fd; });
  SFSDP_CHECK(visitor != visitors_.end(), "descriptor ", fd);
  if (!visitor->challenged && (!read(*visitor, kHelloBytes) || !challenge(*visitor))) return std::nullopt;
  if (!read(*visitor, kProofBytes)) return std::nullopt;
  return judge(*visitor);
}

bool Doorman::read(Visitor& visitor, size_t size) {
  while (visitor.got < size) {
    const ssize_t n = recv(visitor.fd.get(), visitor.text.data() + visitor.got, size - visitor.got, 0);
    if (n > 0) {
      visitor.got += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else if (n == 0 || errno != EINTR) {
      close(visitor.fd.get());
      return false;
    }
  }
  return true;
}

bool Doorman::challenge(Visitor& visitor) {
  visitor.hello = {get<Purpose>(visitor.text, 8), get<int32_t>(visitor.text, 12), get<uint64_t>(visitor.text, 16)};
  std::array<std::byte, kChallengeBytes> text{};
  Nonce nonce{};
  fill_random(nonce);
  std::memcpy(text.data(), kMagic.data(), kMagic.size());
  put(text, 8, nonce);
  put(text, 8 + kNonceBytes, prove(token_, "server", visitor.text, nonce));
  // 56 bytes fit into the empty buffer of a new connection, or it is none that we want.
  const bool sent = has_magic(visitor.text) &&
                    send(visitor.fd.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  if (!sent) {
    close(visitor.fd.get());
    return false;
  }
  visitor.expected = prove(token_, "client", visitor.text, nonce);
  visitor.challenged = true;
  visitor.got = 0;
  return true;
}

std::optional<Doorman::Guest> Doorman::judge(Visitor& visitor) {
  const bool right = is_same(visitor.expected, std::span(visitor.text).first<kProofBytes>());
  const auto verdict = static_cast<std::byte>(right ? 1 : 0);
  const bool told = send(visitor.fd.get(), &verdict, 1, MSG_NOSIGNAL) == 1;
  std::optional<Guest> guest;
  const int fd = visitor.fd.get();
  if (right && told) {
    guest = Guest{std::move(visitor.fd), visitor.hello};
    std::erase_if(visitors_, [&](const Visitor& v) { return &v == &visitor; });
    return guest;
  }
  if (!right && refused_.size() < kMostRefused)
    refused_.push_back(concat("rank ", visitor.hello.rank, " at ", peer_address(fd).text()));
  close(fd);
  return guest;
}

void Doorman::expire() {
  while (!visitors_.empty() && visitors_.front().expires <= Clock::now()) visitors_.pop_front();
}

Clock::time_point Doorman::next_expiry() const {
  return visitors_.empty() ? Clock::time_point::max() : visitors_.front().expires;
}

void Doorman::close(int fd) {
  std::erase_if(visitors_, [&](const Visitor& v) { return v.fd.get() == fd; });
}

}  // namespace sfsdp::comm
