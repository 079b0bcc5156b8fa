// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/messages/message_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/messages/kept.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Bytes that a reduction receives from each peer at a time: bounds its scratch memory.
constexpr size_t kPieceBytes = 8 << 20;
// Up to here an all-reduce sends everything to everyone, one trip instead of two.
constexpr size_t kSmallBytes = 32 << 10;
const std::string kEarlier = "an earlier call failed: ";
// A dying process's connections close before it counts as dead.
constexpr int64_t kGraceMs = 2000;

// Another order, or another call, alone always gives another result.
uint64_t order_after(uint64_t order, uint64_t call) {
  const uint64_t mixed = (order ^ call) * 0x9e3779b97f4a7c15;
  return mixed ^ (mixed >> 32);
}

}  // namespace

MessageCommunicator::MessageCommunicator(CallSite site, std::unique_ptr<Messages> messages, Observer observer,
                                         std::shared_ptr<Store> store, std::shared_ptr<const Timeout> timeout_ms,
                                         std::shared_ptr<FlightRecorder> recorder)
    : GroupCommunicator(std::move(site)),
      messages_(std::move(messages)),
      observer_(std::move(observer)),
      store_(std::move(store)),
      timeout_ms_(std::move(timeout_ms)),
      recorder_(std::move(recorder)) {}

void MessageCommunicator::abort(const std::string& reason) {
  if (observer_.board) observer_.board->abort(site().global_rank(), reason);
  fail(concat("rank ", site().global_rank(), " aborted: ", reason));
  messages_->abort();
}

void MessageCommunicator::leave() {
  if (observer_.board) observer_.board->leave(rank());
}

void MessageCommunicator::run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) {
  ++sequence_;
  call_ = &call;
  begin_ = Clock::now();
  if (recorder_) recorder_->enter(site(), call, sequence_);
  if (const std::string failure = this->failure(); !failure.empty())
    throw AbortedError(error_text(site(), call, sequence_, failure));
  try {
    transfer(call, in, out);
  } catch (...) {  // what to say is found before anything is waited for
    broken_ = true;
    drop();
    throw;
  }
  if (observer_.board)
    observer_.board->finish(site(), call, sequence_);
  else
    observer_.progress->finished = sequence_;
  if (recorder_) recorder_->finish(site(), sequence_);
}

void MessageCommunicator::transfer(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) {
  try {
    enter(call);
    act(in, out);
  } catch (const TransferError& error) {
    throw_failure(call, error);
  }
}

void MessageCommunicator::drop() {
  if (messages_->drop()) return;
  keep_for_ever(std::make_shared<std::vector<std::byte>>(std::move(scratch_)));
  scratch_ = {};
}

void MessageCommunicator::act(std::span<const std::byte> in, std::span<std::byte> out) {
  const std::byte mine{};
  switch (call_->kind()) {
    case CallKind::Barrier:
      if (observer_.board) return;  // entering it was one
      return gather({&mine, 1}, scratch(static_cast<size_t>(size())));
    case CallKind::AllReduce: return all_reduce(out);
    case CallKind::ReduceScatter:
    case CallKind::ReduceScatterV: return reduce_chunks(in, call_->chunks(), out);
    case CallKind::Broadcast: return broadcast(out);
    case CallKind::AllToAllV: compare_counts(); return move(in, out);
    default: return move(in, out);
  }
}

void MessageCommunicator::enter(const Call& call) {
  if (observer_.board) {
    observer_.board->enter(site(), call, sequence_, *timeout_ms_);
  } else {
    observer_.progress->entered = sequence_;
    if (sequence_ <= kComparedCalls) compare(call);
  }
  order_ = order_after(order_, call.hash());
  messages_->set_order(order_);
  begin_ = Clock::now();  // messages say how long the transfer has taken
}

// Every rank sends every other what it is about to do.
void MessageCommunicator::compare(const Call& call) {
  struct Record {
    uint64_t hash = 0;
    std::array<char, 248> text{};
  };
  Record mine;
  mine.hash = call.hash();
  call.text().copy(mine.text.data(), mine.text.size() - 1);
  std::vector<Record> all(site().ranks.size());
  gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].hash == all[0].hash) continue;
    for (Record* record : {all.data(), &all[i]}) record->text.back() = 0;
    const std::string cause =
        disagreement_text(site().ranks[0], all[0].text.data(), site().ranks[i], all[i].text.data());
    fail(kEarlier + cause);
    throw CommError(error_text(site(), call, sequence_, cause));
  }
}

void MessageCommunicator::wait() {
  messages_->wait(milliseconds(*timeout_ms_), [this](int peer) { look(peer); });
}

// The transfer takes long: throws if it is in vain.
void MessageCommunicator::look(int peer) {
  if (observer_.board) return observer_.board->look(site(), *call_, sequence_, waited_ms());
  const Wait wait = {site(), observer_.key, sequence_, waited_ms()};
  const FoundCause found = look_at_peer(*store_, wait, site().ranks[static_cast<size_t>(peer)]);
  if (found.kind == FoundCause::Kind::None) return;
  fail(kEarlier + found.text);
  throw_found(*call_, found);
}

// Begins to receive place(peer) from, and to send data(peer) to, each peer. Peers in the order rank + 1, rank + 2, ...:
// not all send to the same one first.
template <class Place, class Data>
void MessageCommunicator::post(Place place, Data data) {
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    messages_->receive(place(peer), peer);
    messages_->send(data(peer), peer);
  }
}

