// SPDX-License-Identifier: BSD-3-Clause
// How far a group of ranks has come, in memory that the launcher shares with them: it must tell a run that fails at the same
// place again and again from one that moves on, also when the ranks are killed and can say nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "sfsdp/base/fd.h"

namespace sfsdp::comm {

class ProgressPage {
 public:
  static constexpr const char* kVariable = "SFSDP_PROGRESS_FD";
  static constexpr int64_t kNoReader = -2;  // no rank has opened it: the program does not report
  static constexpr int64_t kNoStep = -1;    // opened, no step is done

  // The launcher's. throws: std::system_error
  static ProgressPage make();
  // The page of the launcher that has started this process; none if there is no launcher, or the descriptor is something
  // else. Takes the variable out of the environment, so that what this process starts does not report.
  static std::optional<ProgressPage> from_environment();

  ProgressPage(ProgressPage&&) noexcept = default;
  ProgressPage& operator=(ProgressPage&&) noexcept = default;
  ~ProgressPage() = default;

  int fd() const { return fd_.get(); }  // close-on-exec
  // By one rank, after each step: 1 after the first one of the run, also where that was before a restart.
  void report(int64_t steps) { *steps_ = steps; }
  int64_t steps() const { return *steps_; }

 private:
  struct Unmap {
    void operator()(std::atomic<int64_t>* page) const;
  };
  explicit ProgressPage(int fd);  // takes it over; steps_ is null if it cannot be mapped

  Fd fd_;
  std::unique_ptr<std::atomic<int64_t>, Unmap> steps_;
};

}  // namespace sfsdp::comm
