// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/stop_signals.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <vector>

#include "sfsdp/comm/same_texts.h"

namespace sfsdp::train {
namespace {

// What a handler may touch: lock-free atomics. Process-global, as signals are.
std::atomic<int> noted = 0;           // the last signal
std::atomic<int64_t> ending_ms = -1;  // when the first SIGTERM or SIGINT came
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1000} + time.tv_nsec / 1'000'000;
}

void note(int signal) {
  constexpr int64_t kSameRequestMs = 1000;
  const int saved = errno;
  noted = signal;
  if (signal != SIGUSR1) {
    const int64_t now = now_ms();
    int64_t first = -1;
    if (!ending_ms.compare_exchange_strong(first, now) && now - first >= kSameRequestMs) {
      std::signal(signal, SIG_DFL);
      raise(signal);  // takes effect when this handler returns
    }
  }
  errno = saved;
}

}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  ending_ms = -1;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &action, &before_[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &before_[i], nullptr);
}

int StopSignals::agreed(comm::CommWorld* world) const {
  const auto mine = static_cast<uint64_t>(noted.load());
  if (!world) return static_cast<int>(mine);
  const std::vector<uint64_t> all = comm::gather_numbers(*world, {mine}, "signals to stop");
  return static_cast<int>(*std::ranges::max_element(all));
}

}  // namespace sfsdp::train
