// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/null/null_world.h"

#include <map>
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

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) override {
    enter(all_gather_call(in.size(), out.size(), size(), info));
    for (size_t r = 0; r < site_.ranks.size(); ++r) copy(in, out.subspan(r * in.size(), in.size()));
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                      const CallInfo& info) override {
    enter(reduce_scatter_call(in.size(), out.size(), size(), dtype, op, info));
    copy(in.subspan(static_cast<size_t>(rank()) * out.size(), out.size()), out);
  }

  void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) override {
    enter(all_reduce_call(data.size(), dtype, op, info));
  }

  void broadcast(std::span<std::byte> data, int root, const CallInfo& info) override {
    enter(broadcast_call(data.size(), root, size(), info));
  }

  void barrier(const CallInfo& info) override { enter(barrier_call(info)); }

  void abort(const std::string& reason) override {
    if (aborted_.empty()) aborted_ = concat("rank ", site_.global_rank(), " aborted: ", reason);
  }

 private:
  void enter(const Call& call) {
    ++sequence_;
    if (!aborted_.empty()) throw AbortedError(error_text(site_, call, sequence_, aborted_));
  }

  CallSite site_;
  uint64_t sequence_ = 0;
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
