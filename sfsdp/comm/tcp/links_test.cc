// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/links.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/comm/tcp/tcp_options.h"

namespace sfsdp::comm::links_test {
namespace {

using std::chrono::milliseconds;

// Two ranks that are threads of this process, and the connection between them.
struct Pair {
  std::unique_ptr<Rendezvous> stores[2];
  std::unique_ptr<Links> links[2];

  Pair() {
    TcpOptions options;
    options.world_size = 2;
    options.init_timeout_ms = 60'000;
    options.master_port = 0;
    stores[0] = std::make_unique<Rendezvous>(options);
    options.rank = 1;
    const std::string place = stores[0]->place();
    options.master_port = static_cast<int>(*parse_int(place.substr(place.rfind(':') + 1)));
    stores[1] = std::make_unique<Rendezvous>(options);
    std::thread other([&] { links[1] = connect(1); });
    links[0] = connect(0);
    other.join();
  }
  std::unique_ptr<Links> connect(int rank) const {
    Rendezvous& store = *stores[rank];
    const CallSite site{"pair", {0, 1}, rank, 2};
    return std::make_unique<Links>(site, "group/pair", store.listen_address(), store, 60'000);
  }
};

// What a wait of a rank throws; none: nothing.
std::optional<TransferError> error_of_wait(Links& links, int64_t silence_ms) {
  try {
    links.wait(milliseconds(silence_ms), [](int) {});
  } catch (const TransferError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

// The pauses are the subject: they are a twentieth of the timeout, and together they are longer.
TEST_CASE("links: a transfer whose bytes move may take longer than the timeout, which is one of silence") {
  constexpr int kPieces = 30;
  constexpr int64_t kSilenceMs = 2000;
  constexpr milliseconds kPause{100};
  const Pair pair;
  std::vector<std::byte> received(kPieces * 1000), sent(received.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7);
  std::thread slow([&] {
    for (int i = 0; i < kPieces; ++i) {
      std::this_thread::sleep_for(kPause);
      pair.links[1]->send(std::span(sent).subspan(static_cast<size_t>(i) * 1000, 1000), 0);
      pair.links[1]->wait(milliseconds(60'000), [](int) {});
    }
  });
  for (int i = 0; i < kPieces; ++i)
    pair.links[0]->receive(std::span(received).subspan(static_cast<size_t>(i) * 1000, 1000), 1);
  const auto error = error_of_wait(*pair.links[0], kSilenceMs);
  slow.join();
  CHECK_MESSAGE(!error, (error ? error->text : ""));
  CHECK(received == sent);
}

TEST_CASE("links: a peer that is there and sends nothing is named after the silence") {
  const Pair pair;
  std::vector<std::byte> piece(1000);
  pair.links[0]->receive(piece, 1);
  const auto error = error_of_wait(*pair.links[0], 300);
  REQUIRE(error);
  CHECK(error->peer == 1);
  CHECK(error->timed_out);
  CHECK(error->text == "no byte for 300 ms");
}

}  // namespace sfsdp::comm::links_test
