// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_store.h"

#include <initializer_list>
#include <iostream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/messages/kept.h"
#include "sfsdp/comm/mpi/nap.h"
#include "sfsdp/comm/tcp/store_wire.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// An answer is a value and its age.
constexpr size_t kMostAnswer = kMostValueBytes + 64;
// An idle store looks for requests this often.
constexpr std::chrono::microseconds kIdle{2000};
// How long one that is given up is waited for.
constexpr milliseconds kStoreDropPatience{100};

// Ends messages.
//   owner: of their memory, which is kept where MPI does not let go of them
template <class Owner>
void let_go(Mpi& mpi, std::initializer_list<Mpi::Message*> messages, std::unique_ptr<Owner>& owner) {
  if (!mpi.end({messages.begin(), messages.size()}, kStoreDropPatience)) keep_for_ever(std::move(owner));
}

}  // namespace

MpiStoreServer::MpiStoreServer(std::shared_ptr<Mpi> mpi, int tag)
    : mpi_(std::move(mpi)), tag_(tag), thread_([this] { run(); }) {}

MpiStoreServer::~MpiStoreServer() {
  stop_ = true;
  thread_.join();
}

void MpiStoreServer::run() {
  Nap nap(kIdle);
  try {
    while (!stop_) {
      finish_answers();
      const bool busy = take_request();
      answer_requests();
      if (busy)
        nap.wake();
      else
        nap.rest();
    }
    for (const auto until = Clock::now() + milliseconds(200); !answers_.empty() && Clock::now() < until; nap.rest())
      finish_answers();
  } catch (const std::exception& error) {
    // Who asks gets no answer, and says so; why is known here alone.
    std::cerr << "the store of rank 0 has ended: " << error.what() << std::endl;
  }
  for (Letters* letters : {&requests_, &answers_})
    for (auto& letter : *letters) let_go(*mpi_, {&letter->message}, letter);
}

// Whether there was one.
bool MpiStoreServer::take_request() {
  const Mpi::Arrived arrived = mpi_->probe(tag_);
  if (!arrived.any) return false;
  auto letter = std::make_unique<Letter>();
  letter->text.resize(arrived.bytes);
  letter->peer = arrived.from;
  letter->message = {mpi_->receive(letter->text.data(), arrived.bytes, arrived.from, tag_), Mpi::Way::Received};
  requests_.push_back(std::move(letter));
  return true;
}

// The rest of a long request may come late, or never, if its rank is stopped: nobody else waits for it.
void MpiStoreServer::answer_requests() {
  for (auto& letter : requests_) {
    try {
      size_t received = 0;
      if (!mpi_->test(letter->message.request, received)) continue;
      reply(letter->text, letter->peer);
    } catch (const TransportError&) {
      // No request of ours, or its rank is gone.
    }
    letter.reset();
  }
  std::erase(requests_, nullptr);
}

void MpiStoreServer::reply(std::string_view request, int to) {
  FrameReader reader(request);
  reader.number<uint32_t>();  // the length, which MPI knows
  const auto answer_tag = reader.number<int32_t>();
  auto letter = std::make_unique<Letter>();
  letter->text = answer(reader);
  letter->message.request = mpi_->send(letter->text.data(), letter->text.size(), to, answer_tag);
  answers_.push_back(std::move(letter));
}

std::string MpiStoreServer::answer(FrameReader& reader) {
  const auto op = static_cast<StoreOp>(reader.number<uint8_t>());
  const std::string key = reader.text(kMostKeyBytes);
  FrameWriter writer;
  const auto entry = entries_.find(key);
  if (op == StoreOp::Set) {
    entries_[key] = {reader.text(kMostValueBytes), Clock::now()};
  } else if (op == StoreOp::SetFirst) {
    writer.text(entries_.try_emplace(key, Entry{reader.text(kMostValueBytes), Clock::now()}).first->second.value);
  } else {
    writer.number<uint8_t>(entry != entries_.end());
    if (entry != entries_.end()) {
      const auto age = std::chrono::duration_cast<milliseconds>(Clock::now() - entry->second.set_at);
      writer.text(entry->second.value).number<int64_t>(age.count());
    }
  }
  return writer.frame();
}

