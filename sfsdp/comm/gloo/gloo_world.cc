// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/gloo/gloo_world.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/board.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/chunks.h"
#include "sfsdp/comm/gloo/rendezvous.h"
#include "sfsdp/comm/gloo/watch.h"
#include "sfsdp/comm/null/null_world.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Timeout = std::atomic<int64_t>;

// Bytes that a reduction receives from each peer at a time: bounds its scratch memory.
constexpr size_t kPieceBytes = 8 << 20;
// Up to here an all-reduce sends everything to everyone, one trip instead of two.
constexpr size_t kSmallBytes = 32 << 10;
// Calls of a group that are compared without shared memory, one more trip each: enough for the first steps;
// later steps run the same plan.
constexpr uint64_t kCheckedCalls = 1000;
const std::string kEarlier = "an earlier call failed: ";
// A dying process's connections close before it counts as dead.
constexpr int64_t kGraceMs = 2000;

// What a transfer throws, with the peer it was for.
struct TransferError {
  int peer;  // in the group
  std::string text;
  bool timed_out;
};

// Point-to-point messages of one group: everything else is made of these, as they need no copies, name the peer that
// fails, and leave the order of sums to us.
class Transfers {
 public:
  explicit Transfers(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo) : gloo_(std::move(gloo)) {}

  // Order counts per pair of ranks and direction; empty spans are not sent.
  void send(std::span<const std::byte> data, int peer) {
    if (data.empty()) return;
    std::vector<at::Tensor> tensors = {tensor(data)};
    attempt(peer, [&] { add(gloo_->send(tensors, peer, kTag), peer); });
  }
  void receive(std::span<std::byte> data, int peer) {
    if (data.empty()) return;
    std::vector<at::Tensor> tensors = {tensor(data)};
    attempt(peer, [&] { add(gloo_->recv(tensors, peer, kTag), peer); });
  }

