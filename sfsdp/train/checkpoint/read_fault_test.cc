// SPDX-License-Identifier: BSD-3-Clause
// A disk that cannot be read: the start ends, and another one may find the disk well. This file defines pread for the whole
// test program: it calls the kernel, except for files that a test has named.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/checkpointer.h"

namespace {

std::string unreadable;  // files whose path ends so; "": none

bool is_unreadable(int fd) {
  if (unreadable.empty()) return false;
  char path[4096];
  const ssize_t size = ::readlink(sfsdp::concat("/proc/self/fd/", fd).c_str(), path, sizeof(path));
  return std::string_view(path, size > 0 ? static_cast<size_t>(size) : 0).ends_with(unreadable);
}

struct Unreadable {
  explicit Unreadable(const std::string& ending) { unreadable = ending; }
  ~Unreadable() { unreadable.clear(); }
};

}  // namespace

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  if (is_unreadable(fd)) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, to, bytes, offset);
}

namespace sfsdp::train::checkpoint::read_fault_test {
namespace {

using testing::MemoryFolder;

struct Run {
  explicit Run(const std::string& folder, int64_t load_step = -1)
      : checkpointer(
            options_of(folder, load_step), nullptr, [this] { return state.pieces(); },
            [this](const std::string& line) { said += line + "\n"; }) {}
  static CheckpointOptions options_of(const std::string& folder, int64_t load_step) {
    CheckpointOptions options;
    options.enable = true;
    options.folder = folder;
    options.interval = 1;
    options.load_step = load_step;
    options.total_steps = 100;
    options.about.world_size = options.about.data_ranks = 1;
    return options;
  }
  TestState state{{1, 1}, 0, 1};
  std::string said;
  Checkpointer checkpointer;
};

}  // namespace

TEST_CASE("an I/O error while checkpoints are read is no damage: all stay, and a later start may read them") {
  for (const std::string file : {"rank-00000.safetensors", "manifest.json"}) {
    CAPTURE(file);
    const MemoryFolder folder;
    {
      Run run(folder / "c");
      for (const int64_t k : {1, 2}) run.checkpointer.after_step({.step = k});
    }
    {
      const Unreadable all(file);
      CHECK_THROWS_WITH_AS(Run(folder / "c").checkpointer.load(), doctest::Contains("Input/output error"),
                           PassingError);
      CHECK_THROWS_AS(Run(folder / "c", 1).checkpointer.load(), PassingError);
    }
    {
      const Unreadable newest("step-2/" + file);
      Run run(folder / "c");
      CHECK(run.checkpointer.load()->run.step == 1);
      CHECK(run.said.find("step-2 is skipped: ") != std::string::npos);
    }
    CHECK(Run(folder / "c").checkpointer.load()->run.step == 2);
  }
}

}  // namespace sfsdp::train::checkpoint::read_fault_test
