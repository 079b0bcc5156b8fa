// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/handshake.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/tcp/store_client.h"
#include "sfsdp/comm/tcp/store_server.h"
#include "sfsdp/comm/tcp/store_wire.h"

namespace sfsdp::comm::handshake_test {
namespace {

Address loopback() {
  Address address = parse_address("127.0.0.1:1");
  address.set_port(0);
  return address;
}
Clock::time_point in(int64_t ms) { return Clock::now() + std::chrono::milliseconds(ms); }

std::unique_ptr<StoreClient> client_of(const StoreServer& server, const JobToken& token, int rank = 0) {
  return std::make_unique<StoreClient>(server.address(), token, rank, Purpose::Store, in(20'000));
}

void write_all(const Fd& fd, const std::string& text) {
  try {
    send_all(fd.get(), std::as_bytes(std::span(text)), in(5000));
  } catch (const SocketError&) {  // thrown out already
  }
}

TEST_CASE("job_token: made of the system's randomness, read back from its digits") {
  const JobToken token = JobToken::fresh();
  CHECK(token.bytes().size() == 32);
  CHECK(token.hex() != JobToken::fresh().hex());
  CHECK(JobToken::from_hex(token.hex()).hex() == token.hex());
  CHECK_THROWS_WITH_AS(JobToken::from_hex("12ab"), "4 characters", UserError);
  CHECK_THROWS_AS(JobToken::from_hex(std::string(32, 'g')), UserError);
}

// What /proc shows of this process's environment as it was started; setenv itself writes elsewhere.
TEST_CASE("job_token: is taken out of the environment, and no message holds it") {
  const std::string digits = JobToken::fresh().hex();
  setenv(JobToken::kVariable, digits.c_str(), 1);
  const char* place = std::getenv(JobToken::kVariable);
  CHECK(JobToken::take_from_environment().hex() == digits);
  CHECK(std::getenv(JobToken::kVariable) == nullptr);
  CHECK(place[0] == '\0');
  CHECK(JobToken::take_from_environment().empty());

  const std::string wrong = "0123456789abcdef0123456789abcdexyz";
  setenv(JobToken::kVariable, wrong.c_str(), 1);
  std::string message;
  try {
    JobToken::take_from_environment();
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message.starts_with("environment variable SFSDP_JOB_TOKEN: a character that is no hexadecimal digit\n"));
  CHECK(message.find("abcdef") == std::string::npos);

  int ends[2];
  REQUIRE(pipe(ends) == 0);
  REQUIRE(write(ends[1], digits.data(), digits.size()) == static_cast<ssize_t>(digits.size()));
  close(ends[1]);
  setenv(JobToken::kFdVariable, std::to_string(ends[0]).c_str(), 1);
  CHECK(JobToken::take_from_environment().hex() == digits);
  CHECK(std::getenv(JobToken::kFdVariable) == nullptr);
  CHECK(fcntl(ends[0], F_GETFD) == -1);  // closed
}

TEST_CASE("handshake: who holds another token is refused, and is named") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 4);
  CHECK_THROWS_AS(client_of(server, JobToken::fresh(), 3), RefusedError);
  CHECK_THROWS_AS(client_of(server, JobToken(), 2), RefusedError);
  const auto client = client_of(server, token, 1);
  client->set("a", "b");
  const auto refused = server.refused();
  REQUIRE(refused.size() == 2);
  CHECK(refused[0].starts_with("rank 3 at 127.0.0.1:"));
  CHECK(refused[1].starts_with("rank 2 at 127.0.0.1:"));
}

// A stranger at the port in rank 0's place gets neither the token nor a rank.
TEST_CASE("handshake: a server without the token is refused by the rank, and what it hears tells it nothing") {
  const JobToken token = JobToken::fresh();
  StoreServer stranger(loopback(), JobToken::fresh(), 4);
  CHECK_THROWS_AS(client_of(stranger, token), RefusedError);
}

TEST_CASE("handshake: the same proof does not open a second connection") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 4);
  // A stranger in the middle, who passes one handshake on and notes what the rank has sent.
  const Fd listener = listen_at(loopback());
  std::string heard;
  std::thread middle([&] {
    REQUIRE(wait_for_events(listener.get(), POLLIN, in(10'000)));
    const Fd rank(accept(listener.get(), nullptr, nullptr));
    make_fast(rank.get());
    const Fd store = connect_to(server.address(), in(10'000));
    std::array<std::byte, 64> hello{};
    std::array<std::byte, 56> challenge{};
    std::array<std::byte, 32> proof{};
    std::byte verdict{};
    receive_all(rank.get(), hello, in(10'000));
    send_all(store.get(), hello, in(10'000));
    receive_all(store.get(), challenge, in(10'000));
    send_all(rank.get(), challenge, in(10'000));
    receive_all(rank.get(), proof, in(10'000));
    send_all(store.get(), proof, in(10'000));
    receive_all(store.get(), {&verdict, 1}, in(10'000));
    send_all(rank.get(), {&verdict, 1}, in(10'000));
    CHECK(verdict == std::byte{1});
    const Fd again = connect_to(server.address(), in(10'000));
    send_all(again.get(), hello, in(10'000));
    receive_all(again.get(), challenge, in(10'000));
    send_all(again.get(), proof, in(10'000));
    receive_all(again.get(), {&verdict, 1}, in(10'000));
    CHECK(verdict == std::byte{0});
  });
  const Fd fd = connect_to(local_address(listener), in(10'000));
  greet(fd.get(), token, {Purpose::Store, 1, 0}, in(10'000));
  middle.join();
}

TEST_CASE("store: values, the first value, and waiting for keys of several ranks") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 3);
  const auto one = client_of(server, token), two = client_of(server, token);
  CHECK_FALSE(one->get("k").has_value());
  one->set("k", "first");
  CHECK(two->get("k")->text == "first");
  CHECK(two->set_first("k", "second") == "first");
  CHECK(two->set_first("other", "second") == "second");
  one->set("k", "third");
  CHECK(two->get("k")->text == "third");

  one->set("rank/0", "a");
  auto some = two->collect("rank/", {0, 1}, 50);
  CHECK(some[0] == "a");
  CHECK_FALSE(some[1].has_value());
  std::thread late([&] {
    usleep(100'000);
    one->set("rank/1", std::string(60'000, 'b'));
  });
  some = two->collect("rank/", {0, 1}, 20'000);
  late.join();
  REQUIRE(some[1].has_value());
  CHECK(some[1]->size() == 60'000);

  std::thread aborts([&] {
    usleep(100'000);
    one->set("aborted", "why");
  });
  CHECK_FALSE(two->collect("rank/", {7}, 20'000)[0].has_value());
  aborts.join();
}

TEST_CASE("store: a heartbeat that ends without a goodbye is the first one lost") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 4);
  const auto client = client_of(server, token);
  const auto heartbeat = [&](int rank) {
    return std::make_unique<StoreClient>(server.address(), token, rank, Purpose::Heartbeat, in(20'000));
  };
  auto polite = heartbeat(1), first = heartbeat(2), second = heartbeat(3);
  client->set("bye/1", "1");
  polite.reset();
  first.reset();
  for (int i = 0; i < 1000 && !client->get("lost"); ++i) usleep(1000);
  second.reset();
  client->set("x", "y");
  CHECK(client->get("lost")->text == "2");
}

// Fifty that stay silent, one that sends zeros, one with huge lengths, one that stops in the middle of a greeting, and one that
// holds the token but no manners.
TEST_CASE("store: strangers neither stop nor delay the ranks") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 4);
  std::vector<Fd> strangers;
  for (int i = 0; i < 50; ++i) strangers.push_back(connect_to(server.address(), in(10'000)));
  std::mt19937 random(7);
  for (const std::string& text :
       {std::string(100'000, '\0'), std::string(100'000, '\xff'), std::string("sfsdp/1\n"),
        std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), std::string("sfsdp/1\n") + std::string(60, 'x')}) {
    strangers.push_back(connect_to(server.address(), in(10'000)));
    write_all(strangers.back(), text);
  }
  for (int i = 0; i < 20; ++i) {
    std::string noise(64 + random() % 1000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    strangers.push_back(connect_to(server.address(), in(10'000)));
    write_all(strangers.back(), noise);
  }
  const auto rank = client_of(server, token);
  Fd rude = connect_and_greet(server.address(), token, {Purpose::Store, 2, 0}, in(10'000));
  write_all(rude, std::string("\xff\xff\xff\xff") + "0123456789");  // a frame of 4 GiB
  Fd cut = connect_and_greet(server.address(), token, {Purpose::Store, 3, 0}, in(10'000));
  write_all(cut, FrameWriter()
                     .number(static_cast<uint8_t>(StoreOp::Collect))
                     .text("p")
                     .number<int64_t>(1)
                     .number<uint32_t>(0xffffffff)
                     .frame());
  for (int i = 0; i < 100; ++i) rank->set("key", std::to_string(i));
  CHECK(rank->get("key")->text == "99");
  std::byte byte{};
  CHECK_THROWS_WITH_AS(receive_all(rude.get(), {&byte, 1}, in(10'000)), "closed by the peer", SocketError);
  CHECK_THROWS_WITH_AS(receive_all(cut.get(), {&byte, 1}, in(10'000)), "closed by the peer", SocketError);
}

// One sends a right greeting a byte at a time, one stops after the token, one sends a request a byte at a time. A rank's
// requests meanwhile: docs/security.md says that a stranger cannot delay them.
TEST_CASE("store: slow peers do not delay the ranks, and are shown out before they are let in") {
  const JobToken token = JobToken::fresh();
  StoreServer server(loopback(), token, 4);
  const auto rank = client_of(server, token);
  const auto seconds_of_requests = [&] {
    const auto begin = Clock::now();
    for (int i = 0; i < 2000; ++i) rank->set("key", std::to_string(i));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const double alone = seconds_of_requests();
  const Fd stops = connect_and_greet(server.address(), token, {Purpose::Store, 2, 0}, in(10'000));
  const auto slowly = [&](const Fd& fd, const std::string& text) {  // 0.1 s a byte; how many it could send
    size_t sent = 0;
    for (; sent < text.size() && send(fd.get(), &text[sent], 1, MSG_NOSIGNAL) == 1; ++sent) usleep(100'000);
    return sent;
  };
  const std::string greeting = "sfsdp/1\n" + std::string(1, '\1') + std::string(55, '\0');
  const Fd slow = connect_to(server.address(), in(10'000));
  const Fd guest = connect_and_greet(server.address(), token, {Purpose::Store, 3, 0}, in(10'000));
  size_t greeted = 0, asked = 0;
  std::thread greets([&] { greeted = slowly(slow, greeting); });
  std::thread asks(
      [&] { asked = slowly(guest, FrameWriter().number(static_cast<uint8_t>(StoreOp::Get)).text("key").frame()); });
  double among_them = 0;
  for (int i = 0; i < 3; ++i) among_them = std::max(among_them, seconds_of_requests());
  greets.join();
  asks.join();
  CHECK(among_them < 20 * alone + 2);  // StoreClient waits for 10 s
  CHECK(greeted < greeting.size());    // 6.4 s are more than the 5 s that a stranger has
  CHECK(asked == 12);                  // who holds the token may take his time
  std::array<std::byte, 4> size{};
  receive_all(guest.get(), size, in(10'000));  // and is answered
}

TEST_CASE("store: who stays silent is shown out, and more strangers than there is room for do not keep a rank out") {
  const JobToken token = JobToken::fresh();
  Doorman doorman(loopback(), token, 4);
  std::vector<Fd> silent;
  for (int i = 0; i < 9; ++i) silent.push_back(connect_to(doorman.address(), in(10'000)));
  REQUIRE(wait_for_events(doorman.listener(), POLLIN, in(10'000)));
  while (doorman.waiting().size() < 4) doorman.accept_new();
  doorman.accept_new();
  CHECK(doorman.waiting().size() == 4);
  std::thread rank([&] { connect_and_greet(doorman.address(), token, {Purpose::Link, 5, 77}, in(20'000)); });
  std::optional<Doorman::Guest> guest;
  for (const auto end = in(20'000); !guest && Clock::now() < end; usleep(1000)) {
    doorman.accept_new();
    for (const int fd : doorman.waiting())
      if (!guest && doorman.has(fd)) guest = doorman.serve(fd);
  }
  rank.join();
  REQUIRE(guest.has_value());
  CHECK(guest->hello.rank == 5);
  CHECK(guest->hello.target == 77);
  for (const auto end = in(20'000); !doorman.waiting().empty() && Clock::now() < end; usleep(50'000)) doorman.expire();
  CHECK(doorman.waiting().empty());
}

}  // namespace
}  // namespace sfsdp::comm::handshake_test