  // Until everything posted has been sent and received.
  void wait(Clock::time_point deadline) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      attempt(
          pending_[i].peer,
          [&] {
            if (!pending_[i].work->wait(std::max(left, milliseconds(1)))) throw std::runtime_error("aborted");
          },
          deadline);
    }
    const std::lock_guard lock(mutex_);
    pending_.clear();
  }

  // After an error: nothing is written to or read from the caller's memory any more.
  void drop() {
    const std::lock_guard lock(mutex_);
    pending_.clear();
  }

  // From any thread.
  void abort() {
    const std::lock_guard lock(mutex_);
    for (const Pending& pending : pending_) pending.work->abort();
  }

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int peer;
  };
  static constexpr int kTag = 0;

  static at::Tensor tensor(std::span<const std::byte> data) {
    return at::from_blob(const_cast<std::byte*>(data.data()), {static_cast<int64_t>(data.size())}, at::kByte);
  }
  void add(c10::intrusive_ptr<c10d::Work> work, int peer) {
    const std::lock_guard lock(mutex_);
    pending_.push_back({std::move(work), peer});
  }
  template <class Action>
  static void attempt(int peer, Action action, Clock::time_point deadline = Clock::time_point::max()) {
    try {
      action();
    } catch (const std::exception& error) {
      throw TransferError{peer, first_line(error.what()), Clock::now() >= deadline};
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::mutex mutex_;
  std::vector<Pending> pending_;
};

// What a group needs to find out who is missing: a board if its ranks are on one host, else the store.
struct Observer {
  std::unique_ptr<Board> board;
  std::shared_ptr<Heartbeat> heartbeat;  // the world's
  std::shared_ptr<Progress> progress;
  std::string key;  // of the group in the store
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(CallSite site, c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, Observer observer,
                   std::shared_ptr<Rendezvous> store, std::shared_ptr<const Timeout> timeout_ms)
      : site_(std::move(site)),
        transfers_(std::move(gloo)),
        observer_(std::move(observer)),
        store_(std::move(store)),
        timeout_ms_(std::move(timeout_ms)) {}

  int rank() const override { return site_.rank; }
  int size() const override { return static_cast<int>(site_.ranks.size()); }
  const std::string& name() const override { return site_.group; }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallInfo& info) override {
    run(all_gather_call(in.size(), out.size(), size(), info), [&] { gather(in, out); });
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, ReduceOp op,
                      const CallInfo& info) override {
    run(reduce_scatter_call(in.size(), out.size(), size(), dtype, op, info),
        [&] { reduce_chunks(in, ByteChunks(in.size(), ir::size_in_bytes(dtype), size()), out, dtype, op); });
  }

  void all_reduce(std::span<std::byte> data, ir::DType dtype, ReduceOp op, const CallInfo& info) override {
    run(all_reduce_call(data.size(), dtype, op, info), [&] {
      if (data.size() <= kSmallBytes) return reduce_small(data, dtype, op);
      const ByteChunks chunks(data.size(), ir::size_in_bytes(dtype), size());
      const auto mine = chunks.of(data, rank());
      reduce_chunks(data, chunks, mine, dtype, op);
      post([&](int peer) { return chunks.of(data, peer); }, [&](int) { return mine; });
      wait();
    });
  }

  // A tree: whoever has the data sends it to half as far away each time.
  void broadcast(std::span<std::byte> data, int root, const CallInfo& info) override {
    run(broadcast_call(data.size(), root, size(), info), [&] {
      const int n = size(), from_root = (rank() - root + n) % n;
      int reach = 1;
      while (reach < n) reach *= 2;
      for (reach /= 2; reach > 0; reach /= 2) {
        if (from_root % (2 * reach) == 0 && from_root + reach < n)
          transfers_.send(data, (rank() + reach) % n);
        else if (from_root % (2 * reach) == reach) {
          transfers_.receive(data, (rank() - reach + n) % n);
          wait();
        }
      }
      wait();
    });
  }

  void barrier(const CallInfo& info) override {
    run(barrier_call(info), [&] {
      if (observer_.board) return;  // entering it was one
      const std::byte mine{};
      gather({&mine, 1}, scratch(static_cast<size_t>(size())));
    });
  }

  void abort(const std::string& reason) override {
    if (observer_.board) observer_.board->abort(site_.global_rank(), reason);
    fail(concat("rank ", site_.global_rank(), " aborted: ", reason));
    transfers_.abort();
  }

  void leave() {
    if (observer_.board) observer_.board->leave(rank());
  }
  // A call has failed: the peers are going down too.
  bool is_broken() const { return broken_; }

 private:
  template <class Action>
  void run(const Call& call, Action action) {
    ++sequence_;
    begin_ = Clock::now();
    if (const std::string failure = this->failure(); !failure.empty())
      throw AbortedError(error_text(site_, call, sequence_, failure));
    try {
      enter(call);
      action();
    } catch (const TransferError& error) {
      broken_ = true;
      transfers_.drop();
      throw_failure(call, error);
    } catch (const CommError&) {
      broken_ = true;
      throw;
    }
    if (observer_.board)
      observer_.board->finish(site_, sequence_);
    else
      observer_.progress->finished = sequence_;
  }

  void enter(const Call& call) {
    if (observer_.board) {
      observer_.board->enter(site_, call, sequence_, *timeout_ms_);
    } else {
      observer_.progress->entered = sequence_;
      if (sequence_ <= kCheckedCalls) compare(call);
    }
    begin_ = Clock::now();  // the transfer has a timeout of its own
  }

  // Every rank sends every other what it is about to do.
  void compare(const Call& call) {
    struct Record {
      uint64_t hash = 0;
      std::array<char, 248> text{};
    };
    Record mine;
    mine.hash = call.hash();
    call.text().copy(mine.text.data(), mine.text.size() - 1);
    std::vector<Record> all(site_.ranks.size());
    gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].hash == all[0].hash) continue;
      const std::string cause =
          disagreement_text(site_.ranks[0], all[0].text.data(), site_.ranks[i], all[i].text.data());
      fail(kEarlier + cause);
      throw CommError(error_text(site_, call, sequence_, cause));
    }
  }

  void wait() { transfers_.wait(begin_ + milliseconds(*timeout_ms_)); }

  // Begins to receive place(peer) from, and to send data(peer) to, each peer. Peers in the order rank + 1, rank + 2, ...:
  // not all send to the same one first.
  template <class Place, class Data>
  void post(Place place, Data data) {
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank() + i) % size();
      transfers_.receive(place(peer), peer);
      transfers_.send(data(peer), peer);
    }
  }

  void gather(std::span<const std::byte> in, std::span<std::byte> out) {
    const auto slot = [&](int r) { return out.subspan(static_cast<size_t>(r) * in.size(), in.size()); };
    post(slot, [&](int) { return in; });
    copy(in, slot(rank()));
    wait();
  }

  // out = the sum of all ranks' chunk rank() of `in`; out may be that chunk itself.
  void reduce_chunks(std::span<const std::byte> in, const ByteChunks& chunks, std::span<std::byte> out, ir::DType dtype,
                     ReduceOp op) {
    const size_t n = site_.ranks.size();
    for (size_t begin = 0; begin < chunks.size(0); begin += kPieceBytes) {
      const auto piece = [&](auto chunk) {
        const size_t from = std::min(begin, chunk.size());
        return chunk.subspan(from, std::min(kPieceBytes, chunk.size() - from));
      };
      const auto mine = piece(out);
      const auto received = scratch(n * mine.size());
      const auto place = [&](int r) { return received.subspan(static_cast<size_t>(r) * mine.size(), mine.size()); };
      post(place, [&](int peer) { return piece(chunks.of(in, peer)); });
      std::vector<std::span<const std::byte>> parts;
      for (int r = 0; r < size(); ++r) parts.push_back(r == rank() ? piece(chunks.of(in, r)) : place(r));
      wait();
      reduce(parts, mine, dtype, op);
    }
  }

  void reduce_small(std::span<std::byte> data, ir::DType dtype, ReduceOp op) {
    const auto all = scratch(site_.ranks.size() * data.size());
    gather(data, all);
    std::vector<std::span<const std::byte>> parts;
    for (size_t r = 0; r < site_.ranks.size(); ++r) parts.push_back(all.subspan(r * data.size(), data.size()));
    reduce(parts, data, dtype, op);
  }

  std::span<std::byte> scratch(size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return std::span(scratch_).first(bytes);
  }

  std::string failure() {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }
  // Why all later calls fail; the first such reason stays.
  void fail(const std::string& cause) {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = cause;
  }

  [[noreturn]] void throw_failure(const Call& call, const TransferError& error) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin_);
    if (const std::string aborted = failure(); !aborted.empty())
      throw AbortedError(error_text(site_, call, sequence_, aborted));
    const std::string cause =
        concat("the connection to rank ", site_.ranks[static_cast<size_t>(error.peer)],
               error.timed_out ? " timed out" : " broke", " after ", waited.count(), " ms (", error.text,
               "); read rank ", site_.ranks[static_cast<size_t>(error.peer)], "'s log");
    fail(kEarlier + cause);
    if (observer_.board) observer_.board->throw_failure(site_, call, sequence_, cause, kGraceMs);
    const FoundCause found =
        find_cause(*store_, *observer_.heartbeat, site_, observer_.key, sequence_, waited.count(), cause);
    const std::string text = error_text(site_, call, sequence_, found.text);
    if (found.kind == FoundCause::Kind::Aborted) throw AbortedError(text);
    throw CommError(text);
  }

  CallSite site_;
  Transfers transfers_;
  Observer observer_;
  std::shared_ptr<Rendezvous> store_;
  std::shared_ptr<const Timeout> timeout_ms_;
  std::vector<std::byte> scratch_;
  uint64_t sequence_ = 0;
  Clock::time_point begin_;
  bool broken_ = false;
  std::mutex failure_mutex_;
  std::string failure_;
};

