// SPDX-License-Identifier: BSD-3-Clause
// Zip files whose numbers disagree, and paths that are no files, each with the words that refuse it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/testing/damaged_archive.h"
#include "sfsdp/testing/zip_bytes.h"

namespace sfsdp::exported::damaged_zip_test {
namespace {

using testing::refusal_of;
using testing::refusal_of_file;

// Two entries, the first with its CRC and sizes in a record after the bytes.
struct Zip {
  std::string bytes;
  size_t second = 0, directory = 0, row = 0, end = 0;  // places of headers

  Zip() {
    bytes = testing::zip_of({{"m/a", "some bytes"}, {"m/b", "others"}});
    const std::string record = std::string("PK\x07\x08") + bytes.substr(14, 4) + bytes.substr(18, 8);
    bytes.insert(30 + 3 + 10, record);
    bytes[6] = 8;
    for (size_t i = 14; i < 26; ++i) bytes[i] = 0;
    second = 30 + 3 + 10 + record.size();
    directory = bytes.find("PK\x01\x02");
    bytes[directory + 8] = 8;
    row = bytes.find("PK\x01\x02", directory + 1);
    put(row + 42, 4, second);
    end = bytes.size() - 22;
    put(end + 16, 4, directory);
  }
  Zip& put(size_t at, int width, uint64_t value) {
    std::string number;
    testing::append_number(number, value, width);
    bytes.replace(at, number.size(), number);
    return *this;
  }
};

TEST_CASE("numbers of a zip file that disagree are refused by entry") {
  CHECK(refusal_of(Zip().bytes).find("has no archive_format") == 0);  // a sound zip file
  const Zip z;
  struct Change {
    size_t at;
    int width;
    uint64_t value;
    const char* refused;
  };
  const Change changes[] = {
      {0, 4, 0, "{a} is another one than the directory says"},
      {6, 2, 9, "{a} is compressed or encrypted"},
      {8, 2, 8, "{a} is compressed or encrypted"},
      {26, 2, 4, "{a} is another one than the directory says"},
      {28, 2, 0xffff, "{a} reaches into the directory"},
      {30, 1, 'n', "{a} is another one than the directory says"},
      {30 + 3 + 10 + 4, 4, 7, "{a} has another CRC in the record after it than in the directory"},
      {z.second + 14, 4, 7, "{b} has another CRC in its header than in the directory"},
      {z.second + 18, 4, 5, "{b} has 5 bytes by its header, 6 by the directory"},
      {z.second + 22, 4, 7, "{b} has 7 bytes by its header, 6 by the directory"},
      {z.directory, 4, 0, "its directory is damaged"},
      {z.directory + 8, 2, 1, "{a} is compressed or encrypted"},
      {z.directory + 10, 2, 12, "{a} is compressed or encrypted"},
      {z.directory + 20, 4, 9, "{a} is compressed or encrypted"},
      {z.directory + 20, 8, 0x0000000b0000000b, "{a} has another CRC in the record"},
      {z.directory + 20, 4, 0xffffffff, "{a} has no ZIP64 field"},
      {z.directory + 42, 4, 0xffffffff, "{a} has no ZIP64 field"},
      {z.directory + 24, 4, 0xfffffffe, "{a} is compressed or encrypted"},
      {z.directory + 28, 2, 0, "has an entry named \"\"\n  expected names such as model/data/weights/weight_0"},
      {z.directory + 28, 2, 0xffff, "its directory is cut"},
      {z.directory + 30, 2, 0xffff, "its directory is cut"},
      {z.directory + 32, 2, 0xffff, "its directory is cut"},
      {z.directory + 42, 4, z.directory, "{a} lies outside"},
      {z.directory + 42, 4, z.second, "{a} is another one than the directory says"},
      {z.directory + 42, 4, 0x7fffffff, "{a} lies outside"},
      {z.directory + 46, 1, 0x1b, R"(has an entry named "\x1b/a")"},
      {z.directory + 46, 1, '/', R"(has an entry named "//a")"},
      {z.directory + 46, 3, 0x2f2e2e, R"(has an entry named "../")"},
      {z.directory + 46, 1, 0xff, R"(has an entry named "\xff/a")"},
      {z.directory + 46, 1, 0, R"(has an entry named "\x00/a")"},
      {z.row + 20, 8, 0xffffffffffffffff, "{b} has no ZIP64 field"},
      {z.row + 42, 4, 0, "{b} is another one than the directory says"},
      {z.end, 4, 0, "does not end as a zip file does"},
      {z.end + 4, 2, 1, "is a part of several files"},
      {z.end + 6, 2, 1, "is a part of several files"},
      {z.end + 10, 2, 0, "has no archive_format"},
      {z.end + 10, 2, 1, "its directory has 49 bytes after its last entry"},
      {z.end + 10, 2, 3, "its directory is cut"},
      {z.end + 10, 2, 0xffff, "its directory is cut"},
      {z.end + 12, 4, 0, "its directory is cut"},
      {z.end + 12, 4, 97, "its directory is cut"},
      {z.end + 12, 4, 0xffffffff, "its directory lies outside"},
      {z.end + 16, 4, 0, "its directory is damaged"},
      {z.end + 16, 4, 0xffffffff, "its directory lies outside"},
      {z.end + 20, 2, 1, "does not end as a zip file does"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.at);
    CAPTURE(change.value);
    Zip zip;
    const std::string got = refusal_of(zip.put(change.at, change.width, change.value).bytes);
    CAPTURE(got);
    std::string refused = change.refused;  // {a}: the entry m/a
    if (refused.starts_with("{")) refused = concat("entry \"m/", refused[1], '"', refused.substr(3));
    CHECK(got.find(refused) == 0);
  }
}

TEST_CASE("an entry of a zip file whose record would lie in the directory is refused") {
  Zip zip;
  zip.bytes.erase(zip.second - 16, zip.directory - zip.second + 16);  // the record of the first, and all of the second
  const size_t directory = zip.bytes.find("PK\x01\x02"), row = zip.bytes.find("PK\x01\x02", directory + 1);
  zip.bytes.erase(row, 49);
  const size_t end = zip.bytes.size() - 22;
  zip.put(end + 10, 2, 1).put(end + 12, 4, 49).put(end + 16, 4, directory);
  CHECK(refusal_of(zip.bytes).find(R"(entry "m/a" has a record that reaches into the directory)") == 0);
}

TEST_CASE("ends of a ZIP64 file that lead elsewhere are refused") {
  const Zip good;
  // At `end`: the ZIP64 end, 56 bytes, then its locator, 20 bytes.
  const auto wide = [&](uint64_t entries, uint64_t bytes, uint64_t offset, uint64_t at) {
    std::string end = "PK\x06\x06";
    testing::append_number(end, 44, 8);
    testing::append_number(end, 45 | 45 << 16, 4);
    testing::append_number(end, 0, 8);
    testing::append_number(end, entries, 8);
    for (const uint64_t number : {entries, bytes, offset}) testing::append_number(end, number, 8);
    end += "PK\x06\x07";
    testing::append_number(end, 0, 4);
    testing::append_number(end, at, 8);
    testing::append_number(end, 1, 4);
    return good.bytes.substr(0, good.end) + end + good.bytes.substr(good.end);
  };
  CHECK(refusal_of(wide(2, 98, good.directory, good.end)).find("has no archive_format") == 0);
  constexpr uint64_t kMost = 0xffffffffffffffff;
  CHECK(refusal_of(wide(2, 98, good.directory, kMost)).find("its ZIP64 end lies outside") == 0);
  CHECK(refusal_of(wide(2, 98, good.directory, good.end + 1)).find("its ZIP64 end lies outside") == 0);
  CHECK(refusal_of(wide(2, 98, good.directory, 0)).find("its ZIP64 end is none") == 0);
  CHECK(refusal_of(wide(2, kMost, good.directory, good.end)).find("its directory lies outside") == 0);
  CHECK(refusal_of(wide(2, 98, kMost, good.end)).find("its directory lies outside") == 0);
  CHECK(refusal_of(wide(kMost, 98, good.directory, good.end)).find("its directory has 18446744073709551615 entries") ==
        0);
  CHECK(refusal_of(wide(1'000'000, 98, good.directory, good.end)).find("its directory is cut") == 0);
}

TEST_CASE("a path that is no regular file, or no file, is refused and never waited for") {
  const std::string missing = testing::temporary_archive("missing.pt2"), fifo = testing::temporary_archive("fifo.pt2"),
                    folder = testing::temporary_archive("folder.pt2"), loop = testing::temporary_archive("loop.pt2"),
                    to_fifo = testing::temporary_archive("link.pt2"), to_good = testing::temporary_archive("good.pt2");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(loop, loop);
  std::filesystem::create_symlink(fifo, to_fifo);
  std::filesystem::create_symlink(testing::exported_fixture("shared"), to_good);
  CHECK(refusal_of_file(missing) ==
        "cannot be opened: No such file or directory\n  expected a file written by torch.export.save");
  CHECK(refusal_of_file(loop).find("cannot be opened: Too many levels of symbolic links") == 0);
  for (const std::string& path : {fifo, folder, to_fifo, std::string("/dev/null"), std::string("/dev/zero")})
    CHECK(refusal_of_file(path) == "is no regular file\n  expected a file written by torch.export.save");
  CHECK(refusal_of_file(to_good).empty());
  for (const std::string& path : {fifo, folder, loop, to_fifo, to_good}) std::filesystem::remove(path);
}

TEST_CASE("an archive that is written to after its headers were read gives no weights") {
  const std::string path = testing::temporary_archive("changed.pt2"),
                    bytes = testing::zip_of(testing::exported_parts("shared"));
  const auto write = [&](const std::string& text, time_t seconds) {
    std::ofstream(path, std::ios::binary) << text;
    const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  };
  write(bytes, 1'000'000);
  const Program program = read_program(path);
  const ZipEntry& entry = program.archive.entries()[program.state.front().entry];
  std::vector<std::byte> out(entry.bytes);
  program.archive.read(entry, 0, out);
  const auto read = [&] {
    try {
      program.archive.read(entry, 0, out);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string changed = concat(path, R"(: was written to before entry "shared/data/weights/weight_0" was read
  expected one file from start to end; start again)");
  write(bytes, 1'000'001);  // of the same length
  CHECK(read() == changed);
  write(bytes + "x", 1'000'000);
  CHECK(read() == changed);
  write("", 1'000'000);
  CHECK(read() == concat(path, R"(: ends within entry "shared/data/weights/weight_0")",
                         "\n  expected the whole file; copy it again"));
  std::filesystem::remove(path);
  write(bytes, 1'000'000);  // another file under its name: what is open is gone, not changed
  CHECK(read().find("ends within") != std::string::npos);
  std::filesystem::remove(path);
}

TEST_CASE("texts of an archive are shown without what a terminal obeys, and cut where a character ends") {
  CHECK(printable("größe", 100) == "größe");
  CHECK(printable("a\x1b[31m\n", 100) == R"(a\x1b[31m\x0a)");
  CHECK(printable("\xc2\x9b"
                  "31m\xe2\x80\xae\xe2\x81\xa6\xff",
                  100) == R"(\xc2\x9b31m\xe2\x80\xae\xe2\x81\xa6\xff)");
  CHECK(printable("aé", 2) == "a…");
  CHECK(printable("aé", 3) == "aé");
  CHECK(printable("", 0) == "");
  CHECK(is_printable("重み \xf0\x9f\x98\x80"));
  CHECK(!is_printable("\x7f"));
  CHECK(!is_printable("\xe4\xb8"));
}

}  // namespace
}  // namespace sfsdp::exported::damaged_zip_test
