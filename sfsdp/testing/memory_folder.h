// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "sfsdp/base/check.h"

namespace sfsdp::testing {

// As TemporaryFolder, in memory where the system has such a place: for tests that make thousands of files.
class MemoryFolder {
 public:
  MemoryFolder() {
    const std::filesystem::path memory = "/dev/shm";
    std::error_code error;
    const bool there = std::filesystem::is_directory(memory, error);
    path_ = ((there ? memory : std::filesystem::temp_directory_path()) / "sfsdp_test_XXXXXX").string();
    SFSDP_CHECK(::mkdtemp(path_.data()) != nullptr, "no folder ", path_, " can be made");
  }
  ~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sfsdp::testing