// A name no other board of this host has.
std::string new_board_path(int rank) {
  static constexpr const char* kFolders[] = {"/dev/shm", "/tmp"};
  const auto now = Clock::now().time_since_epoch().count();
  const char* folder = access(kFolders[0], W_OK) == 0 ? kFolders[0] : kFolders[1];
  return concat(folder, "/sfsdp-", getpid(), "-", rank, "-", now);
}

class GlooWorld final : public CommWorld {
 public:
  explicit GlooWorld(const GlooOptions& options)
      : options_(options),
        store_(std::make_shared<Rendezvous>(options)),
        timeout_ms_(std::make_shared<Timeout>(options.timeout_ms)),
        alone_(make_null_world(options.world_size, options.rank)) {
    std::vector<int> all(static_cast<size_t>(options.world_size));
    std::iota(all.begin(), all.end(), 0);
    const std::string token = concat(getpid(), " ", Clock::now().time_since_epoch().count(), " ", this);
    if (store_->set_first(concat("taken/", options.rank), token) != token)
      throw UserError(concat("rank ", options.rank, " of ", options.world_size, " has started twice at ",
                             store_->place(),
                             "\n  expected a RANK of its own for every process, and a new store for every run"));
    store_->set(concat("host/", options.rank), host_identity());
    hosts_ = store_->wait_for("host/", all, "start");
  }

