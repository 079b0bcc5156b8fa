// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/peer_process.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How often a waiting rank looks whether the others are alive; what they do wakes it at once.
constexpr int64_t kLookMs = 100;

enum class Failure : uint32_t { None, Cause, Abort };

// Fixed text in shared memory; longer ones are cut.
template <size_t N>
struct Text {
  std::array<char, N> chars{};
  void set(std::string_view text) {
    const size_t length = std::min(text.size(), N - 1);
    std::memcpy(chars.data(), text.data(), length);
    chars[length] = 0;
  }
  std::string get() const { return chars.data(); }
};

struct Slot {
  uint64_t phase = 0;  // arrivals so far: one per enter and per meet
  uint64_t finished = 0;
  uint64_t call_hash = 0;
  Text<192> call;
  PeerProcess process;
  bool left = false;
};

// Between two looks at what another core writes.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t elapsed_ms(Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count();
}

}  // namespace

struct BoardMemory {
  pthread_mutex_t mutex;
  int32_t size = 0;
  int32_t arrived = 0;
  std::atomic<uint64_t> released = 0;  // the last phase in which all have arrived
  std::atomic<uint32_t> wakes = 0;     // the futex
  std::atomic<uint32_t> left = 0;      // ranks
  std::atomic<Failure> failure = Failure::None;
  Text<1024> cause;

  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
  static size_t bytes(int size) { return sizeof(BoardMemory) + static_cast<size_t>(size) * sizeof(Slot); }
  static BoardMemory* make_in(void* place, int size) {
    auto* memory = new (place) BoardMemory;
    memory->size = size;
    for (int r = 0; r < size; ++r) new (memory->slots() + r) Slot;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int status = pthread_mutex_init(&memory->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    SFSDP_CHECK(status == 0, std::strerror(status));
    return memory;
  }
};
static_assert(sizeof(BoardMemory) % alignof(Slot) == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// Naive idea: wait for the mutex as long as it takes. What breaks it: its owner may be stopped, for ever.
class Board::Lock {
 public:
  // For a call of this rank.   throws: CommError naming a rank that has been stopped for long, and may be the owner
  Lock(BoardMemory& memory, const CallSite& site, const Call& call, uint64_t sequence) : memory_(memory) {
    const auto begin = Clock::now();
    const int stopped = lock();
    if (stopped < 0) return;
    const Slot& slot = memory_.slots()[stopped];  // without the lock, which nobody gets
    throw CommError(error_text(site, call, sequence,
                               silence_text({{site.ranks[static_cast<size_t>(stopped)], slot.finished}}, 1, 0,
                                            elapsed_ms(begin), concat("its process ", slot.process.pid, kIsStopped))));
  }
  // For what cannot fail: is_held() says whether it is.
  explicit Lock(BoardMemory& memory) : memory_(memory) { lock(); }
  ~Lock() {
    if (held_) pthread_mutex_unlock(&memory_.mutex);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool is_held() const { return held_; }

 private:
  // -1, or a rank of the group that has been stopped for as long as this has waited.
  int lock() {
    const auto begin = Clock::now();
    while (true) {
      timespec until{};
      clock_gettime(CLOCK_REALTIME, &until);  // a clock that is set back costs a longer wait
      ++until.tv_sec;
      const int status = pthread_mutex_timedlock(&memory_.mutex, &until);
      held_ = status != ETIMEDOUT;
      // A process that died in here has changed a slot at most half; its death is found by those who wait for it.
      if (status == EOWNERDEAD) pthread_mutex_consistent(&memory_.mutex);
      if (held_) return -1;
      if (Clock::now() - begin < kMostStopped) continue;
      for (int r = 0; r < memory_.size; ++r)
        if (memory_.slots()[r].process.is_stopped()) return r;
    }
  }

  BoardMemory& memory_;
  bool held_ = false;
};

void Board::Deleter::operator()(BoardMemory* memory) const {
  if (mapped_bytes > 0) {
    munmap(memory, mapped_bytes);  // peers may still use the mutex
    return;
  }
  pthread_mutex_destroy(&memory->mutex);
  ::operator delete(memory);
}

Board::Board(std::unique_ptr<BoardMemory, Deleter> memory)
    : memory_(std::move(memory)), watches_(static_cast<size_t>(memory_->size)) {}

std::unique_ptr<Board> Board::in_process(int size) {
  SFSDP_CHECK(size > 0, "size ", size);
  void* place = ::operator new(BoardMemory::bytes(size));
  return std::unique_ptr<Board>(new Board({BoardMemory::make_in(place, size), Deleter{}}));
}

std::unique_ptr<Board> Board::map_file(const std::string& path, int size, int flags) {
  const auto failed = [&](const char* what) {
    return CommError(concat("CommError: cannot ", what, " ", path, ": ", std::strerror(errno)));
  };
  const int fd = open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) throw failed("open");
  const size_t bytes = BoardMemory::bytes(size);
  struct stat status {};
  const bool is_board = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  if ((flags & O_CREAT) == 0 && (!is_board || status.st_size != static_cast<off_t>(bytes))) {
    close(fd);
    throw CommError(concat("CommError: ", path, " is no board of ", size, " ranks of this user"));
  }
  void* place = MAP_FAILED;
  const char* what = "allocate";
  // fallocate, not ftruncate: a full /dev/shm is an error here instead of SIGBUS later
  if ((flags & O_CREAT) == 0 || posix_fallocate(fd, 0, static_cast<off_t>(bytes)) == 0) {
    what = "map";
    place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  close(fd);
  errno = error;
  if (place == MAP_FAILED) throw failed(what);
  auto* memory = (flags & O_CREAT) != 0 ? BoardMemory::make_in(place, size) : static_cast<BoardMemory*>(place);
  SFSDP_CHECK(memory->size == size, path, " is a board of ", memory->size, " ranks");
  return std::unique_ptr<Board>(new Board({memory, Deleter{bytes}}));
}

std::unique_ptr<Board> Board::create_file(const std::string& path, int size) {
  return map_file(path, size, O_CREAT | O_EXCL);
}

std::unique_ptr<Board> Board::open_file(const std::string& path, int size) { return map_file(path, size, 0); }

Board::~Board() = default;

void Board::claim(int rank) {
  const PeerProcess process = PeerProcess::of_this();
  const Lock lock(*memory_);
  memory_->slots()[rank].process = process;
}

void Board::enter(const CallSite& site, const Call& call, uint64_t sequence, int64_t timeout_ms) {
  {
    const Lock lock(*memory_, site, call, sequence);
    Slot& slot = memory_->slots()[site.rank];
    slot.call_hash = call.hash();
    slot.call.set(call.text());
  }
  meet(site, call, sequence, timeout_ms);
}

void Board::finish(const CallSite& site, const Call& call, uint64_t sequence) {
  const Lock lock(*memory_, site, call, sequence);
  memory_->slots()[site.rank].finished = sequence;
}

void Board::meet(const CallSite& site, const Call& call, uint64_t sequence, int64_t timeout_ms) {
  uint64_t phase = 0;
  {
    const Lock lock(*memory_, site, call, sequence);
    phase = ++memory_->slots()[site.rank].phase;
    if (memory_->failure == Failure::None && ++memory_->arrived == memory_->size) {
      memory_->arrived = 0;
      const std::string difference = disagreement(site, phase);
      if (difference.empty())
        memory_->released = phase;
      else
        fail(difference);
      wake();
    }
  }
  wait(site, call, sequence, phase, timeout_ms);
}

void Board::wait(const CallSite& site, const Call& call, uint64_t sequence, uint64_t phase, int64_t timeout_ms) {
  const auto begin = Clock::now();
  for (const auto until = begin + std::chrono::microseconds(spin_us_);
       memory_->released < phase && Clock::now() < until;)
    for (int i = 0; i < 32 && memory_->released < phase; ++i) pause();
  while (true) {
    const uint32_t seen = memory_->wakes;
    if (memory_->released >= phase) return;
    if (memory_->failure != Failure::None) {
      if (memory_->released >= phase) return;  // released before the failure: all go on
      throw_failed(site, call, sequence);
    }
    const int64_t waited_ms = elapsed_ms(begin);
    if (memory_->left > 0 || waited_ms >= std::min(kLookMs, timeout_ms)) {
      const Lock lock(*memory_, site, call, sequence);
      if (memory_->released >= phase || memory_->failure != Failure::None) continue;
      std::string cause = lost(site, phase, waited_ms);
      if (cause.empty() && waited_ms >= timeout_ms) {
        cause = disagreement(site, phase);
        if (cause.empty()) cause = silence(site, phase, timeout_ms, "", -1);
      }
      if (!cause.empty()) {
        fail(cause);
        continue;
      }
    }
    const int64_t sleep_ms = std::clamp<int64_t>(timeout_ms - waited_ms, 1, kLookMs);
    const timespec duration = {.tv_sec = 0, .tv_nsec = sleep_ms * 1'000'000};
    syscall(SYS_futex, &memory_->wakes, FUTEX_WAIT, seen, &duration, nullptr, 0);
  }
}

// Whether those who have arrived in this phase made the same call; names the first two that did not. Under the lock.
std::string Board::disagreement(const CallSite& site, uint64_t phase) const {
  const Slot* first = nullptr;
  int first_rank = 0;
  for (int r = 0; r < memory_->size; ++r) {
    const Slot& slot = memory_->slots()[r];
    if (slot.phase != phase) continue;
    const int rank = site.ranks[static_cast<size_t>(r)];
    if (!first) {
      first = &slot;
      first_rank = rank;
    } else if (slot.call_hash != first->call_hash) {
      return disagreement_text(first_rank, first->call.get(), rank, slot.call.get());
    }
  }
  return "";
}

// Why a rank makes no more calls; "" while it may. Under the lock.
std::string Board::why_gone(int rank) {
  const Slot& slot = memory_->slots()[rank];
  if (slot.left) return "it has closed its communicators";
  return watches_[static_cast<size_t>(rank)].why_gone(slot.process);
}

// The first rank that has not arrived and will not: it has left, or its process is gone or stopped. Under the lock.
std::string Board::lost(const CallSite& site, uint64_t phase, int64_t waited_ms) {
  for (int r = 0; r < memory_->size; ++r) {
    const Slot& slot = memory_->slots()[r];
    if (slot.phase >= phase) continue;
    if (const std::string why = why_gone(r); !why.empty()) return silence(site, phase, waited_ms, why, r);
  }
  return "";
}

// lost_rank: name this rank only, as the others may just be slow; -1: all that have not arrived.
std::string Board::silence(const CallSite& site, uint64_t phase, int64_t waited_ms, const std::string& why,
                           int lost_rank) const {
  std::vector<Silence> silent;
  uint64_t others_min = UINT64_MAX, others_max = 0;
  for (int r = 0; r < memory_->size; ++r) {
    const Slot& slot = memory_->slots()[r];
    if (lost_rank < 0 ? slot.phase < phase : r == lost_rank) {
      silent.push_back({site.ranks[static_cast<size_t>(r)], slot.finished});
    } else {
      others_min = std::min(others_min, slot.finished);
      others_max = std::max(others_max, slot.finished);
    }
  }
  return silence_text(silent, others_min, others_max, waited_ms, why);
}

void Board::fail(const std::string& cause) {
  if (memory_->failure != Failure::None) return;
  memory_->cause.set(cause);
  memory_->failure = Failure::Cause;
  wake();
}

void Board::wake() {
  ++memory_->wakes;
  syscall(SYS_futex, &memory_->wakes, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Board::throw_failed(const CallSite& site, const Call& call, uint64_t sequence) const {
  const std::string text = error_text(site, call, sequence, memory_->cause.get());
  if (memory_->failure == Failure::Abort) throw AbortedError(text);
  throw CommError(text);
}

// Under the lock.
void Board::fail_if_gone(const CallSite& site, uint64_t sequence, int64_t waited_ms) {
  for (int r = 0; r < memory_->size && memory_->failure == Failure::None; ++r) {
    const std::string why = memory_->slots()[r].finished < sequence ? why_gone(r) : "";
    if (!why.empty()) fail(silence(site, 0, waited_ms, why, r));
  }
}

void Board::look(const CallSite& site, const Call& call, uint64_t sequence, int64_t waited_ms) {
  if (memory_->failure == Failure::None) {
    const Lock lock(*memory_, site, call, sequence);
    fail_if_gone(site, sequence, waited_ms);
  }
  if (memory_->failure != Failure::None) throw_failed(site, call, sequence);
}

void Board::throw_failure(const CallSite& site, const Call& call, uint64_t sequence, const std::string& transfer_error,
                          int64_t waited_ms, int64_t grace_ms) {
  const auto begin = Clock::now();
  // The kernel closes a dying process's connections some time before it counts as dead.
  while (memory_->failure == Failure::None) {
    const uint32_t seen = memory_->wakes;
    {
      const Lock lock(*memory_, site, call, sequence);
      fail_if_gone(site, sequence, waited_ms + elapsed_ms(begin));
      if (elapsed_ms(begin) >= grace_ms) fail(transfer_error);
    }
    const timespec duration = {.tv_sec = 0, .tv_nsec = 10'000'000};
    if (memory_->failure == Failure::None) syscall(SYS_futex, &memory_->wakes, FUTEX_WAIT, seen, &duration, nullptr, 0);
  }
  throw_failed(site, call, sequence);
}

void Board::abort(int global_rank, const std::string& reason) {
  const Lock lock(*memory_);
  if (!lock.is_held()) return;  // a stopped rank has it; who waits finds that out
  if (memory_->failure != Failure::None) return;
  memory_->cause.set(concat("rank ", global_rank, " aborted: ", reason));
  memory_->failure = Failure::Abort;
  wake();
}

void Board::leave(int rank) {
  const Lock lock(*memory_);
  if (!lock.is_held()) return;  // a stopped rank has it; who waits finds that out
  if (memory_->slots()[rank].left) return;
  memory_->slots()[rank].left = true;
  ++memory_->left;
  wake();
}

}  // namespace sfsdp::comm