void MpiStoreServer::finish_answers() {
  std::erase_if(answers_, [&](const std::unique_ptr<Letter>& letter) {
    size_t sent = 0;
    try {
      return mpi_->test(letter->message.request, sent);
    } catch (const TransportError&) {
      return true;  // who asked is gone
    }
  });
}

MpiStore::MpiStore(std::shared_ptr<Mpi> mpi, int tag, int answer_tag)
    : mpi_(std::move(mpi)), tag_(tag), answer_tag_(answer_tag) {}

void MpiStore::set(const std::string& key, const std::string& value, Patience patience) {
  FrameWriter writer;
  writer.number(static_cast<int32_t>(answer_tag_)).number(static_cast<uint8_t>(StoreOp::Set)).text(key);
  ask(writer.text(value.substr(0, kMostValueBytes)).frame(), patience_ms(patience));
}

std::string MpiStore::set_first(const std::string& key, const std::string& value, Patience patience) {
  FrameWriter writer;
  writer.number(static_cast<int32_t>(answer_tag_)).number(static_cast<uint8_t>(StoreOp::SetFirst)).text(key);
  const std::string answer = ask(writer.text(value.substr(0, kMostValueBytes)).frame(), patience_ms(patience));
  return FrameReader(answer).text(kMostValueBytes);
}

std::optional<Store::Value> MpiStore::get(const std::string& key) {
  FrameWriter writer;
  writer.number(static_cast<int32_t>(answer_tag_)).number(static_cast<uint8_t>(StoreOp::Get)).text(key);
  return found_in(ask(writer.frame(), kLookPatienceMs));
}

// One request and its answer.
struct MpiStore::Exchange {
  std::string request, answer = std::string(kMostAnswer, '\0');
  size_t answer_bytes = 0;
  Mpi::Message coming = {nullptr, Mpi::Way::Received}, sent;
  bool is_done = false;
};

std::string MpiStore::ask(const std::string& frame, int64_t patience_ms) {
  const std::lock_guard lock(mutex_);
  if (lost_ || interrupted_) throw TransportError("the connection is lost");
  auto exchange = std::make_unique<Exchange>();
  exchange->request = frame;
  std::string fault = "timed out";
  try {
    make(*exchange, Clock::now() + milliseconds(patience_ms));
  } catch (const TransportError& error) {
    fault = error.what();
  }
  if (!exchange->is_done) {
    lost_ = true;  // an answer that comes too late must not be taken for the next one
    let_go(*mpi_, {&exchange->coming, &exchange->sent}, exchange);
    throw TransportError(fault);
  }
  FrameReader reader(std::string_view(exchange->answer).substr(0, exchange->answer_bytes));
  reader.number<uint32_t>();
  return exchange->answer.substr(exchange->answer_bytes - reader.left(), reader.left());
}

void MpiStore::make(Exchange& exchange, Clock::time_point deadline) {
  Mpi::Request &coming = exchange.coming.request, &sent = exchange.sent.request;
  coming = mpi_->receive(exchange.answer.data(), exchange.answer.size(), 0, answer_tag_);
  sent = mpi_->send(exchange.request.data(), exchange.request.size(), 0, tag_);
  size_t unused = 0;
  exchange.is_done = is_done_by(coming, exchange.answer_bytes, deadline) && is_done_by(sent, unused, deadline);
}

bool MpiStore::is_done_by(Mpi::Request& request, size_t& received, Clock::time_point deadline) {
  for (Nap nap(kIdle); !mpi_->test(request, received); nap.rest())
    if (interrupted_ || Clock::now() > deadline) return false;
  return true;
}

}  // namespace sfsdp::comm