void MessageCommunicator::gather(std::span<const std::byte> in, std::span<std::byte> out) {
  const auto slot = [&](int r) { return out.subspan(static_cast<size_t>(r) * in.size(), in.size()); };
  post(slot, [&](int) { return in; });
  copy(in, slot(rank()));
  wait();
}

// Every rank sends every other all its counts: all find the same, before any data moves.
void MessageCommunicator::compare_counts() {
  const std::vector<int64_t> mine = call_->counts(size());
  std::vector<int64_t> all(mine.size() * site().ranks.size());
  gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<std::span<const int64_t>> rows;
  for (size_t r = 0; r < site().ranks.size(); ++r) rows.push_back(std::span(all).subspan(r * mine.size(), mine.size()));
  const std::string cause = counts_disagreement(site(), rows);
  if (cause.empty()) return;
  fail(kEarlier + cause);
  throw CommError(error_text(site(), *call_, sequence_, cause));
}

// Each part straight to its rank.
void MessageCommunicator::move(std::span<const std::byte> in, std::span<std::byte> out) {
  const int me = rank();
  post([&](int peer) { return call_->received(peer, me).of(out); },
       [&](int peer) { return call_->sent(me, peer).of(in); });
  copy(call_->sent(me, me).of(in), call_->received(me, me).of(out));
  wait();
}

// A tree: whoever has the data sends it to half as far away each time.
void MessageCommunicator::broadcast(std::span<std::byte> data) {
  const int n = size(), from_root = (rank() - call_->root() + n) % n;
  int reach = 1;
  while (reach < n) reach *= 2;
  for (reach /= 2; reach > 0; reach /= 2) {
    if (from_root % (2 * reach) == 0 && from_root + reach < n)
      messages_->send(data, (rank() + reach) % n);
    else if (from_root % (2 * reach) == reach) {
      messages_->receive(data, (rank() - reach + n) % n);
      wait();
    }
  }
  wait();
}

void MessageCommunicator::all_reduce(std::span<std::byte> data) {
  if (data.size() <= kSmallBytes) return reduce_small(data);
  const ByteChunks chunks(data.size(), ir::size_in_bytes(*call_->dtype()), size());
  const auto mine = chunks.of(data, rank());
  reduce_chunks(data, chunks, mine);
  post([&](int peer) { return chunks.of(data, peer); }, [&](int) { return mine; });
  wait();
}

// out = the sum of all ranks' chunk rank() of `in`; out may be that chunk itself.
void MessageCommunicator::reduce_chunks(std::span<const std::byte> in, const ByteChunks& chunks,
                                        std::span<std::byte> out) {
  const size_t n = site().ranks.size();
  for (size_t begin = 0; begin < chunks.largest(); begin += kPieceBytes) {
    const auto piece = [&](auto chunk) { return Range{0, chunk.size()}.within(begin, kPieceBytes).of(chunk); };
    const auto mine = piece(out);
    const auto received = scratch(n * mine.size());
    const auto place = [&](int r) { return received.subspan(static_cast<size_t>(r) * mine.size(), mine.size()); };
    post(place, [&](int peer) { return piece(chunks.of(in, peer)); });
    std::vector<std::span<const std::byte>> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(r == rank() ? piece(chunks.of(in, r)) : place(r));
    wait();
    reduce(parts, mine, *call_->dtype(), call_->op());
  }
}

void MessageCommunicator::reduce_small(std::span<std::byte> data) {
  const auto all = scratch(site().ranks.size() * data.size());
  gather(data, all);
  std::vector<std::span<const std::byte>> parts;
  for (size_t r = 0; r < site().ranks.size(); ++r) parts.push_back(all.subspan(r * data.size(), data.size()));
  reduce(parts, data, *call_->dtype(), call_->op());
}

std::span<std::byte> MessageCommunicator::scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return std::span(scratch_).first(bytes);
}

std::string MessageCommunicator::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

// Why all later calls fail; the first such reason stays.
void MessageCommunicator::fail(const std::string& cause) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.empty()) failure_ = cause;
}

int64_t MessageCommunicator::waited_ms() const {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin_).count();
}

void MessageCommunicator::throw_failure(const Call& call, const TransferError& error) {
  if (const std::string aborted = failure(); !aborted.empty())
    throw AbortedError(error_text(site(), call, sequence_, aborted));
  const int peer = site().ranks[static_cast<size_t>(error.peer)];
  const Wait wait = {site(), observer_.key, sequence_, waited_ms()};
  if (error.is_of_another_call && !observer_.board) {  // a board has compared the calls
    const FoundCause found = find_disagreement(*store_, wait, peer, call.text());
    fail(kEarlier + found.text);
    throw_found(call, found);
  }
  const std::string cause = concat("the connection to rank ", peer, error.timed_out ? " timed out" : " broke",
                                   " after ", waited_ms(), " ms (", error.text, "); read rank ", peer, "'s log");
  fail(kEarlier + cause);
  if (observer_.board) observer_.board->throw_failure(site(), call, sequence_, cause, waited_ms(), kGraceMs);
  throw_found(call, find_cause(*store_, wait, cause, error.timed_out));
}

void MessageCommunicator::throw_found(const Call& call, const FoundCause& found) {
  const std::string text = error_text(site(), call, sequence_, found.text);
  if (found.kind == FoundCause::Kind::Aborted) throw AbortedError(text);
  throw CommError(text);
}

}  // namespace sfsdp::comm
