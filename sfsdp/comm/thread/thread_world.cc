// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/thread/thread_world.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

enum class Kind : uint8_t { AllGather, ReduceScatter, AllReduce, Broadcast, Barrier };

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

// What one rank brings to a collective.
struct Call {
  Kind kind = Kind::Barrier;
  std::span<const std::byte> in;
  ir::DType dtype = ir::DType::u8;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  std::string name;

  std::string text() const {
    return concat(name_of(kind), name.empty() ? "" : " ", name, " of ", in.size(), " bytes ", ir::to_string(dtype));
  }
  bool same(const Call& other) const {
    const bool same_bytes = in.size() == other.in.size() || kind == Kind::Broadcast;
    return kind == other.kind && same_bytes && dtype == other.dtype && op == other.op && root == other.root &&
           name == other.name;
  }
};

// The meeting place of one group: calls are posted, then read by all, then cleared by the last to leave.
class Meeting {
 public:
  Meeting(std::string name, std::vector<int> ranks, std::chrono::milliseconds timeout)
      : name_(std::move(name)), ranks_(std::move(ranks)), timeout_(timeout), calls_(ranks_.size()),
        sequence_(ranks_.size(), 0) {}

  // Posts this rank's call, waits for the others', runs `work` on all calls, waits until all have finished it.
  template <class Work>
  void run(int rank, Call call, Work work) {
    const auto index = static_cast<size_t>(rank);
    {
      std::unique_lock lock(mutex_);
      ++sequence_[index];
      calls_[index] = std::move(call);
      arrive(lock, index);
      check_same(index);
    }
    work(calls_);
    std::unique_lock lock(mutex_);
    arrive(lock, index);
    calls_[index].reset();
    arrive(lock, index);  // nobody posts anew before all have cleared
  }

  void abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
    changed_.notify_all();
  }

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  void arrive(std::unique_lock<std::mutex>& lock, size_t index) {
    throw_if_failed(index);
    const int64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    const bool met = changed_.wait_for(lock, timeout_, [&] { return round_ != round || !failure_.empty(); });
    if (met && round_ != round) return;
    if (!met && failure_.empty()) {
      failure_ = concat("no answer from ", missing(), " in ", timeout_.count(), " ms; ", "all others wait there");
      changed_.notify_all();
    }
    throw_if_failed(index);
  }

  std::string missing() const {
    std::string text;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (!calls_[r])
        text += concat(text.empty() ? "rank " : ", rank ", ranks_[r], " (it finished sequence ", sequence_[r], ")");
    return text;
  }

  void throw_if_failed(size_t index) const {
    if (failure_.empty()) return;
    throw CommError(concat("CommError on rank ", ranks_[index], " of ", ranks_.size(), ": ",
                           calls_[index] ? calls_[index]->text() : "collective", " over ", name_, ", sequence ",
                           sequence_[index], "\n  ", failure_));
  }

  void check_same(size_t index) {
    for (size_t r = 1; r < calls_.size(); ++r)
      if (!calls_[r]->same(*calls_[0]) && failure_.empty())
        failure_ = concat("ranks disagree: rank ", ranks_[0], " calls ", calls_[0]->text(), ", rank ", ranks_[r],
                          " calls ", calls_[r]->text(), "; all ranks must run the same program");
    if (!failure_.empty()) changed_.notify_all();
    throw_if_failed(index);
  }

  std::string name_;
  std::vector<int> ranks_;  // global numbers, for messages
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Call>> calls_;
  std::vector<int64_t> sequence_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::string failure_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  const std::string& name() const override { return meeting_->name(); }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) override {
    SFSDP_CHECK(out.size() == in.size() * static_cast<size_t>(size()), out.size(), " bytes for ", in.size(), " each");
    meeting_->run(rank_, {Kind::AllGather, in, ir::DType::u8, ReduceOp::Sum, 0, info.name}, [&](const auto& calls) {
      for (size_t r = 0; r < calls.size(); ++r) copy(calls[r]->in, out.subspan(r * in.size(), in.size()));
    });
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                      const CallInfo& info) override {
    SFSDP_CHECK(in.size() == out.size() * static_cast<size_t>(size()), in.size(), " bytes into ", out.size(), " each");
    meeting_->run(rank_, {Kind::ReduceScatter, in, dtype, op, 0, info.name}, [&](const auto& calls) {
      std::vector<std::span<const std::byte>> parts;
      for (const auto& call : calls) parts.push_back(call->in.subspan(static_cast<size_t>(rank_) * out.size(), out.size()));
      reduce(parts, out, dtype, op);
    });
  }

  void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) override {
    const std::vector<std::byte> mine(data.begin(), data.end());  // peers read it while `data` is written
    meeting_->run(rank_, {Kind::AllReduce, mine, dtype, op, 0, info.name}, [&](const auto& calls) {
      std::vector<std::span<const std::byte>> parts;
      for (const auto& call : calls) parts.push_back(call->in);
      reduce(parts, data, dtype, op);
    });
  }

  void broadcast(std::span<std::byte> data, int root, const CallInfo& info) override {
    meeting_->run(rank_, {Kind::Broadcast, data, ir::DType::u8, ReduceOp::Sum, root, info.name}, [&](const auto& calls) {
      if (rank_ == root) return;
      SFSDP_CHECK(calls[static_cast<size_t>(root)]->in.size() == data.size(), "broadcast of another size");
      copy(calls[static_cast<size_t>(root)]->in, data);
    });
  }

  void barrier(const CallInfo& info) override {
    meeting_->run(rank_, {Kind::Barrier, {}, ir::DType::u8, ReduceOp::Sum, 0, info.name}, [](const auto&) {});
  }

  void abort(const std::string& reason) override { meeting_->abort(reason); }

 private:
  static void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
  }
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

// All meetings of the worlds made together, by group name and ranks.
class Hub {
 public:
  Hub(int world_size, std::chrono::milliseconds timeout) : world_size_(world_size), timeout_(timeout) {}

  std::shared_ptr<Meeting> meeting(const std::string& name, const std::vector<int>& ranks) {
    std::lock_guard lock(mutex_);
    auto& held = meetings_[{name, ranks}];
    if (!held) held = std::make_shared<Meeting>(name, ranks, timeout_);
    if (!failure_.empty()) held->abort(failure_);
    return held;
  }
  void abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    failure_ = reason;
    for (auto& [key, meeting] : meetings_) meeting->abort(reason);
  }
  int world_size() const { return world_size_; }

 private:
  int world_size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Meeting>> meetings_;
  std::string failure_;
};

class ThreadWorld final : public CommWorld {
 public:
  ThreadWorld(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return hub_->world_size(); }
  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    for (size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] == rank_)
        return std::make_shared<ThreadCommunicator>(hub_->meeting(name, ranks), static_cast<int>(i));
    SFSDP_CHECK(false, "rank ", rank_, " is not in the group ", name, " that it asks for");
    return nullptr;
  }
  Hub& hub() { return *hub_; }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<CommWorld>> make_thread_worlds(int world_size, int64_t timeout_ms) {
  auto hub = std::make_shared<Hub>(world_size, std::chrono::milliseconds(timeout_ms));
  std::vector<std::unique_ptr<CommWorld>> worlds;
  for (int r = 0; r < world_size; ++r) worlds.push_back(std::make_unique<ThreadWorld>(hub, r));
  return worlds;
}

void abort_thread_worlds(CommWorld& world, const std::string& reason) {
  dynamic_cast<ThreadWorld&>(world).hub().abort(reason);
}

}  // namespace sfsdp::comm
