// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/board.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "sfsdp/testing/comm_suite.h"

namespace sfsdp::comm::board_test {
namespace {

using testing::comm_error_of;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string board_path() { return "/dev/shm/sfsdp-board-test-" + std::to_string(getpid()); }

// Process `rank` of two enters `calls` calls, then waits for a signal.
pid_t fork_peer(const std::string& path, int rank, uint64_t calls) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const auto board = Board::open_file(path, 2);
  board->claim(rank);
  const CallSite site{"dp_shard", {0, 1}, rank, 2};
  for (uint64_t sequence = 1; sequence <= calls; ++sequence) {
    board->enter(site, barrier_call({"%b", ""}), sequence, 60000);
    board->finish(site, barrier_call({"%b", ""}), sequence);
  }
  pause();
  _exit(0);
}

TEST_CASE("board: a killed process is named by those who wait for it") {
  const std::string path = board_path();
  const auto board = Board::create_file(path, 2);
  board->claim(0);
  const pid_t peer = fork_peer(path, 1, 2);
  const CallSite site{"dp_shard", {0, 1}, 0, 2};
  for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
    board->enter(site, barrier_call({"%b", ""}), sequence, 60000);
    board->finish(site, barrier_call({"%b", ""}), sequence);
  }
  std::filesystem::remove(path);
  kill(peer, SIGKILL);
  const auto killed = Clock::now();
  const std::string error = comm_error_of([&] { board->enter(site, barrier_call({"%b", ""}), 3, 60000); });
  CHECK(seconds_since(killed) < 20);  // of 60 until the timeout; docs/faults.md: 0.1
  CHECK(error.find(
            "CommError on rank 0 of 2: barrier %b over dp_shard, sequence 3, 0 bytes\n  no answer from rank 1 in ") ==
        0);
  CHECK(error.find(": its process " + std::to_string(peer) + " is gone; it finished sequence ") != std::string::npos);
  CHECK(error.find(", all others 2; read rank 1's log") != std::string::npos);
  waitpid(peer, nullptr, 0);
}

