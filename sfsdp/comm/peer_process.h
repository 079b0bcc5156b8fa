// SPDX-License-Identifier: BSD-3-Clause
// Whether the process of another rank on this host still runs, as /proc has it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace sfsdp::comm {

// How long a process may be stopped: shells and debuggers stop one for a moment.
inline constexpr std::chrono::seconds kMostStopped{2};

struct PeerProcess {
  int32_t pid = 0;           // 0: not known
  uint64_t start_ticks = 0;  // tells a process from a later one of the same number

  static PeerProcess of_this();
  bool is_stopped() const;  // at this moment
};

// Looked at again and again by one rank, which waits for the process. Its state is since when that was seen stopped.
class PeerWatch {
 public:
  // "its process 4711 is gone", or "… is stopped, by SIGSTOP or a debugger" once it has been for kMostStopped; "" while it
  // runs, is this one, or is not known.
  std::string why_gone(const PeerProcess& process);

 private:
  std::optional<std::chrono::steady_clock::time_point> stopped_since_;
};

// " is stopped, by SIGSTOP or a debugger", after the process or the rank.
inline constexpr const char* kIsStopped = " is stopped, by SIGSTOP or a debugger";

}  // namespace sfsdp::comm
