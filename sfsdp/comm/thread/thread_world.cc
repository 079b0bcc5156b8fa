// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/thread/thread_world.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/board.h"
#include "sfsdp/comm/chunks.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

using Timeout = std::atomic<int64_t>;

// What the ranks of a group share. A rank writes its two spans before it enters a call; all read them until they have
// met after it, or, after an error, until each has said that it reads no more.
struct Group {
  struct Spans {
    std::span<const std::byte> in;
    std::span<std::byte> out;
  };

  explicit Group(int size)
      : board(Board::in_process(size)), spans(static_cast<size_t>(size)), read(static_cast<size_t>(size)) {}

  void reads_no_more(int rank, uint64_t sequence) {
    read[static_cast<size_t>(rank)] = sequence;
    read[static_cast<size_t>(rank)].notify_all();
  }
  // Reading is copying and adding, so this does not take long.
  void wait_for_readers(uint64_t sequence) const {
    for (const auto& last : read)
      for (uint64_t seen = last; seen < sequence; seen = last) last.wait(seen);
  }

  std::unique_ptr<Board> board;
  std::vector<Spans> spans;
  std::vector<std::atomic<uint64_t>> read;  // by rank: the last call that it has read
};

// All groups of the worlds made together, by name and ranks.
class Hub {
 public:
  explicit Hub(int world_size) : left_(static_cast<size_t>(world_size)) {}

  int world_size() const { return static_cast<int>(left_.size()); }

  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    auto& group = groups_[{name, ranks}];
    if (group) return group;
    group = std::make_shared<Group>(static_cast<int>(ranks.size()));
    if (aborted_by_ >= 0) group->board->abort(aborted_by_, reason_);
    for (size_t i = 0; i < ranks.size(); ++i)
      if (left_[static_cast<size_t>(ranks[i])]) group->board->leave(static_cast<int>(i));
    return group;
  }

  void abort(int rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (aborted_by_ < 0) {
      aborted_by_ = rank;
      reason_ = reason;
    }
    for (auto& [key, group] : groups_) group->board->abort(rank, reason);
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[static_cast<size_t>(rank)] = true;
    for (auto& [key, group] : groups_) {
      const auto& ranks = key.second;
      const auto found = std::find(ranks.begin(), ranks.end(), rank);
      if (found != ranks.end()) group->board->leave(static_cast<int>(found - ranks.begin()));
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Group>> groups_;
  std::vector<bool> left_;  // by rank
  int aborted_by_ = -1;
  std::string reason_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, CallSite site, std::shared_ptr<const Timeout> timeout_ms)
      : group_(std::move(group)), site_(std::move(site)), timeout_ms_(std::move(timeout_ms)) {}

  int rank() const override { return site_.rank; }
  int size() const override { return static_cast<int>(site_.ranks.size()); }
  const std::string& name() const override { return site_.group; }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) override {
    const Call call = all_gather_call(in.size(), out.size(), size(), info);
    exchange(call, {in, out}, [&] {
      for (size_t r = 0; r < group_->spans.size(); ++r)
        copy(group_->spans[r].in, out.subspan(r * in.size(), in.size()));
    });
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                      const CallInfo& info) override {
    const Call call = reduce_scatter_call(in.size(), out.size(), size(), dtype, op, info);
    const size_t begin = static_cast<size_t>(rank()) * out.size();
    exchange(call, {in, out}, [&] { reduce(parts(begin, out.size()), out, dtype, op); });
  }

  // Each rank reduces its chunk of the elements in place, where only it looks; then all copy the others' chunks.
  void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) override {
    const Call call = all_reduce_call(data.size(), dtype, op, info);
    exchange(call, {data, data}, [&] {
      const ByteChunks chunks(data.size(), ir::size_in_bytes(dtype), size());
      reduce(parts(chunks.begin(rank()), chunks.size(rank())), chunks.of(data, rank()), dtype, op);
      group_->board->meet(site_, call, sequence_, *timeout_ms_);
      for (int r = 0; r < size(); ++r) copy(chunks.of(group_->spans[static_cast<size_t>(r)].in, r), chunks.of(data, r));
    });
  }

  void broadcast(std::span<std::byte> data, int root, const CallInfo& info) override {
    const Call call = broadcast_call(data.size(), root, size(), info);
    exchange(call, {data, data}, [&] { copy(group_->spans[static_cast<size_t>(root)].in, data); });
  }

  void barrier(const CallInfo& info) override {
    const Call call = barrier_call(info);
    group_->board->enter(site_, call, ++sequence_, *timeout_ms_);
    group_->board->finish(site_, call, sequence_);
  }

  void abort(const std::string& reason) override { group_->board->abort(site_.global_rank(), reason); }

 private:
  // Shows `spans` to all, then reads theirs. Returns or throws when nobody reads this rank's memory any more.
  void exchange(const Call& call, Group::Spans spans, const std::function<void()>& read) {
    group_->spans[static_cast<size_t>(rank())] = spans;
    group_->board->enter(site_, call, ++sequence_, *timeout_ms_);  // all ranks get past it, or none
    try {
      read();
      group_->reads_no_more(rank(), sequence_);
      group_->board->meet(site_, call, sequence_, *timeout_ms_);
    } catch (...) {
      group_->reads_no_more(rank(), sequence_);
      group_->wait_for_readers(sequence_);
      throw;
    }
    group_->board->finish(site_, call, sequence_);
  }

  std::vector<std::span<const std::byte>> parts(size_t begin, size_t bytes) const {
    std::vector<std::span<const std::byte>> parts;
    for (const auto& spans : group_->spans) parts.push_back(spans.in.subspan(begin, bytes));
    return parts;
  }

  std::shared_ptr<Group> group_;
  CallSite site_;
  std::shared_ptr<const Timeout> timeout_ms_;  // the world's
  uint64_t sequence_ = 0;
};

class ThreadWorld final : public CommWorld {
 public:
  ThreadWorld(std::shared_ptr<Hub> hub, int rank, int64_t timeout_ms)
      : hub_(std::move(hub)), rank_(rank), timeout_ms_(std::make_shared<Timeout>(timeout_ms)) {}
  ~ThreadWorld() override { hub_->leave(rank_); }

  int rank() const override { return rank_; }
  int world_size() const override { return hub_->world_size(); }

  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    auto& made = made_[{name, ranks}];
    if (!made)
      made = std::make_shared<ThreadCommunicator>(hub_->group(name, ranks),
                                                  make_call_site(name, ranks, rank_, world_size()), timeout_ms_);
    return made;
  }

  void set_timeout_ms(int64_t timeout_ms) override { *timeout_ms_ = timeout_ms; }
  std::string_view transport() const override { return "threads"; }
  void abort(const std::string& reason) override { hub_->abort(rank_, reason); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::shared_ptr<Timeout> timeout_ms_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Communicator>> made_;
};

}  // namespace

std::vector<std::unique_ptr<CommWorld>> make_thread_worlds(int world_size, int64_t timeout_ms) {
  constexpr int kMaxRanks = 128;  // threads beyond that only wait
  if (world_size < 1 || world_size > kMaxRanks)
    throw UserError(concat("ranks as threads: ", world_size, " of them\n  expected 1 to ", kMaxRanks));
  auto hub = std::make_shared<Hub>(world_size);
  std::vector<std::unique_ptr<CommWorld>> worlds;
  for (int r = 0; r < world_size; ++r) worlds.push_back(std::make_unique<ThreadWorld>(hub, r, timeout_ms));
  return worlds;
}

}  // namespace sfsdp::comm
