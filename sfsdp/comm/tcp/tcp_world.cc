// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/tcp_world.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/cores.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/messages/message_communicator.h"
#include "sfsdp/comm/null/null_world.h"
#include "sfsdp/comm/peer_process.h"
#include "sfsdp/comm/shm/shm_communicator.h"
#include "sfsdp/comm/tcp/links.h"
#include "sfsdp/comm/tcp/rendezvous.h"

namespace sfsdp::comm {
namespace {

// A name no other board of this host has.
std::string new_board_path(int rank) {
  static constexpr const char* kFolders[] = {"/dev/shm", "/tmp"};
  const auto now = Clock::now().time_since_epoch().count();
  const char* folder = access(kFolders[0], W_OK) == 0 ? kFolders[0] : kFolders[1];
  return concat(folder, "/sfsdp-", getpid(), "-", rank, "-", now);
}

// How long a rank that has a core of its own looks for the others before it sleeps.
constexpr int64_t kSpinUs = 100;

// Peers' windows take as many addresses as the machine has memory, each; a file as large is refused with a signal where files are
// limited.   throws: std::system_error
void check_limits() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    throw std::system_error(ENOMEM, std::generic_category(), "addresses are limited (ulimit -v)");
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    throw std::system_error(EFBIG, std::generic_category(), "files are limited (ulimit -f)");
}

// A process has 2^47 addresses; each window is mapped by each rank of the host, in several groups.
constexpr int64_t kMostAddresses = int64_t{1} << 44;

class TcpWorld final : public CommWorld {
 public:
  TcpWorld(const TcpOptions& options, std::shared_ptr<FlightRecorder> recorder)
      : options_(options),
        store_(std::make_shared<Rendezvous>(options)),
        timeout_ms_(std::make_shared<Timeout>(options.timeout_ms)),
        alone_(make_null_world(options.world_size, options.rank)),
        recorder_(std::move(recorder)) {
    std::vector<int> all(static_cast<size_t>(options.world_size));
    std::iota(all.begin(), all.end(), 0);
    const std::string name = concat(getpid(), " ", Clock::now().time_since_epoch().count(), " ", this);
    if (store_->store().set_first(concat("taken/", options.rank), name) != name)
      // No UserError: where ranks are restarted one by one, it may be rank 0 of the last attempt that has not ended yet.
      throw CommError(concat("CommError on rank ", options.rank, " of ", options.world_size, ": start\n  rank ",
                             options.rank, " has started twice at ", store_->place(),
                             "; expected a RANK of its own for every process, and a new store for every run"));
    const PeerProcess own = PeerProcess::of_this();
    store_->store().set(concat("process/", options.rank), concat(own.pid, " ", own.start_ticks));
    store_->store().set(concat("host/", options.rank), options.host.empty() ? host_identity() : options.host);
    hosts_ = store_->wait_for("host/", all, "start");
    for (const std::string& text : store_->wait_for("process/", all, "start")) {
      PeerProcess& process = processes_.emplace_back();
      std::istringstream(text) >> process.pid >> process.start_ticks;
    }
    watches_.resize(all.size());
    store_->watch([this](int peer) { return why_gone(peer); });
  }

  ~TcpWorld() override {
    bool broken = false;
    for (auto& [key, group] : groups_) {
      group->leave();
      broken = broken || group->is_broken();
    }
    try {
      // Who is still about to find out why a call has failed may need the store for it.
      store_->say_goodbye(!broken ? 5000 : heartbeat_ ? 3000 : 0);
    } catch (const SocketError&) {
      // Rank 0 was faster, or is dead: there is nothing left to close.
    }
  }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  std::shared_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    CallSite site = make_call_site(name, ranks, rank(), world_size());
    const auto found = groups_.find({name, ranks});
    if (found != groups_.end()) return found->second;
    if (ranks.size() == 1) return alone_->group(name, ranks);  // with itself alone, a rank's data is everyone's
    auto made = make_group(std::move(site));
    groups_[{name, ranks}] = made;
    return made;
  }

  void set_timeout_ms(int64_t timeout_ms) override { *timeout_ms_ = timeout_ms; }

