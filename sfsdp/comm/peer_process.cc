// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/peer_process.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "sfsdp/base/check.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;

// State letter and start time of a process; 'X' if there is none.
struct ProcessState {
  char letter = 'X';
  uint64_t start_ticks = 0;

  bool is_stopped() const { return letter == 'T' || letter == 't'; }
};

ProcessState state_of(int pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold blanks and brackets
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  ProcessState state;
  state.letter = text[name_end + 2];
  size_t at = name_end + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at != std::string::npos) state.start_ticks = std::strtoull(text.c_str() + at, nullptr, 10);
  return state;
}

}  // namespace

PeerProcess PeerProcess::of_this() {
  const int pid = getpid();
  return {pid, state_of(pid).start_ticks};
}

bool PeerProcess::is_stopped() const { return pid != 0 && state_of(pid).is_stopped(); }

std::string PeerWatch::why_gone(const PeerProcess& process) {
  if (process.pid == 0 || process.pid == getpid()) return "";
  const ProcessState state = state_of(process.pid);
  if (state.letter == 'X' || state.letter == 'Z' || state.start_ticks != process.start_ticks)
    return concat("its process ", process.pid, " is gone");
  if (!state.is_stopped()) {
    stopped_since_.reset();
    return "";
  }
  if (!stopped_since_) stopped_since_ = Clock::now();
  return Clock::now() - *stopped_since_ < kMostStopped ? "" : concat("its process ", process.pid, kIsStopped);
}

}  // namespace sfsdp::comm
