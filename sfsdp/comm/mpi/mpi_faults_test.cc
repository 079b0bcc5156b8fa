// SPDX-License-Identifier: BSD-3-Clause
// What MPI's messages and store do where peers stop, leave or send nonsense, on an MPI that is made for the purpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/comm/mpi/mpi_library.h"
#include "sfsdp/comm/mpi/mpi_messages.h"
#include "sfsdp/comm/mpi/mpi_store.h"
#include "sfsdp/comm/tcp/store_wire.h"

// A message that is waited for: `is_begun` once its data has begun to come, of which the rest may come late.
struct SfsdpMpiRequest {
  int from = -1, tag = 0;
  std::byte* place = nullptr;
  size_t most = 0, received = 0;
  bool is_begun = false, is_done = false;
};

namespace sfsdp::comm::mpi_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Rank 0 of two, alone: what it sends to itself comes, the rest comes from a test. Not destroyed, as what is left to MPI.
class FakeMpi {
 public:
  static FakeMpi& one() {
    static FakeMpi& it = *new FakeMpi;
    return it;
  }
  static std::shared_ptr<Mpi> start(int threads = 2) {
    static constexpr SfsdpMpiFunctions functions = {
        kSfsdpMpiAbi,
        [](SfsdpMpiStarted* started) {
          *started = {0, 2, one().threads, 1, 1};
          return 0;
        },
        [] {
          ++one().stops;
          return 0;
        },
        [] { return 32767; },
        &send,
        &receive,
        &test,
        &cancel,
        &probe,
        [](int error, char* text, size_t size) { std::snprintf(text, size, "error %d of the fake", error); },
        [] { return "a fake"; }};
    one().threads = threads;
    return std::make_shared<Mpi>(functions);
  }
  // A message comes; or the first half of it.
  enum class Comes { Whole, Half };
  void put(int from, int tag, const std::string& text, Comes comes = Comes::Whole) {
    const std::lock_guard lock(mutex_);
    coming_.push_back({from, tag, text, comes});
    match();
  }
  // The other halves.
  void go_on() {
    const std::lock_guard lock(mutex_);
    for (SfsdpMpiRequest* request : waiting_)
      if (request->is_begun) std::memset(request->place, 1, request->received);
  }
  void fail_sends_with(int tag) { failing_tag_ = tag; }
  int64_t waiting_with(int tag) {
    const std::lock_guard lock(mutex_);
    return std::ranges::count(waiting_, tag, &SfsdpMpiRequest::tag);
  }
  int stops = 0, threads = 2;

 private:
  struct Coming {
    int from, tag;
    std::string text;
    Comes comes;
  };

  // Messages in the order in which they have come, to those who wait in the order in which they do.
  void match() {
    std::erase_if(coming_, [&](const Coming& message) {
      const auto found = std::ranges::find_if(waiting_, [&](const SfsdpMpiRequest* request) {
        return !request->is_begun && request->from == message.from && request->tag == message.tag;
      });
      if (found == waiting_.end()) return false;
      SfsdpMpiRequest& request = **found;
      request.received = std::min(request.most, message.text.size());
      request.is_begun = true;
      request.is_done = message.comes == Comes::Whole;
      std::memcpy(request.place, message.text.data(), request.is_done ? request.received : request.received / 2);
      if (request.is_done) waiting_.erase(found);
      return true;
    });
  }

  static int send(const void* data, size_t bytes, int to, int tag, SfsdpMpiRequest** request) {
    if (tag == one().failing_tag_) return 1;
    *request = new SfsdpMpiRequest;
    (*request)->is_done = true;
    if (to == 0) one().put(0, tag, std::string(static_cast<const char*>(data), bytes));
    return 0;
  }
  static int receive(void* data, size_t bytes, int from, int tag, SfsdpMpiRequest** request) {
    const std::lock_guard lock(one().mutex_);
    *request = new SfsdpMpiRequest{from, tag, static_cast<std::byte*>(data), bytes, 0, false, false};
    one().waiting_.push_back(*request);
    one().match();
    return 0;
  }
  static int test(SfsdpMpiRequest** request, int* done, size_t* received) {
    const std::lock_guard lock(one().mutex_);
    *done = (*request)->is_done;
    if (!*done) return 0;
    *received = (*request)->received;
    delete *request;
    *request = nullptr;
    return 0;
  }
  static void cancel(SfsdpMpiRequest** request) {
    const std::lock_guard lock(one().mutex_);
    if ((*request)->is_begun) return;
    (*request)->is_done = true;
    std::erase(one().waiting_, *request);
  }
  static int probe(int tag, int* found, int* from, size_t* bytes) {
    const std::lock_guard lock(one().mutex_);
    const auto first = std::ranges::find(one().coming_, tag, &Coming::tag);
    *found = first != one().coming_.end();
    if (*found) *from = first->from, *bytes = first->text.size();
    return 0;
  }
  std::mutex mutex_;
  std::deque<Coming> coming_;
  std::vector<SfsdpMpiRequest*> waiting_;
  int failing_tag_ = -1;
};

// Both ranks of the group are this one: what it sends to the other it gets.
MpiMessages messages_to_itself(const std::shared_ptr<Mpi>& mpi, int tag) {
  return {mpi, CallSite{"pair", {0, 0}, 0, 2}, tag};
}

TransferError error_of_wait(MpiMessages& messages) {
  try {
    messages.wait(milliseconds(100), [](int) {});
  } catch (const TransferError& error) {
    return error;
  }
  return {};
}

