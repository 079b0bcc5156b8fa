// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/stop_signals.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "sfsdp/comm/thread/run_ranks.h"

namespace sfsdp::train::stop_signals_test {
namespace {

TEST_CASE("stop_signals: a signal is noted until asked, and the handlers of before come back") {
  struct sigaction before {};
  sigaction(SIGUSR1, nullptr, &before);
  {
    const StopSignals signals;
    CHECK(signals.agreed(nullptr) == 0);
    raise(SIGUSR1);
    CHECK(signals.agreed(nullptr) == SIGUSR1);
  }
  struct sigaction after {};
  sigaction(SIGUSR1, nullptr, &after);
  CHECK((after.sa_handler == before.sa_handler));
  CHECK(StopSignals().agreed(nullptr) == 0);
}

TEST_CASE("stop_signals: all ranks stop after the same step, whenever the signal comes") {
  const StopSignals signals;
  std::array<int, 4> stopped_at{};
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    for (int step = 1; step <= 100; ++step) {
      if (world.rank() == 2 && step == 3) raise(SIGTERM);
      if (signals.agreed(&world) == SIGTERM) {
        stopped_at[static_cast<size_t>(world.rank())] = step;
        return;
      }
    }
  });
  CHECK(stopped_at == std::array<int, 4>{3, 3, 3, 3});
}

// The exit status of a process that gets SIGTERM, and after `pause_ms` `second`.
int status_after(int pause_ms, int second) {
  const pid_t pid = fork();
  if (pid == 0) {
    const StopSignals signals;
    raise(SIGTERM);
    usleep(static_cast<useconds_t>(pause_ms) * 1000);
    raise(second);
    _exit(signals.agreed(nullptr) == 0 ? 1 : 75);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

TEST_CASE("stop_signals: a second SIGTERM or SIGINT ends at once, the same request passed on twice does not") {
  CHECK(WEXITSTATUS(status_after(0, SIGTERM)) == 75);
  CHECK(WTERMSIG(status_after(1100, SIGTERM)) == SIGTERM);
  CHECK(WTERMSIG(status_after(1100, SIGINT)) == SIGINT);
  CHECK(WEXITSTATUS(status_after(1100, SIGUSR1)) == 75);
}

}  // namespace
}  // namespace sfsdp::train::stop_signals_test