  ~GlooWorld() override {
    bool broken = false;
    for (auto& [key, group] : groups_) {
      group->leave();
      broken = broken || group->is_broken();
    }
    try {
      // Who is still about to find out why a call has failed may need the store for it.
      store_->say_goodbye(!broken ? 5000 : heartbeat_ ? 3000 : 0);
    } catch (const std::exception&) {
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

  void abort(const std::string& reason) override {
    for (auto& [key, group] : groups_) group->abort(reason);
    alone_->abort(reason);
    try {
      store_->abort(reason);
    } catch (const std::exception&) {
      // Without a store the peers still see the closed connections.
    }
  }

 private:
  std::shared_ptr<GlooCommunicator> make_group(CallSite site) {
    std::vector<std::string> numbers;
    for (const int r : site.ranks) numbers.push_back(std::to_string(r));
    const std::string key = concat("group/", site.group, ":", join(numbers, ",")), what = "group " + site.group;
    store_->set(concat(key, "/here/", rank()), "1");
    store_->wait_for(key + "/here/", site.ranks, what);
    Observer observer;
    observer.key = key;
    if (on_one_host(site) && options_.watch == GlooOptions::Watch::OneHost)
      observer.board = make_board(site, key, what);
    if (!observer.board) {
      if (!heartbeat_) heartbeat_ = std::make_shared<Heartbeat>(store_->clone(), rank());
      observer.heartbeat = heartbeat_;
      observer.progress = heartbeat_->add(key);
    }
    return std::make_shared<GlooCommunicator>(site, connect(site, key), std::move(observer), store_, timeout_ms_);
  }

  bool on_one_host(const CallSite& site) const {
    for (const int r : site.ranks)
      if (hosts_[static_cast<size_t>(r)] != hosts_[static_cast<size_t>(site.ranks[0])]) return false;
    return true;
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
        store_->set(concat(key, "/board/", rank()), path);
      } else {
        path = store_->wait_for(key + "/board/", {site.ranks[0]}, what)[0];
        board = Board::open_file(path, size);
      }
      board->claim(site.rank);
    } catch (const AbortedError&) {
      throw;
    } catch (const CommError& error) {
      status = error.what();
      if (site.rank == 0) store_->set(concat(key, "/board/", rank()), path);  // the others then fail to open it
    }
    store_->set(concat(key, "/mapped/", rank()), status);
    const auto statuses = store_->wait_for(key + "/mapped/", site.ranks, what);
    if (site.rank == 0) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    for (const std::string& s : statuses)
      if (s != "ok") return nullptr;
    return board;
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(const CallSite& site, const std::string& key) {
    try {
      auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(options_.init_timeout_ms));
      options->threads = 1;  // of collectives, which we do not use; messages run on the device's own thread
      options->devices.push_back(!options_.interface.empty()
                                     ? c10d::ProcessGroupGloo::createDeviceForInterface(options_.interface)
                                 : on_one_host(site) ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                                     : c10d::ProcessGroupGloo::createDefaultDevice());
      auto base = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store_->store());
      auto store = c10::make_intrusive<c10d::PrefixStore>(key + "/gloo", base);
      return c10::make_intrusive<c10d::ProcessGroupGloo>(store, site.rank, static_cast<int>(site.ranks.size()),
                                                         options);
    } catch (const std::exception& error) {
      throw CommError(concat("CommError on rank ", rank(), " of ", world_size(), ": group ", site.group, " at ",
                             store_->place(), "\n  cannot connect to the other ranks: ", first_line(error.what()),
                             "; check GLOO_SOCKET_IFNAME, and the logs of ranks that are gone"));
    }
  }

  GlooOptions options_;
  std::shared_ptr<Rendezvous> store_;
  std::shared_ptr<Timeout> timeout_ms_;
  std::unique_ptr<CommWorld> alone_;
  std::vector<std::string> hosts_;  // by rank
  std::shared_ptr<Heartbeat> heartbeat_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<GlooCommunicator>> groups_;
};

}  // namespace

std::unique_ptr<CommWorld> make_gloo_world(const GlooOptions& options) {
  SFSDP_CHECK(options.rank >= 0 && options.rank < options.world_size, "rank ", options.rank, " of ",
              options.world_size);
  return std::make_unique<GlooWorld>(options);
}

}  // namespace sfsdp::comm