template <class Body>
double seconds_of(Body body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST_CASE("mpi messages: each comes whole, in its frame or after it") {
  const auto mpi = FakeMpi::start();
  MpiMessages messages = messages_to_itself(mpi, 100);
  messages.set_order(17);
  for (const size_t bytes : {0, 1, 2031, 2032, 2033, 100'000}) {
    CAPTURE(bytes);
    std::vector<std::byte> sent(bytes), first(bytes), second(bytes);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i % 251);
    messages.receive(first, 1);
    messages.send(sent, 1);
    messages.send(sent, 1);
    messages.receive(second, 1);
    CHECK(error_of_wait(messages).text.empty());
    CHECK(first == sent);
    CHECK(second == sent);
  }
}

TEST_CASE("mpi messages: one of another call is known, however large it and the one that is waited for are") {
  const auto mpi = FakeMpi::start();
  int tag = 200;
  for (const size_t sent : {8, 100'000})
    for (const size_t expected : {8, 9, 100'000, 100'001}) {
      CAPTURE(sent);
      CAPTURE(expected);
      MpiMessages messages = messages_to_itself(mpi, ++tag);
      std::vector<std::byte> out(sent), in(expected);
      messages.set_order(1);
      messages.send(out, 1);
      messages.set_order(2);
      messages.receive(in, 1);
      const TransferError error = error_of_wait(messages);
      CHECK(error.is_of_another_call);
      CHECK(error.peer == 1);
      CHECK(messages.drop());
      CHECK(in == std::vector<std::byte>(expected));
    }
}

TEST_CASE("mpi messages: what a stopped peer has begun to send holds up nobody, and its memory stays") {
  const auto mpi = FakeMpi::start();
  double seconds = 0;
  {
    MpiMessages messages(mpi, CallSite{"pair", {0, 1}, 0, 2}, 300);
    std::vector<std::byte> data(100);
    messages.receive(data, 1);
    messages.receive(data, 1);
    FakeMpi::one().put(1, 300, std::string(116, 'x'), FakeMpi::Comes::Half);
    CHECK(error_of_wait(messages).timed_out);
    seconds = seconds_of([&] { CHECK_FALSE(messages.drop()); });
    CHECK(FakeMpi::one().waiting_with(300) == 1);  // the other one is taken back
  }
  CHECK(seconds < 20);
  FakeMpi::one().go_on();  // writes where AddressSanitizer looks
}

TEST_CASE("mpi messages: what nobody has begun to send is taken back at once") {
  const auto mpi = FakeMpi::start();
  MpiMessages messages(mpi, CallSite{"pair", {0, 1}, 0, 2}, 400);
  std::vector<std::byte> data(100'000);
  messages.receive(data, 1);
  CHECK(FakeMpi::one().waiting_with(400) == 2);
  CHECK(messages.drop());
  CHECK(FakeMpi::one().waiting_with(400) == 0);
}

std::string request_of(int answer_tag) {
  FrameWriter writer;
  return writer.number(static_cast<int32_t>(answer_tag)).number(static_cast<uint8_t>(StoreOp::Get)).text("key").frame();
}

TEST_CASE("mpi store: serves on after a request that is cut off, and one whose rank is gone") {
  const auto mpi = FakeMpi::start();
  FakeMpi::one().fail_sends_with(503);
  for (const size_t bytes : {0, 2, 4, 9}) FakeMpi::one().put(1, 501, request_of(503).substr(0, bytes));
  FakeMpi::one().put(1, 501, request_of(503));
  const MpiStoreServer server(mpi, 501);
  MpiStore store(mpi, 501, 502);
  store.set("key", "value");
  const auto value = store.get("key");
  REQUIRE(value);
  CHECK(value->text == "value");
  FakeMpi::one().fail_sends_with(-1);
}

TEST_CASE("mpi store: a rank that is stopped in the middle of a request holds up neither the others nor the end") {
  const auto mpi = FakeMpi::start();
  FakeMpi::one().put(1, 601, request_of(603), FakeMpi::Comes::Half);
  const double seconds = seconds_of([&] {
    const MpiStoreServer server(mpi, 601);
    MpiStore store(mpi, 601, 602);
    store.set("key", "value");
    CHECK(store.get("key")->text == "value");
  });
  CHECK(seconds < 20);
}

TEST_CASE("mpi store: a request that cannot be sent leaves nothing that waits, and no later one gets its answer") {
  const auto mpi = FakeMpi::start();
  FakeMpi::one().fail_sends_with(701);
  MpiStore store(mpi, 701, 702);
  CHECK_THROWS_WITH_AS(store.get("key"), "error 1 of the fake", TransportError);
  CHECK(FakeMpi::one().waiting_with(702) == 0);
  FakeMpi::one().fail_sends_with(-1);
  CHECK_THROWS_WITH_AS(store.get("key"), "the connection is lost", TransportError);
}

TEST_CASE("mpi: one that serves a single thread is refused, and left") {
  const int stops = FakeMpi::one().stops;
  CHECK_THROWS_WITH_AS(FakeMpi::start(0), doctest::Contains("MPI serves only the thread that has started it"),
                       UserError);
  CHECK(FakeMpi::one().stops == stops + 1);
  for (const int threads : {1, 2}) CHECK(FakeMpi::start(threads)->world_size() == 2);
}

}  // namespace
}  // namespace sfsdp::comm::mpi_faults_test
