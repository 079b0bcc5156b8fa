// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/null/null_world.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/chunks.h"

namespace sfsdp::comm {
namespace {

class NullCommunicator final : public Communicator {
 public:
  explicit NullCommunicator(CallSite site) : site_(std::move(site)) {}

  int rank() const override { return site_.rank; }
  int size() const override { return static_cast<int>(site_.ranks.size()); }
  const std::string& name() const override { return site_.group; }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (aborted_.empty()) aborted_ = concat("rank ", site_.global_rank(), " aborted: ", reason);
  }

 protected:
  void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    ++sequence_;
    if (const std::string aborted = this->aborted(); !aborted.empty())
      throw AbortedError(error_text(site_, call, sequence_, aborted));
    if (call.kind() == CallKind::Broadcast) return;
    if (call.dtype()) return copy(out.size() == in.size() ? in : call.chunks().of(in, rank()), out);
    // What the others would send is what this rank has for itself, cut or followed by zeros where sizes differ.
    const auto own = call.kind() == CallKind::Permute ? in : call.sent(rank(), rank()).of(in);
    for (int r = 0; r < size(); ++r) {
      const auto part = call.received(r, rank()).of(out);
      const size_t known = std::min(own.size(), part.size());
      copy(own.first(known), part.first(known));
      std::ranges::fill(part.subspan(known), std::byte{});
    }
  }

 private:
  std::string aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  CallSite site_;
  uint64_t sequence_ = 0;
  mutable std::mutex mutex_;  // abort comes from any thread
  std::string aborted_;
};

class NullWorld final : public CommWorld {
 public:
  NullWorld(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    auto& made = made_[{name, ranks}];
    if (!made) {
      made = std::make_shared<NullCommunicator>(make_call_site(name, ranks, rank_, world_size_));
      if (aborted_) made->abort(*aborted_);
    }
    return made;
  }

  void set_timeout_ms(int64_t) override {}
  std::string_view transport() const override { return "imagined ranks"; }

  void abort(const std::string& reason) override {
    if (!aborted_) aborted_ = reason;
    for (auto& [key, group] : made_) group->abort(reason);
  }

 private:
  int rank_, world_size_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Communicator>> made_;
  std::optional<std::string> aborted_;
};

}  // namespace

std::unique_ptr<CommWorld> make_null_world(int world_size, int rank) {
  SFSDP_CHECK(rank >= 0 && rank < world_size, "rank ", rank, " of ", world_size);
  return std::make_unique<NullWorld>(rank, world_size);
}

}  // namespace sfsdp::comm
