// SPDX-License-Identifier: BSD-3-Clause
// A save meets a fault at each of its system calls in turn. This file defines write, fsync and their like for the whole
// test program: they call the kernel, except below a folder where a test has told them to fail.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <stdio.h>   // NOLINT(modernize-deprecated-headers): renameat2
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/disk_model.h"
#include "sfsdp/testing/forwarding.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/saver.h"
#include "sfsdp/train/checkpoint/store.h"

namespace {

enum class Fault : uint8_t {
  None,
  Kill,        // before the call
  TornWrite,   // half of the bytes are written, then the process is killed
  ShortWrite,  // half of the bytes are written, and that is returned
  FullDisk,    // ENOSPC for this and all later calls that need room
  Eio,
  Wait,  // until the ranks have told each other of their progress twice
  Die,   // the rank alone: this and all its later calls do nothing
};

struct Plan {
  Fault fault = Fault::None;
  int rank = 0, call = 0;
  bool no_exchange = false;    // as a file system without RENAME_EXCHANGE
  bool in_background = false;  // the saves
  // Writes past the page cache are done, from whole pages; or refused when asked for, or at the write.
  enum class Direct : uint8_t { Taken, NotAsked, NotWritten } direct = Direct::Taken;
};

constexpr int kRanks = 2;
Plan doomed;
std::array<std::atomic<int>, kRanks> calls;
std::atomic<bool> armed = false;
std::string folder_of_calls;  // what lies elsewhere is not counted

// What a loss of power at each call of a save may leave, with the newest step that had been reported by then.
struct Moment {
  int64_t reported = 0;
  sfsdp::testing::DiskModel::Found found;
};
std::atomic<sfsdp::testing::DiskModel*> disk = nullptr;  // set: calls are told to it
std::mutex moments_mutex;
std::vector<Moment> moments;
std::atomic<int64_t> reported = 0;

std::string path_of(int fd) {
  char path[4096];
  const ssize_t size = ::readlink(sfsdp::concat("/proc/self/fd/", fd).c_str(), path, sizeof(path));
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}
// Whose call it is, -1: nobody's. Rank 1 makes its own file alone.
int rank_of(const std::string& path) {
  if (!armed && !disk) return -1;
  if (path != folder_of_calls && !path.starts_with(folder_of_calls + "/")) return -1;
  return path.find("/rank-00001") != std::string::npos ? 1 : 0;
}

void lose_power() {
  const std::lock_guard lock(moments_mutex);
  for (auto& found : disk.load()->losses()) moments.push_back({reported, std::move(found)});
}

// The model to tell of a call on `path`; null: none is told.
sfsdp::testing::DiskModel* told_of(const std::string& path) { return rank_of(path) < 0 ? nullptr : disk.load(); }

std::atomic<int> direct_writes = 0;
// As disks do, which a folder in memory does not.
bool refuses(int fd, const void* bytes, size_t size) {
  if ((syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT) == 0) return false;
  const auto offset = static_cast<size_t>(::lseek(fd, 0, SEEK_CUR));
  const bool taken =
      doomed.direct == Plan::Direct::Taken && (reinterpret_cast<uintptr_t>(bytes) | size | offset) % 4096 == 0;
  direct_writes += taken;
  if (!taken) errno = EINVAL;
  return !taken;
}

std::atomic<int> told = 0;
std::atomic<bool> dead = false;  // the rank that is to die

bool needs_room(const char* call) {
  const std::string_view name = call;
  return name == "write" || name == "mkdir" || name == "open";
}

// Counts the call; the fault that it is to meet.
Fault next_fault(const char* call, const std::string& path) {
  const int rank = rank_of(path);
  if (rank >= 0 && disk) lose_power();
  if (!armed || rank < 0) return Fault::None;
  const int number = ++calls[static_cast<size_t>(rank)];
  if (rank != doomed.rank) return Fault::None;
  if (doomed.fault == Fault::Die) {
    if (number >= doomed.call) dead = true;
    return dead ? Fault::Eio : Fault::None;
  }
  if (doomed.fault == Fault::FullDisk) return number >= doomed.call && needs_room(call) ? Fault::FullDisk : Fault::None;
  return number == doomed.call ? doomed.fault : Fault::None;
}

[[noreturn]] void die() {
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  std::abort();
}

// True: the call is not to be made, and fails.
bool fails(const char* call, const std::string& path) {
  const Fault fault = next_fault(call, path);
  if (fault == Fault::Kill) die();
  if (fault == Fault::FullDisk) errno = ENOSPC;
  if (fault == Fault::Eio) errno = EIO;
  return fault == Fault::FullDisk || fault == Fault::Eio;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  if (!armed && !disk) return syscall(SYS_write, fd, bytes, size);
  const std::string path = path_of(fd);
  if (rank_of(path) >= 0 && refuses(fd, bytes, size)) return -1;
  const Fault fault = next_fault("write", path);
  if (fault == Fault::Kill) die();
  if (fault == Fault::FullDisk || fault == Fault::Eio) {
    errno = fault == Fault::Eio ? EIO : ENOSPC;
    return -1;
  }
  if (fault == Fault::Wait)
    for (int seen = told; seen < 2; seen = told) told.wait(seen);
  if (fault == Fault::ShortWrite || fault == Fault::TornWrite) size = (size + 1) / 2;
  const ssize_t written = syscall(SYS_write, fd, bytes, size);
  if (fault == Fault::TornWrite) die();
  if (auto* model = told_of(path)) model->wrote(path);
  return written;
}

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const value = va_arg(rest, void*);
  va_end(rest);
  if (command == F_SETFL && (reinterpret_cast<intptr_t>(value) & O_DIRECT) != 0 &&
      doomed.direct == Plan::Direct::NotAsked) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fcntl, fd, command, value));
}

