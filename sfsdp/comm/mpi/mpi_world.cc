// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_world.h"

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/messages/message_communicator.h"
#include "sfsdp/comm/mpi/mpi_messages.h"
#include "sfsdp/comm/mpi/mpi_store.h"
#include "sfsdp/comm/null/null_world.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// MPI promises 32767: enough for 31 worlds of a process one after the other. A run makes one, of a dozen groups.
constexpr int kTags = 1024;
// The first three: requests to the store, answers to a rank, answers to its heartbeat.
constexpr int kGroupTags = kTags - 3;

class MpiWorld final : public CommWorld {
 public:
  MpiWorld(std::shared_ptr<Mpi> mpi, int64_t timeout_ms, std::shared_ptr<FlightRecorder> recorder)
      : mpi_(std::move(mpi)),
        tags_(mpi_->take_tags(kTags)),
        timeout_ms_(std::make_shared<Timeout>(timeout_ms)),
        alone_(make_null_world(mpi_->world_size(), mpi_->rank())),
        recorder_(std::move(recorder)) {
    if (rank() == 0) server_ = std::make_unique<MpiStoreServer>(mpi_, tags_);
    store_ = std::make_shared<MpiStore>(mpi_, tags_, tags_ + 1);
    try {
      store_->set(concat("here/", rank()), "1");
    } catch (const TransportError& error) {
      throw CommError(concat("CommError on rank ", rank(), " of ", world_size(),
                             ": start\n  no answer from rank 0, which hosts the store: ", error.what(),
                             "; read rank 0's log"));
    }
    heartbeat_ = std::make_shared<Heartbeat>(std::make_unique<MpiStore>(mpi_, tags_, tags_ + 2), rank());
  }

  // MPI ends when all ranks have left. After an error some may not come any more: then this process goes without, and
  // mpirun, which takes that for a failure, ends the others.
  ~MpiWorld() override {
    bool broken = aborted_;
    for (auto& [key, group] : groups_) broken = broken || group->is_broken();
    if (broken) mpi_->end_by(Mpi::End::LeaveRunning);
    const std::string done = heartbeat_->text();
    groups_.clear();
    heartbeat_.reset();
    try {
      store_->set(progress_key(rank()), done, Store::Patience::LastWords);
      store_->set(goodbye_key(rank()), "1", Store::Patience::LastWords);
      if (server_) wait_for_goodbyes(milliseconds(broken ? 3000 : 5000));
    } catch (const TransportError&) {
      // Rank 0 was faster, or is dead.
    }
  }

  int rank() const override { return mpi_->rank(); }
  int world_size() const override { return mpi_->world_size(); }

  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    CallSite site = make_call_site(name, ranks, rank(), world_size());
    const auto found = groups_.find({name, ranks});
    if (found != groups_.end()) return found->second;
    if (ranks.size() == 1) return alone_->group(name, ranks);  // with itself alone, a rank's data is everyone's
    std::vector<std::string> numbers;
    for (const int r : ranks) numbers.push_back(std::to_string(r));
    const std::string key = concat("group/", name, ":", hex(hash_path(join(numbers, ","))));
    Observer observer;
    observer.heartbeat = heartbeat_;
    observer.progress = heartbeat_->add(key);
    observer.key = key;
    auto messages = std::make_unique<MpiMessages>(mpi_, site, tag_of(site, key));
    auto made = std::make_shared<MessageCommunicator>(std::move(site), std::move(messages), std::move(observer), store_,
                                                      timeout_ms_, recorder_);
    groups_[{name, ranks}] = made;
    return made;
  }

  int64_t ranks_of_host() const override { return mpi_->local_ranks(); }
  int64_t cores_of_host() const override {
    return mpi_->local_cores() > 0 ? mpi_->local_cores() : CommWorld::cores_of_host();
  }
  void set_timeout_ms(int64_t timeout_ms) override { *timeout_ms_ = timeout_ms; }
  std::string_view transport() const override { return "mpi"; }

  void abort(const std::string& reason) override {
    aborted_ = true;
    for (auto& [key, group] : groups_) group->abort(reason);
    alone_->abort(reason);
    try {
      store_->set_first("aborted", concat("rank ", rank(), " aborted: ", reason), Store::Patience::LastWords);
    } catch (const TransportError&) {
      // Without a store the peers find out that this rank does not answer.
    }
  }

 private:
  // The first from the hash of its key on that no other group has: all its ranks try the same ones.
  int tag_of(const CallSite& site, const std::string& key) {
    try {
      for (int i = 0; i < kGroupTags; ++i) {
        const int tag = static_cast<int>((hash_path(key) + static_cast<uint64_t>(i)) % kGroupTags);
        if (store_->set_first(concat("tag/", tag), key) == key) return tags_ + 3 + tag;
      }
    } catch (const TransportError& error) {
      throw CommError(concat("CommError on rank ", rank(), " of ", world_size(), ": group ", site.group,
                             "\n  the store of rank 0 is gone: ", error.what(), "; read rank 0's log"));
    }
    throw CommError(concat("CommError on rank ", rank(), " of ", world_size(), ": group ", site.group, "\n  all ",
                           kGroupTags, " tags of MPI are taken; make fewer groups"));
  }

  // The last ones to leave may still ask the store.
  void wait_for_goodbyes(milliseconds patience) {
    const auto deadline = Clock::now() + patience;
    for (int r = 0; r < world_size() && Clock::now() < deadline;)
      if (store_->get(goodbye_key(r)))
        ++r;
      else
        std::this_thread::sleep_for(milliseconds(2));
  }

  std::shared_ptr<Mpi> mpi_;
  int tags_;
  std::unique_ptr<MpiStoreServer> server_;  // of rank 0
  std::shared_ptr<MpiStore> store_;
  std::shared_ptr<Timeout> timeout_ms_;
  std::unique_ptr<CommWorld> alone_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<Heartbeat> heartbeat_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<GroupCommunicator>> groups_;
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<CommWorld> make_mpi_world(std::shared_ptr<Mpi> mpi, int64_t timeout_ms,
                                          std::shared_ptr<FlightRecorder> recorder) {
  return std::make_unique<MpiWorld>(std::move(mpi), timeout_ms, std::move(recorder));
}

}  // namespace sfsdp::comm
