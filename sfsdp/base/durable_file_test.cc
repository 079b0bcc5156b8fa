// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/durable_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::durable_file_test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("durable_file: a file is replaced as a whole, and nothing else is left") {
  const testing::TemporaryFolder folder;
  write_atomically(folder / "a", "first, longer");
  write_atomically(folder / "a", "second");
  CHECK(text_of(folder / "a") == "second");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("durable_file: what cannot be written says file, reason and cure, and leaves the old one") {
  const testing::TemporaryFolder folder;
  write_atomically(folder / "a", "old");
  CHECK_THROWS_WITH_AS(write_atomically(folder / "none/a", "x"),
                       (folder / "none/a.tmp: cannot be made: No such file or directory\n"
                                 "  expected it, or its folder, to be there; with several hosts all ranks must see one")
                           .c_str(),
                       UserError);
  fs::create_symlink("a", folder / "a.tmp");  // would be written through
  CHECK_THROWS_WITH_AS(write_atomically(folder / "a", "x"), doctest::Contains("a.tmp: cannot be made: "), UserError);
  CHECK(text_of(folder / "a") == "old");

  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const std::string text = "x";
  CHECK_THROWS_WITH_AS(write_file(full.get(), std::as_bytes(std::span(text)), 0, "F"),
                       "F: cannot be written: No space left on device\n  expected room on its disk", UserError);
  CHECK_THROWS_WITH_AS(sync_file(-1, "F"), doctest::Contains("F: cannot be brought to the disk: "), UserError);
  folder.write("kept/file", "");
  fs::create_directory(folder / "new");
  CHECK_THROWS_WITH_AS(rename_file(folder / "new", folder / "kept"),
                       doctest::Contains("Directory not empty\n  expected nothing of that name, or an empty folder"),
                       UserError);
  rename_file(folder / "kept", folder / "new");  // an empty one is no obstacle
  CHECK(fs::exists(folder / "new/file"));
}

}  // namespace sfsdp::durable_file_test