int fsync(int fd) {
  if (!armed && !disk) return static_cast<int>(syscall(SYS_fsync, fd));
  const std::string path = path_of(fd);
  if (fails("fsync", path)) return -1;
  if (auto* model = told_of(path)) model->synced(path);
  return 0;  // nobody pulls a plug here
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  const bool creates = (flags & O_CREAT) != 0, is_there = creates && ::access(path, F_OK) == 0;
  if (creates && fails("open", path)) return -1;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  auto* model = fd >= 0 && creates ? told_of(path) : nullptr;
  if (model && !is_there) model->made(path, /*is_folder=*/false);
  if (model && is_there) model->wrote(path);  // O_TRUNC
  return fd;
}

int rename(const char* from, const char* to) noexcept {
  if (fails("rename", from)) return -1;
  const auto done = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
  if (auto* model = done == 0 ? told_of(from) : nullptr) model->renamed(from, to);
  return static_cast<int>(done);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (doomed.no_exchange) {
    errno = EINVAL;
    return -1;
  }
  if (fails("rename", from)) return -1;
  const auto done = syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (auto* model = done == 0 ? told_of(from) : nullptr) model->exchanged(from, to);
  return static_cast<int>(done);
}

int unlink(const char* path) noexcept {
  if (fails("unlink", path)) return -1;
  const auto done = syscall(SYS_unlink, path);
  if (auto* model = done == 0 ? told_of(path) : nullptr) model->removed(path);
  return static_cast<int>(done);
}

int rmdir(const char* path) noexcept {
  if (fails("rmdir", path)) return -1;
  const auto done = syscall(SYS_rmdir, path);
  if (auto* model = done == 0 ? told_of(path) : nullptr) model->removed(path);
  return static_cast<int>(done);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (fails("mkdir", path)) return -1;
  const auto done = syscall(SYS_mkdir, path, mode);
  if (auto* model = done == 0 ? told_of(path) : nullptr) model->made(path, /*is_folder=*/true);
  return static_cast<int>(done);
}

}  // extern "C"

