// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/thread/thread_world.h"

#include <algorithm>
#include <atomic>
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

// What the ranks of a group share. A rank writes its call and its input before it enters a call; all read them until they have
// met after it, or, after an error, until each has said that it reads no more.
struct Group {
  struct Shown {
    const Call* call = nullptr;
    std::span<const std::byte> in;
  };

  explicit Group(int size)
      : board(Board::in_process(size)), shown(static_cast<size_t>(size)), read(static_cast<size_t>(size)) {}

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
  std::vector<Shown> shown;
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

  void abort(const std::string& reason) override { group_->board->abort(site_.global_rank(), reason); }

 protected:
  void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    exchange(call, in, [&] {
      if (call.kind() == CallKind::AllToAllV) compare_counts(call);
      if (call.kind() == CallKind::AllReduce) return all_reduce(call, out);
      if (call.dtype()) return reduce(parts(call.chunks().at(rank())), out, *call.dtype(), call.op());
      for (int r = 0; r < size(); ++r) {
        const auto& [peers_call, peers_in] = group_->shown[static_cast<size_t>(r)];
        copy(peers_call->sent(r, rank()).of(peers_in), call.received(r, rank()).of(out));
      }
    });
  }

 private:
  // Shows `in` to all, then reads theirs. Returns or throws when nobody reads this rank's memory any more.
  template <class Read>
  void exchange(const Call& call, std::span<const std::byte> in, Read read) {
    group_->shown[static_cast<size_t>(rank())] = {&call, in};
    group_->board->enter(site_, call, ++sequence_, *timeout_ms_);  // all ranks get past it, or none
    if (call.kind() == CallKind::Barrier) return group_->board->finish(site_, call, sequence_);
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

  // Each rank reduces its chunk of the elements in place, where only it looks; then all copy the others' chunks.
  void all_reduce(const Call& call, std::span<std::byte> data) {
    const ByteChunks chunks(data.size(), ir::size_in_bytes(*call.dtype()), size());
    reduce(parts(chunks.at(rank())), chunks.of(data, rank()), *call.dtype(), call.op());
    group_->board->meet(site_, call, sequence_, *timeout_ms_);
    for (int r = 0; r < size(); ++r) copy(chunks.of(group_->shown[static_cast<size_t>(r)].in, r), chunks.of(data, r));
  }

  void compare_counts(const Call& call) {
    std::vector<std::vector<int64_t>> counts;
    for (const auto& shown : group_->shown) counts.push_back(shown.call->counts(size()));
    const std::vector<std::span<const int64_t>> rows(counts.begin(), counts.end());
    if (const std::string cause = counts_disagreement(site_, rows); !cause.empty())
      group_->board->throw_failure(site_, call, sequence_, cause, 0, 0);
  }

  std::vector<std::span<const std::byte>> parts(Range range) const {
    std::vector<std::span<const std::byte>> parts;
    for (const auto& shown : group_->shown) parts.push_back(range.of(shown.in));
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
