// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/zip_writer.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exported/zip_archive.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::exported::zip_writer_test {
namespace {

TEST_CASE("zip writer: what it writes is read back, entries on 64-byte boundaries, parts together, empty ones too") {
  const testing::TemporaryFolder folder;
  const std::string large(100000, 'x');
  const std::string file = zip_in_memory([&](ZipWriter& zip) {
    zip.add("a/first", "pt2");
    zip.begin("a/parts", large.size());
    for (size_t at = 0; at < large.size(); at += 30000)
      zip.append(std::as_bytes(std::span(large).subspan(at, std::min<size_t>(30000, large.size() - at))));
    zip.add("a/empty", "");
    zip.add("a/last/of/all", std::string("\0\1\2", 3));
  });
  const ZipArchive archive = ZipArchive::open(folder.write("x.zip", file));
  REQUIRE(archive.entries().size() == 4);
  for (const ZipEntry& entry : archive.entries()) CHECK(entry.offset % 64 == 0);
  const auto text = [&](const char* name) {
    return archive.read_text(*archive.find(name), 1 << 20);
  };  // held against its CRC
  CHECK(text("a/first") == "pt2");
  CHECK(text("a/parts") == large);
  CHECK(text("a/empty").empty());
  CHECK(text("a/last/of/all") == std::string("\0\1\2", 3));
  CHECK(zip_in_memory([](ZipWriter& zip) { zip.add("a", "b"); }) ==
        zip_in_memory([](ZipWriter& zip) { zip.add("a", "b"); }));
}

TEST_CASE("zip writer: an entry has as many bytes as it was begun with") {
  CHECK_THROWS_AS(zip_in_memory([](ZipWriter& zip) {
                    zip.begin("a", 3);
                    zip.append(std::as_bytes(std::span("four", 4)));
                  }),
                  InternalError);
}

}  // namespace
}  // namespace sfsdp::exported::zip_writer_test