namespace sfsdp::train::checkpoint::crash_test {
namespace {

namespace fs = std::filesystem;
using testing::DiskModel;
using testing::MemoryFolder;

constexpr TestMesh kMesh{2, 1};
constexpr int64_t kKeep = 2;

SaveResult save(Saver& saver, int64_t rank, int64_t step, int64_t salt, bool in_background = false) {
  const TestState state(kMesh, rank, salt);
  SaveRequest request;
  request.pieces = state.pieces();
  request.about.run.step = step;
  request.about.run.tokens = salt;
  request.about.world_size = request.about.data_ranks = kMesh.ranks();
  request.in_background = in_background;
  saver.start(std::move(request));
  return *saver.wait();
}

// Two ranks, each with a saver; rank 0 holds the folder.
void with_savers(const std::string& folder, const std::function<void(Saver&, int rank)>& body) {
  testing::run_ranks(kRanks, [&](comm::CommWorld& world) {
    Store store(folder);
    if (world.rank() == 0) store.lock();
    Saver saver(store, world.group("checkpoint", {0, 1}), kKeep);
    body(saver, world.rank());
  });
}

// What a child tells of its life: a line for each save, and how many calls its ranks made.
void tell(int pipe, const std::string& line) { syscall(SYS_write, pipe, line.data(), line.size()); }

// Saves `step` under the plan, and another step without faults after it.
[[noreturn]] void live(const std::string& folder, const Plan& faults, int64_t step, int pipe) {
  try {
    with_savers(folder, [&](Saver& saver, int rank) {
      if (rank == 0) {
        folder_of_calls = folder;
        doomed = faults;
        armed = true;
      }
      while (!armed) std::this_thread::yield();
      const SaveResult result = save(saver, rank, step, step + 100, faults.in_background);
      if (rank == 0) {
        armed = false;
        tell(pipe, result.failure.empty()
                       ? concat("saved ", step, "\n")
                       : concat("failed ", result.failure.substr(0, result.failure.find('\n')), "\n"));
        tell(pipe, concat("calls ", calls[0].load(), " ", calls[1].load(), "\n"));
      }
      const SaveResult after = save(saver, rank, step + 1, step + 101, faults.in_background);
      if (rank == 0) tell(pipe, after.failure.empty() ? concat("saved ", step + 1, "\n") : after.failure);
    });
  } catch (const std::exception& error) {
    tell(pipe, error.what());
  }
  ::_exit(0);
}

struct Life {
  std::vector<std::string> lines;
  bool killed = false;
};

Life run_child(const std::string& folder, const Plan& faults, int64_t step) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    live(folder, faults, step, ends[1]);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  Life life{split(text, '\n'), WIFSIGNALED(status)};
  CHECK((life.killed || status == 0));
  return life;
}

// The next run: takes the folder, finds a whole newest checkpoint that is no older than what was reported, and saves on.
void check_restart(const std::string& folder, int64_t reported) {
  Store store(folder);
  store.lock();
  int64_t newest = -1;
  for (const Listed& listed : store.list()) {
    CHECK((listed.state == Listed::State::Complete || listed.state == Listed::State::Leftover));
    if (listed.state != Listed::State::Complete) continue;
    newest = std::max(newest, listed.step);
    const std::string path = store.path_of(listed.step);
    CHECK(verify(*listed.manifest, path).empty());
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const TestState state(kMesh, rank, -1);
      load(*listed.manifest, path, state.pieces());
      CHECK(state.bytes() == TestState(kMesh, rank, listed.manifest->run.tokens).bytes());
    }
  }
  CHECK(newest >= reported);
}

void copy_folder(const std::string& from, const std::string& to) { fs::copy(from, to, fs::copy_options::recursive); }

// A folder with steps 1 and 2, saved and reported with salts 1 and 2.
void fill(const std::string& folder) {
  with_savers(folder, [&](Saver& saver, int rank) {
    for (int64_t step : {1, 2}) CHECK(save(saver, rank, step, step).failure == "");
  });
}

std::string errno_text(Fault fault) { return fault == Fault::Eio ? "Input/output error" : "No space left on device"; }

