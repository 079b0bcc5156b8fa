// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_store.h"

#include <utility>

#include "sfsdp/base/check.h"
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
      if (serve())
        nap.wake();
      else
        nap.rest();
    }
    for (const auto until = Clock::now() + milliseconds(200); !answers_.empty() && Clock::now() < until; nap.rest())
      finish_answers();
  } catch (const std::exception&) {
    // MPI fails: who asks gets no answer, and says so.
  }
  for (Answer& answer : answers_)
    if (answer.request) mpi_->drop(answer.request, Mpi::Way::Sent);
}

// Whether there was a request.
bool MpiStoreServer::serve() {
  const Mpi::Arrived arrived = mpi_->probe(tag_);
  if (!arrived.any) return false;
  std::string request(arrived.bytes, '\0');
  Mpi::Request coming = mpi_->receive(request.data(), request.size(), arrived.from, tag_);
  size_t received = 0;
  for (Nap nap; !mpi_->test(coming, received);) nap.rest();  // it is there already
  try {
    FrameReader reader(std::string_view(request).substr(sizeof(uint32_t)));
    const auto answer_tag = reader.number<int32_t>();
    answers_.push_back({answer(std::string_view(request).substr(sizeof(uint32_t) + sizeof answer_tag)), nullptr});
    Answer& sent = answers_.back();
    sent.request = mpi_->send(sent.frame.data(), sent.frame.size(), arrived.from, answer_tag);
  } catch (const TransportError&) {
    // no request of ours
  }
  return true;
}

std::string MpiStoreServer::answer(std::string_view request) {
  FrameReader reader(request);
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
  std::erase_if(answers_, [&](Answer& answer) {
    size_t sent = 0;
    return mpi_->test(answer.request, sent);
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

std::string MpiStore::ask(const std::string& frame, int64_t patience_ms) {
  const std::lock_guard lock(mutex_);
  if (lost_ || interrupted_) throw TransportError("the connection is lost");
  request_ = frame;
  answer_.resize(kMostAnswer);
  const auto deadline = Clock::now() + milliseconds(patience_ms);
  Mpi::Request coming = mpi_->receive(answer_.data(), answer_.size(), 0, answer_tag_);
  Mpi::Request sent = mpi_->send(request_.data(), request_.size(), 0, tag_);
  size_t received = 0, unused = 0;
  const bool is_answered = is_done_by(coming, received, deadline) && is_done_by(sent, unused, deadline);
  if (coming) mpi_->drop(coming, Mpi::Way::Received);
  if (sent) mpi_->drop(sent, Mpi::Way::Sent);
  if (!is_answered) {
    lost_ = true;  // an answer that comes too late must not be taken for the next one
    throw TransportError("timed out");
  }
  if (received < sizeof(uint32_t)) throw TransportError("an answer of the store is cut off");
  return answer_.substr(sizeof(uint32_t), received - sizeof(uint32_t));
}

bool MpiStore::is_done_by(Mpi::Request& request, size_t& received, Clock::time_point deadline) {
  for (Nap nap(kIdle); !mpi_->test(request, received); nap.rest())
    if (interrupted_ || Clock::now() > deadline) return false;
  return true;
}

}  // namespace sfsdp::comm