  std::string_view transport() const override {
    const auto sharing =
        std::ranges::count_if(groups_, [](const auto& group) { return group.second->shares_memory(); });
    if (sharing == 0) return "tcp";
    return sharing == std::ssize(groups_) ? "shared memory" : "shared memory and tcp";
  }

  std::shared_ptr<GrowingMemory> make_window(int64_t reserved_bytes) override {
    const bool is_read = std::ranges::any_of(groups_, [](const auto& group) { return group.second->shares_memory(); });
    if (!is_read || reserved_bytes > kMostAddresses / ranks_of_host()) return nullptr;
    try {
      check_limits();
      return windows_->make(reserved_bytes);
    } catch (const std::system_error&) {
      return nullptr;  // data goes through staging areas, or TCP where those cannot be made either
    }
  }

  int64_t ranks_of_host() const override { return std::ranges::count(hosts_, hosts_[static_cast<size_t>(rank())]); }

  int64_t cores_of_host() const override {
    std::set<int> cores;
    for (size_t r = 0; r < hosts_.size(); ++r)
      if (hosts_[r] == hosts_[static_cast<size_t>(rank())])
        std::ranges::copy(cores_of(processes_[r].pid), std::inserter(cores, cores.end()));
    return std::max<int64_t>(std::ssize(cores), 1);
  }

  void abort(const std::string& reason) override {
    for (auto& [key, group] : groups_) group->abort(reason);
    alone_->abort(reason);
    try {
      store_->abort(reason);
    } catch (const SocketError&) {
      // Without a store the peers still see the closed connections.
    }
  }

 private:
  std::shared_ptr<GroupCommunicator> make_group(CallSite site) {
    std::vector<std::string> numbers;
    for (const int r : site.ranks) numbers.push_back(std::to_string(r));
    // The ranks of a large group would be a long key.
    const std::string key = concat("group/", site.group, ":", hex(hash_path(join(numbers, ","))));
    const std::string what = "group " + site.group;
    CallSite contact = site;
    contact.group = "first contact of " + site.group;
    const Call call = barrier_call({});
    if (recorder_) recorder_->enter(contact, call, 1);  // who does not come is found in the flight record too
    try {
      Observer observer;
      observer.key = key;
      if (on_one_host(site) && options_.watch == TcpOptions::Watch::OneHost)
        observer.board = make_board(site, key, what);
      if (observer.board && options_.shared_memory)
        if (auto shm = make_shm(site, key, what, observer.board)) {
          if (recorder_) recorder_->finish(contact, 1);
          return shm;
        }
      if (!observer.board) {
        if (!heartbeat_) heartbeat_ = std::make_shared<Heartbeat>(store_->connect_heartbeat(), rank());
        observer.heartbeat = heartbeat_;
        observer.progress = heartbeat_->add(key);
      }
      Address listen = store_->listen_address();
      if (on_one_host(site)) listen = parse_address("127.0.0.1:1"), listen.set_port(0);
      auto links = std::make_unique<Links>(site, key, listen, *store_, options_.init_timeout_ms);
      if (recorder_) recorder_->finish(contact, 1);
      return std::make_shared<MessageCommunicator>(std::move(site), std::move(links), std::move(observer),
                                                   std::shared_ptr<Store>(store_, &store_->store()), timeout_ms_,
                                                   recorder_);
    } catch (const SocketError& error) {
      throw CommError(concat("CommError on rank ", rank(), " of ", world_size(), ": ", what,
                             "\n  the store of rank 0 is gone: ", error.what(), "; read rank 0's log"));
    }
  }

  // Why a rank of this host will not come to a group; of other hosts nothing is known before a group is there.
  std::string why_gone(int peer) {
    const auto at = static_cast<size_t>(peer);
    return hosts_[at] == hosts_[static_cast<size_t>(rank())] ? watches_[at].why_gone(processes_[at]) : "";
  }

  bool on_one_host(const CallSite& site) const {
    return std::ranges::all_of(site.ranks, [&](int r) {
      return hosts_[static_cast<size_t>(r)] == hosts_[static_cast<size_t>(site.ranks[0])];
    });
  }