void crash_everywhere(int64_t step, const Plan& how) {
  const MemoryFolder root;
  fill(root / "before");
  copy_folder(root / "before", root / "dry");
  const Life dry = run_child(root / "dry", how, step);
  REQUIRE(dry.lines.size() >= 3);
  CHECK(dry.lines[0] == concat("saved ", step));
  const auto counts = split(dry.lines[1], ' ');
  int cases = 0, kills = 0, failures = 0;
  for (const Fault fault : {Fault::Kill, Fault::TornWrite, Fault::ShortWrite, Fault::FullDisk, Fault::Eio})
    for (int rank = 0; rank < kRanks; ++rank)
      for (int call = 1; call <= *parse_int(counts.at(static_cast<size_t>(rank) + 1)); ++call) {
        CAPTURE(static_cast<int>(fault));
        CAPTURE(rank);
        CAPTURE(call);
        const std::string folder = root / concat("case", cases++);
        copy_folder(root / "before", folder);
        const Life life = run_child(folder, {fault, rank, call, how.no_exchange, how.in_background, how.direct}, step);
        int64_t reported = 2;
        for (const std::string& line : life.lines) {
          if (line.starts_with("saved ")) reported = std::max(reported, *parse_int(line.substr(6)));
          if (!line.starts_with("failed ")) continue;
          ++failures;
          CHECK(line.find(errno_text(fault)) != std::string::npos);
          CHECK(line.find(folder) != std::string::npos);
        }
        if (fault == Fault::Kill) CHECK(life.killed);
        if (fault == Fault::ShortWrite) CHECK(life.lines[0] == concat("saved ", step));
        if (!life.killed) CHECK(reported == step + 1);  // a failed save does not harm the next one
        kills += life.killed;
        check_restart(folder, reported);
        fs::remove_all(folder);
      }
  MESSAGE(cases, " faults, ", kills, " kills, ", failures, " failed saves");
  CHECK(kills >= cases / 5);
  CHECK(failures >= cases / 8);
}

}  // namespace

TEST_CASE("crash: a new step, with a fault at each call of its save and of the removal of an old one") {
  SUBCASE("waited for") { crash_everywhere(3, {}); }
  SUBCASE("in the background") { crash_everywhere(3, {.in_background = true}); }
  SUBCASE("in the background, through the page cache") {
    crash_everywhere(3, {.in_background = true, .direct = Plan::Direct::NotWritten});
  }
}

TEST_CASE("crash: a step that is saved again, with a fault at each call") {
  SUBCASE("names are exchanged") { crash_everywhere(2, {}); }
  SUBCASE("the file system cannot exchange names") { crash_everywhere(2, {.no_exchange = true}); }
}

TEST_CASE("a save in the background writes the same file past the page cache, or through it where that is refused") {
  const MemoryFolder root;
  const auto file_of = [&](const char* name, const Plan& how) {
    doomed = how;
    folder_of_calls = root / name;
    direct_writes = 0;
    armed = true;
    with_savers(root / name, [&](Saver& saver, int rank) {
      CHECK(save(saver, rank, 1, 7, how.in_background).failure == "");
      CHECK(save(saver, rank, 1, 8, how.in_background).failure == "");  // into the same buffer
    });
    armed = false;
    doomed = {};
    for (auto& number : calls) number = 0;
    return read_text_file(root / concat(name, "/step-1/rank-00001.safetensors"), 1 << 20);
  };
  const std::string expected = file_of("waited-for", {});
  CHECK(file_of("direct", {.in_background = true}) == expected);
  const Fd probe(::open((root / "probe").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0644));
  CHECK(direct_writes == (probe ? 4 : 0));  // of two ranks, twice; no file system in memory had it before Linux 6.6
  CHECK(file_of("not asked", {.in_background = true, .direct = Plan::Direct::NotAsked}) == expected);
  CHECK(file_of("not written", {.in_background = true, .direct = Plan::Direct::NotWritten}) == expected);
  CHECK(direct_writes == 0);
}

namespace {

// Counts how often its rank has told of its progress.
class Telling : public testing::Forwarding {
 public:
  using Forwarding::Forwarding;
  void run_checked(const comm::Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    testing::Forwarding::run_checked(call, in, out);
    if (call.info().name != "checkpoint progress" || rank() != 0) return;
    ++told;
    told.notify_all();
  }
};

}  // namespace

TEST_CASE("a rank whose disk is slow tells the others so, and is not taken for lost") {
  const MemoryFolder folder;
  doomed = {Fault::Wait, 1, 3};
  told = 0;
  folder_of_calls = folder.path();
  armed = true;
  const int64_t patience_ms = 1500;  // of a collective; the write lasts two rounds of a second
  testing::run_ranks(
      kRanks,
      [&](comm::CommWorld& world) {
        Store store(folder.path());
        Saver saver(store, std::make_shared<Telling>(world.group("checkpoint", {0, 1})), kKeep);
        CHECK(save(saver, world.rank(), 1, 1).failure == "");
      },
      patience_ms);
  armed = false;
  doomed = {};
  CHECK(told >= 3);
}

namespace {

void restore(const DiskModel::Found& found, const std::string& folder) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : found.files)
    if (name.ends_with('/'))
      fs::create_directories(folder + "/" + name);
    else
      std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
}

