// SPDX-License-Identifier: BSD-3-Clause
// Collectives of one group of processes, made of point-to-point messages, over whatever carries them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/comm/board.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/chunks.h"
#include "sfsdp/comm/flight_recorder.h"
#include "sfsdp/comm/group_communicator.h"
#include "sfsdp/comm/messages/messages.h"
#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/messages/watch.h"

namespace sfsdp::comm {

// What a group needs to find out who is missing: a board if its ranks are on one host, else the store.
struct Observer {
  std::unique_ptr<Board> board;
  std::shared_ptr<Heartbeat> heartbeat;  // the world's
  std::shared_ptr<Progress> progress;
  std::string key;  // of the group in the store
};

// Calls of a group without a board that are compared by text before a byte moves, one more trip each: ranks that begin by running
// different programs learn on every rank, at once and by name, what each of them does. Later calls are compared as well, by what
// every message carries (Messages::set_order): who gets another rank's message of another call finds it.
inline constexpr uint64_t kComparedCalls = 1000;

// Every rank sends each peer its share once, (n - 1) messages; an all-reduce above 32 KiB does so twice; broadcast is a
// binary tree.
class MessageCommunicator final : public GroupCommunicator {
 public:
  MessageCommunicator(CallSite site, std::unique_ptr<Messages> messages, Observer observer,
                      std::shared_ptr<Store> store, std::shared_ptr<const Timeout> timeout_ms,
                      std::shared_ptr<FlightRecorder> recorder);

  void abort(const std::string& reason) override;

  bool shares_memory() const override { return false; }
  void leave() override;
  bool is_broken() const override { return broken_; }

 protected:
  void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) override;

 private:
  void transfer(const Call& call, std::span<const std::byte> in, std::span<std::byte> out);
  void act(std::span<const std::byte> in, std::span<std::byte> out);
  void enter(const Call& call);
  void compare(const Call& call);
  void drop();
  void wait();
  void look(int peer);
  template <class Place, class Data>
  void post(Place place, Data data);
  void gather(std::span<const std::byte> in, std::span<std::byte> out);
  void compare_counts();
  void move(std::span<const std::byte> in, std::span<std::byte> out);
  void broadcast(std::span<std::byte> data);
  void all_reduce(std::span<std::byte> data);
  void reduce_chunks(std::span<const std::byte> in, const ByteChunks& chunks, std::span<std::byte> out);
  void reduce_small(std::span<std::byte> data);
  std::span<std::byte> scratch(size_t bytes);

  std::string failure();
  void fail(const std::string& cause);
  [[noreturn]] void throw_failure(const Call& call, const TransferError& error);
  [[noreturn]] void throw_found(const Call& call, const FoundCause& found);
  int64_t waited_ms() const;

  std::unique_ptr<Messages> messages_;
  Observer observer_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<const Timeout> timeout_ms_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::vector<std::byte> scratch_;
  uint64_t sequence_ = 0;
  uint64_t order_ = 0;          // of all calls so far: differs where one of them has differed
  const Call* call_ = nullptr;  // that runs
  std::chrono::steady_clock::time_point begin_;
  bool broken_ = false;
  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace sfsdp::comm