TEST_CASE("board: a stopped process is named, one that goes on in time is waited for") {
  const std::string path = board_path();
  const auto board = Board::create_file(path, 2);
  board->claim(0);
  const pid_t peer = fork_peer(path, 1, 2);
  const CallSite site{"dp_shard", {0, 1}, 0, 2};
  const auto enter = [&](uint64_t sequence) { board->enter(site, barrier_call({"%b", ""}), sequence, 60000); };
  enter(1);
  kill(peer, SIGSTOP);
  const pid_t waker = fork();
  if (waker == 0) {
    usleep(500'000);
    kill(peer, SIGCONT);
    _exit(0);
  }
  enter(2);
  std::filesystem::remove(path);
  waitpid(waker, nullptr, 0);
  kill(peer, SIGSTOP);
  const auto stopped = Clock::now();
  const std::string error = comm_error_of([&] { enter(3); });
  CHECK(seconds_since(stopped) < 20);  // of 60 until the timeout; docs/faults.md: 3
  CHECK(error.find(": its process " + std::to_string(peer) + " is stopped, by SIGSTOP or a debugger; it finished") !=
        std::string::npos);
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

// The transfer runs for longer than the look at the peers.
TEST_CASE("board: who finds a peer stopped or gone during a transfer says for how long it has waited") {
  for (const int signal : {SIGSTOP, SIGKILL}) {
    const std::string path = board_path();
    const auto board = Board::create_file(path, 2);
    board->claim(0);
    const Call call = barrier_call({"%b", ""});
    const pid_t peer = fork();
    if (peer == 0) {
      try {
        const auto own = Board::open_file(path, 2);
        own->claim(1);
        own->enter({"dp_shard", {0, 1}, 1, 2}, call, 1, 60000);
        for (;;) raise(signal);  // in no call, so that it does not hold the mutex; again if a shell that ends wakes it
      } catch (const std::exception& failure) {
        std::fprintf(stderr, "the peer fails: %s\n", failure.what());
      }
      _exit(3);
    }
    const CallSite site{"dp_shard", {0, 1}, 0, 2};
    board->enter(site, call, 1, 60000);
    std::filesystem::remove(path);
    const std::string error = comm_error_of([&] {
      if (signal == SIGKILL) board->throw_failure(site, call, 2, "the connection broke", 700, 5000);
      const auto begin = Clock::now();
      for (; seconds_since(begin) < 60; usleep(20'000)) board->look(site, call, 2, 2345);
    });
    CAPTURE(error);
    const std::string begin = "no answer from rank 1 in ";
    const size_t at = error.find(begin);
    REQUIRE(at != std::string::npos);
    CHECK(error.find(signal == SIGKILL ? " is gone;" : " is stopped,") != std::string::npos);
    const int waited_ms = std::atoi(error.c_str() + at + begin.size());
    CHECK((signal == SIGKILL ? waited_ms >= 700 : waited_ms == 2345));
    kill(peer, SIGKILL);
    waitpid(peer, nullptr, 0);
  }
}

// Somewhere in its calls, so in some of the rounds while it holds the mutex.
TEST_CASE("board: a process that is stopped at any point is named") {
  for (int round = 0; round < 3; ++round) {
    const std::string path = board_path();
    const auto board = Board::create_file(path, 2);
    board->claim(0);
    const pid_t peer = fork_peer(path, 1, UINT64_MAX);
    const CallSite site{"dp_shard", {0, 1}, 0, 2};
    const pid_t stopper = fork();
    if (stopper == 0) {
      usleep(30'000 + static_cast<useconds_t>(round) * 7'777);
      kill(peer, SIGSTOP);
      _exit(0);
    }
    const std::string error = comm_error_of([&] {
      for (uint64_t sequence = 1;; ++sequence) {
        board->enter(site, barrier_call({"%b", ""}), sequence, 60000);
        board->finish(site, barrier_call({"%b", ""}), sequence);
      }
    });
    std::filesystem::remove(path);
    CAPTURE(error);
    CHECK(error.find("CommError on rank 0 of 2: barrier %b over dp_shard, sequence ") == 0);
    CHECK(error.find("no answer from rank 1") != std::string::npos);
    CHECK(error.find(": its process " + std::to_string(peer) + " is stopped, by SIGSTOP or a debugger; ") !=
          std::string::npos);
    kill(peer, SIGKILL);
    waitpid(peer, nullptr, 0);
    waitpid(stopper, nullptr, 0);
  }
}

// Reaches into the board's memory, which begins with the mutex: to be stopped inside its few instructions is rare.
TEST_CASE("board: a process that is stopped while it holds the mutex is named, with the collective that waits for it") {
  const std::string path = board_path();
  const auto board = Board::create_file(path, 2);
  board->claim(0);
  int finished[2];  // by this rank, so that it needs the mutex no more for call 1
  REQUIRE(pipe(finished) == 0);
  const pid_t peer = fork();
  if (peer == 0) {
    const auto own = Board::open_file(path, 2);
    own->claim(1);
    const CallSite site{"dp_shard", {0, 1}, 1, 2};
    own->enter(site, barrier_call({"%b", ""}), 1, 60000);
    own->finish(site, barrier_call({"%b", ""}), 1);
    char byte = 0;
    if (read(finished[0], &byte, 1) != 1) _exit(1);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    auto* mutex = static_cast<pthread_mutex_t*>(
        mmap(nullptr, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    pthread_mutex_lock(mutex);
    raise(SIGSTOP);
    _exit(0);
  }
  const CallSite site{"dp_shard", {0, 1}, 0, 2};
  board->enter(site, barrier_call({"%b", ""}), 1, 60000);
  board->finish(site, barrier_call({"%b", ""}), 1);
  REQUIRE(write(finished[1], "", 1) == 1);
  waitpid(peer, nullptr, WUNTRACED);
  for (const int end : finished) close(end);
  std::filesystem::remove(path);
  for (int call = 0; call < 3; ++call) {
    const std::string error = comm_error_of([&] {
      if (call == 0) board->enter(site, barrier_call({"%c", "layers.3"}), 2, 60000);
      if (call == 1) board->finish(site, barrier_call({"%c", "layers.3"}), 2);
      if (call == 2) board->look(site, barrier_call({"%c", "layers.3"}), 2, 0);
    });
    CAPTURE(error);
    CHECK(
        error.starts_with("CommError on rank 0 of 2: barrier %c over dp_shard, sequence 2, 0 bytes at layers.3\n"
                          "  no answer from rank 1 in "));
    CHECK(error.ends_with(": its process " + std::to_string(peer) +
                          " is stopped, by SIGSTOP or a debugger; it finished sequence 1; read rank 1's log"));
  }
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

TEST_CASE("board: a file that is no board is refused") {
  const std::string path = board_path();
  std::ofstream(path) << "something else";
  CHECK(comm_error_of([&] { Board::open_file(path, 2); }) ==
        "CommError: " + path + " is no board of 2 ranks of this user");
  std::filesystem::remove(path);
}

TEST_CASE("board: a file that cannot be made says why") {
  const std::string error = comm_error_of([] { Board::create_file("/nonexistent/board", 2); });
  CHECK(error == "CommError: cannot open /nonexistent/board: No such file or directory");
}

TEST_CASE("silence: several ranks are listed, many are counted") {
  CHECK(silence_text({{2, 38}}, 40, 40, 30000, "") ==
        "no answer from rank 2 in 30000 ms; it finished sequence 38, all others 40; read rank 2's log");
  CHECK(silence_text({{2, 38}, {3, 39}}, 39, 40, 5, "") ==
        "no answer from ranks 2, 3 in 5 ms; rank 2 finished sequence 38, rank 3 finished sequence 39, the others 39 to "
        "40; read rank 2's log");
  const std::string many = silence_text(std::vector<Silence>(20), 1, 1, 5, "");
  CHECK(many.find(" and 12 more in 5 ms") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::comm::board_test
