// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::token_file_test {
namespace {

using testing::TemporaryFolder;

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string error_of_open(const std::string& path) {
  try {
    TokenFile::open(path);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// Two documents of three and one ids, and an empty one between them.
std::string write_three(const TemporaryFolder& folder, uint64_t vocab_size) {
  const std::string path = folder / "00000.tok";
  TokenFileWriter writer(path, vocab_size, 0x1122334455667788, 5);
  const std::vector<int32_t> first = {1, 2, 258}, second = {7};
  writer.add(first);
  writer.add({});
  writer.add(second);
  CHECK_FALSE(std::filesystem::exists(path));
  writer.finish();
  return path;
}

TEST_CASE("a token file has the bytes that its header file describes") {
  const TemporaryFolder folder;
  const std::string bytes = bytes_of_file(write_three(folder, 300));
  using namespace std::string_literals;
  CHECK(bytes.substr(0, 48) ==
        "SFSDPTOK\2\0\0\0\2\0\0\0\4\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\x2c\1\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11"s);
  const std::string ids_and_borders = "\1\0\2\0\2\1\7\0\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"s;
  CHECK(bytes.substr(56, 40) == "\5\0\0\0\0\0\0\0"s + ids_and_borders);
  const auto little_endian = [](uint64_t number) {
    std::string eight;
    for (int i = 0; i < 8; ++i) eight += static_cast<char>(number >> (8 * i) & 0xff);
    return eight;
  };
  CHECK(bytes.substr(96) == little_endian(xxh3(ids_and_borders)));  // one block
  CHECK(bytes.substr(48, 8) ==
        little_endian(xxh3(bytes.substr(0, 48) + std::string(8, '\0') + bytes.substr(56, 8) + bytes.substr(96))));
}

TEST_CASE("a token file gives back documents, ids and their borders, two bytes wide or four") {
  for (const uint64_t vocab_size : {uint64_t{65536}, uint64_t{65537}}) {
    const TemporaryFolder folder;
    const TokenFile file = TokenFile::open(write_three(folder, vocab_size));
    CHECK(file.header().width == (vocab_size == 65536 ? 2 : 4));
    CHECK(file.header().first_document == 5);
    REQUIRE(file.documents() == 3);
    CHECK(file.document(0).size() == 3);
    CHECK(file.document(1).size() == 0);
    CHECK(file.document(2).begin == 3);
    std::vector<int32_t> ids(3);
    TokenStore("three", {file.piece()}).read(1, ids, static_cast<int64_t>(vocab_size));
    CHECK(ids == std::vector<int32_t>{2, 258, 7});
    file.verify();
  }
}

TEST_CASE("a writer that is not finished leaves nothing") {
  const TemporaryFolder folder;
  { TokenFileWriter writer(folder / "00000.tok", 10, 0, 0); }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("every cut and every flipped byte of a token file is found, when it is opened or verified") {
  const TemporaryFolder folder;
  const std::string good = bytes_of_file(write_three(folder, 300));
  for (size_t size = 0; size < good.size(); ++size)
    CHECK(error_of_open(folder.write("cut.tok", good.substr(0, size))).find("cut.tok") != std::string::npos);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    const std::string path = folder.write("bad.tok", bad);
    bool found = false;
    try {
      TokenFile::open(path).verify();
    } catch (const UserError& error) {
      found = std::string(error.what()).find("bad.tok") != std::string::npos;
    }
    CHECK_MESSAGE(found, "byte ", at);
  }
}

TEST_CASE("sizes of a token file are checked before they are used") {
  const TemporaryFolder folder;
  std::string bytes = bytes_of_file(write_three(folder, 300));
  bytes.replace(16, 8, std::string(8, '\xff'));
  CHECK(error_of_open(folder.write("huge.tok", bytes)).find("at most 2^48") != std::string::npos);
  CHECK(error_of_open(folder / "nowhere.tok").find("No such file") != std::string::npos);
  CHECK_FALSE(TokenFile::is_token_file(folder / "nowhere.tok"));
  CHECK(TokenFile::is_token_file(folder / "00000.tok"));
}

TEST_CASE("an id that the vocabulary does not have is named with its position") {
  const TemporaryFolder folder;
  std::string bytes = bytes_of_file(write_three(folder, 300));
  bytes[32] = 100, bytes[33] = 0;  // vocab_size 100, and a hash that fits: what a writer with a fault would leave
  const uint64_t hash = xxh3(bytes.substr(0, 48) + std::string(8, '\0') + bytes.substr(56, 8) + bytes.substr(96));
  std::memcpy(bytes.data() + 48, &hash, 8);
  const TokenFile file = TokenFile::open(folder.write("ids.tok", bytes));
  std::vector<int32_t> ids(4);
  CHECK_THROWS_WITH_AS(TokenStore("ids", {file.piece()}).read(0, ids, 100),
                       doctest::Contains("token 258 at position 2"), UserError);
}

TEST_CASE("dataset.json names its shards, and refuses paths and sums that are wrong") {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(write_three(folder, 300));
  const auto manifest = [&](const std::string& name, int tokens) {
    return R"({"version": 2, "tokens": )" + std::to_string(tokens) +
           R"(, "documents": 3, "vocab_size": 300, "tokenizer_hash": "1122334455667788", "shards": [{"file": ")" +
           name + R"(", "tokens": 4, "documents": 3, "content_hash": ")" + hex(file.header().content_hash) + R"("}]})";
  };
  CHECK_THROWS_WITH_AS(TokenFolder::load(folder.path()), doctest::Contains("no dataset.json"), UserError);
  folder.write("dataset.json", manifest("00000.tok", 4));
  const TokenFolder loaded = TokenFolder::load(folder.path());
  CHECK(loaded.open(0).tokens() == 4);
  folder.write("dataset.json", manifest("00000.tok", 5));
  CHECK_THROWS_WITH_AS(TokenFolder::load(folder.path()), doctest::Contains("shards of 4 ids"), UserError);
  for (const char* name : {"../00000.tok", "/etc/passwd", ".hidden", ""}) {
    folder.write("dataset.json", manifest(name, 4));
    CHECK_THROWS_WITH_AS(TokenFolder::load(folder.path()), doctest::Contains("a name inside the folder"), UserError);
  }
}

}  // namespace
}  // namespace sfsdp::train::token_file_test
