// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/zip_archive.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/zip_bytes.h"

namespace sfsdp::exported::zip_archive_test {
namespace {

using testing::zip_of;
using testing::ZipParts;

std::string write(const std::string& bytes) {
  static const std::string path =
      concat(std::filesystem::temp_directory_path().string(), "/sfsdp-zip-", getpid(), ".pt2");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string refusal(const std::string& bytes) {
  try {
    const ZipArchive archive = ZipArchive::open(write(bytes));
    for (const ZipEntry& entry : archive.entries()) static_cast<void>(archive.read_text(entry, 1 << 20));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const std::string& bytes, const std::string& with) {
  CAPTURE(with);
  CHECK(refusal(bytes).find(with) != std::string::npos);
}

const ZipParts kTwo = {{"m/a", "some bytes"}, {"m/b", ""}};

TEST_CASE("a zip archive shows what was stored, whole or in parts") {
  const ZipArchive archive = ZipArchive::open(write(zip_of(kTwo)));
  REQUIRE(archive.entries().size() == 2);
  const ZipEntry* a = archive.find("m/a");
  REQUIRE(a);
  CHECK(archive.read_text(*a, 100) == "some bytes");
  std::string part(5, ' ');
  archive.read(*a, 5, std::as_writable_bytes(std::span(part)));
  CHECK(part == "bytes");
  CHECK(archive.read_text(*archive.find("m/b"), 0).empty());
  CHECK(archive.find("m/c") == nullptr);
  CHECK_THROWS_AS(static_cast<void>(archive.read_text(*a, 9)), UserError);
}

TEST_CASE("a zip archive that breaks a rule is refused by name") {
  const std::string good = zip_of(kTwo);
  CHECK(refusal(good).empty());
  const auto edited = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return bytes;
  };
  const size_t directory = good.find("PK\x01\x02"), second = good.find("PK\x01\x02", directory + 1),
               end = good.size() - 22;
  expect_refused("", "no zip file");
  expect_refused(good.substr(0, good.size() - 1), "does not end as a zip file");
  expect_refused(good + "x", "does not end as a zip file");
  expect_refused(edited(end + 4, 1), "several files");
  expect_refused(edited(end + 10, 3), "directory");
  expect_refused(edited(end + 16, 0x7f), "lies outside");
  expect_refused(edited(directory + 10, 8), "compressed");
  expect_refused(edited(8, 8), "compressed");
  expect_refused(edited(directory + 8, 1), "encrypted");
  expect_refused(edited(directory + 24, 11), "compressed");  // two sizes
  expect_refused(edited(directory + 16, 1), "CRC");
  expect_refused(edited(30 + 3 + 2, 'X'), "CRC");
  expect_refused(edited(directory + 42, 1), "another one");
  expect_refused(edited(second + 42, 0), "another one");
  expect_refused(edited(30, 'n'), "another one");
  expect_refused(edited(28, 0x7f), "reaches into");  // the extra field of the first
  expect_refused(zip_of({{"m/a", "1"}, {"m/a", "2"}}), "two entries");
  for (const char* name : {"/etc/passwd", "m/../../x", "..", "m\\x", "\xff"})
    expect_refused(zip_of({{name, ""}}), "named");
}

TEST_CASE("entries of a zip archive that show the same bytes are refused") {
  // The second entry's local header lies inside of the bytes of the first.
  const std::string inner = zip_of({{"m/b", "x"}}).substr(0, 30 + 3 + 1);
  std::string bytes = zip_of({{"m/a", inner}, {"m/b", "x"}});
  const size_t directory = bytes.find("PK\x01\x02"), second = bytes.find("PK\x01\x02", directory + 1);
  bytes[second + 42] = 30 + 3;
  expect_refused(bytes, "overlaps another");
}

TEST_CASE("a zip archive that is cut or has other bytes anywhere is read or refused, never more") {
  const std::string good = read_text_file(testing::source_dir() + "/tests/fixtures/exported/shared.pt2", 1 << 20);
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    if (i % 4 == 0)
      bytes.resize(random() % bytes.size());
    else
      for (int k = 0; k < 1 + i % 3; ++k)
        bytes[i % 2 ? bytes.size() - 1 - random() % 1500 : random() % bytes.size()] = static_cast<char>(random());
    refused += !refusal(bytes).empty();
  }
  CHECK(refused > 300);
}

}  // namespace
}  // namespace sfsdp::exported::zip_archive_test