  // The first rank makes the file, the others open it; null on all ranks if one of them cannot.
  std::unique_ptr<Board> make_board(const CallSite& site, const std::string& key, const std::string& what) {
    const int size = static_cast<int>(site.ranks.size());
    std::unique_ptr<Board> board;
    std::string path, status = "ok";
    try {
      if (site.rank == 0) {
        path = new_board_path(rank());
        board = Board::create_file(path, size);
        store_->store().set(concat(key, "/board/", rank()), path);
      } else {
        path = store_->wait_for(key + "/board/", {site.ranks[0]}, what)[0];
        board = Board::open_file(path, size);
      }
      board->claim(site.rank);
    } catch (const AbortedError&) {
      throw;
    } catch (const CommError& error) {
      status = error.what();
      if (site.rank == 0) store_->store().set(concat(key, "/board/", rank()), path);  // the others fail to open it
    }
    store_->store().set(concat(key, "/mapped/", rank()), status);
    const auto statuses = store_->wait_for(key + "/mapped/", site.ranks, what);
    if (site.rank == 0) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    for (const std::string& s : statuses)
      if (s != "ok") return nullptr;
    return board;
  }

  // Takes the board where all ranks can read each other's memory; null on all ranks, and said by the first, if one cannot.
  std::shared_ptr<GroupCommunicator> make_shm(const CallSite& site, const std::string& key, const std::string& what,
                                              std::unique_ptr<Board>& board) {
    std::unique_ptr<ShmArea> area;
    MemoryId id;
    std::string status = "ok";
    const auto attempt = [&](const std::function<void()>& action) {
      if (status != "ok") return;
      try {
        action();
      } catch (const std::system_error& error) {
        status = concat("rank ", rank(), ": ", error.what());
      }
    };
    attempt([&] {
      check_limits();
      area = std::make_unique<ShmArea>();
      id = area->id();
    });
    store_->store().set(concat(key, "/area/", rank()),
                        concat(id.pid, " ", id.fd, " ", id.device, " ", id.inode, " ", id.bytes));
    std::vector<MemoryId> areas;
    for (const std::string& text : store_->wait_for(key + "/area/", site.ranks, what)) {
      MemoryId& peer = areas.emplace_back();
      std::istringstream(text) >> peer.pid >> peer.fd >> peer.device >> peer.inode >> peer.bytes;
    }
    std::vector<std::unique_ptr<PeerMemory>> peers(areas.size());
    attempt([&] {
      for (size_t r = 0; r < areas.size(); ++r)
        if (static_cast<int>(r) != site.rank && areas[r].pid != 0)  // who has none says why
          peers[r] = std::make_unique<PeerMemory>(areas[r]);
    });
    store_->store().set(concat(key, "/shared/", rank()), status);
    for (const std::string& s : store_->wait_for(key + "/shared/", site.ranks, what)) {
      if (s == "ok") continue;
      if (site.rank == 0) std::cerr << what << " goes over TCP: ranks share no memory (" << s << ")" << std::endl;
      return nullptr;
    }
    board->spin(cores_of_host() >= ranks_of_host() ? kSpinUs : 0);
    return std::make_shared<ShmCommunicator>(site, std::move(board), std::move(area), std::move(peers), windows_,
                                             timeout_ms_, recorder_);
  }

  TcpOptions options_;
  std::shared_ptr<Rendezvous> store_;
  std::shared_ptr<Timeout> timeout_ms_;
  std::unique_ptr<CommWorld> alone_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<Windows> windows_ = std::make_shared<Windows>();
  std::vector<std::string> hosts_;      // by rank, as the next two
  std::vector<PeerProcess> processes_;  // their numbers on their hosts
  std::vector<PeerWatch> watches_;
  std::shared_ptr<Heartbeat> heartbeat_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<GroupCommunicator>> groups_;
};

}  // namespace

std::unique_ptr<CommWorld> make_tcp_world(const TcpOptions& options, std::shared_ptr<FlightRecorder> recorder) {
  SFSDP_CHECK(options.rank >= 0 && options.rank < options.world_size, "rank ", options.rank, " of ",
              options.world_size);
  return std::make_unique<TcpWorld>(options, std::move(recorder));
}

}  // namespace sfsdp::comm