// Saves `step` and the one after it, and takes what a loss of power may leave at each of their calls and after each report.
void lose_power_everywhere(int64_t step, const Plan& how) {
  const MemoryFolder root;
  const std::string folder = root / "c";
  fill(folder);
  DiskModel model(folder);
  folder_of_calls = folder;
  doomed = how;
  reported = 2;
  with_savers(folder, [&](Saver& saver, int rank) {
    for (const int64_t k : {step, step + 1}) {
      if (rank == 0) disk = &model;
      while (!disk) std::this_thread::yield();
      const SaveResult result = save(saver, rank, k, k + 100, how.in_background);
      CHECK(result.failure == "");
      if (rank != 0) continue;
      reported = std::max<int64_t>(reported, k);
      lose_power();
    }
    if (rank == 0) disk = nullptr;
  });
  doomed = {};
  std::set<std::pair<int64_t, std::map<std::string, std::string>>> seen;
  for (const Moment& moment : moments) {
    if (!seen.emplace(moment.reported, moment.found.files).second) continue;
    CAPTURE(moment.found.what);
    CAPTURE(moment.reported);
    const std::string left = root / concat("left-", seen.size());
    restore(moment.found, left);
    check_restart(left, moment.reported);
    fs::remove_all(left);
  }
  MESSAGE(moments.size(), " losses, ", seen.size(), " different folders");
  CHECK(seen.size() > 40);
  moments.clear();
}

}  // namespace

TEST_CASE("crash: power is lost at any call, and what was not synced with it: all of it, or any one change alone") {
  SUBCASE("a new step") { lose_power_everywhere(3, {}); }
  SUBCASE("a new step, in the background") { lose_power_everywhere(3, {.in_background = true}); }
  SUBCASE("a step again: names are exchanged") { lose_power_everywhere(2, {}); }
  SUBCASE("a step again: the file system cannot exchange names") { lose_power_everywhere(2, {.no_exchange = true}); }
}

namespace {

// A rank's calls up to its death: then it answers nobody, until all is over.
std::atomic<bool> over = false;
class Mortal : public testing::Forwarding {
 public:
  using Forwarding::Forwarding;
  void run_checked(const comm::Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    if (call.kind() == comm::CallKind::AllGather && rank() == doomed.rank && dead) {
      over.wait(false);
      throw CommError("dead");
    }
    testing::Forwarding::run_checked(call, in, out);
  }
};

// Rank `doomed.rank` dies at call `doomed.call`, the other one lives on and finds it gone.  returns: the newest step reported
int64_t save_with_a_death(const std::string& folder, const Plan& faults) {
  const int64_t patience_ms = 300;
  doomed = faults;
  folder_of_calls = folder;
  dead = over = false;
  for (auto& number : calls) number = 0;
  int64_t newest = 2;
  testing::run_ranks(
      kRanks,
      [&](comm::CommWorld& world) {
        Store store(folder);
        if (world.rank() == 0) {
          store.lock();
          armed = true;
        }
        while (!armed) std::this_thread::yield();
        Saver saver(store, std::make_shared<Mortal>(world.group("checkpoint", {0, 1})), kKeep);
        const SaveResult result = save(saver, world.rank(), 3, 103);
        if (world.rank() == doomed.rank && dead) return;
        if (world.rank() == 0 && result.failure.empty()) newest = 3;
        over = true;
        over.notify_all();
      },
      patience_ms);
  armed = false;
  doomed = {};
  return newest;
}

}  // namespace

TEST_CASE("crash: a rank dies at any call of a save while the other lives") {
  const MemoryFolder root;
  fill(root / "before");
  for (int rank = 0; rank < kRanks; ++rank)
    for (int call = 1;; ++call) {
      CAPTURE(rank);
      CAPTURE(call);
      const std::string folder = root / "case";
      copy_folder(root / "before", folder);
      const int64_t newest = save_with_a_death(folder, {Fault::Die, rank, call});
      check_restart(folder, newest);
      fs::remove_all(folder);
      if (!dead) {  // it has fewer calls
        CHECK(newest == 3);
        CHECK(call > (rank == 0 ? 12 : 4));
        break;
      }
    }
}

}  // namespace sfsdp::train::checkpoint::crash_test
