// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/dataset.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/data_files.h"
#include "sfsdp/train/data/token_file.h"

namespace sfsdp::train::dataset_test {

namespace {

std::string little_endian(const std::vector<uint32_t>& ids, int width) {
  std::string bytes;
  for (uint32_t id : ids)
    for (int i = 0; i < width; ++i) bytes += static_cast<char>(id >> (8 * i) & 0xff);
  return bytes;
}

std::vector<uint32_t> count_to(uint32_t n) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < n; ++i) ids.push_back(i);
  return ids;
}

using Ids = std::vector<int32_t>;

Ids sample(SampleSource& source, int64_t index) {
  Ids ids(static_cast<size_t>(source.seq_len()) + 1);
  source.read(index, ids);
  return ids;
}
Ids sample(SampleSource&& source, int64_t index) { return sample(source, index); }

SampleSource tokens(const std::string& path, int64_t seq_len, int64_t vocab = 70000,
                    TokenDtype dtype = TokenDtype::UInt16) {
  return open_dataset({.name = "tokens", .path = path, .seq_len = seq_len, .vocab_size = vocab, .token_dtype = dtype});
}

SampleSource headers(const std::string& path, int64_t seq_len, uint64_t seed = 0, int64_t max_bytes = 8 << 20) {
  return open_dataset({.name = "libtorch_headers",
                       .path = path,
                       .seq_len = seq_len,
                       .vocab_size = 256,
                       .max_bytes = max_bytes,
                       .seed = seed});
}

// The header of a file of llm.c's: 256 int32.
std::string llmc_header(uint32_t magic, uint32_t version, uint32_t count) {
  std::vector<uint32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return little_endian(header, 4);
}

}  // namespace

// conventions.md, Tokens: "sample i = tokens[i*L .. i*L+L] inclusive, L+1 ids ... Neighbours share one id".
TEST_CASE("sample i of a tokens file starts at i*L and shares its last id with the next sample") {
  const testing::TemporaryFolder folder;
  SampleSource dataset = tokens(folder.write("t.bin", little_endian(count_to(14), 2)), 4);
  CHECK(dataset.num_tokens() == 14);
  CHECK(sample(dataset, 0) == Ids{0, 1, 2, 3, 4});
  CHECK(sample(dataset, 1) == Ids{4, 5, 6, 7, 8});
  CHECK(sample(dataset, 2) == Ids{8, 9, 10, 11, 12});
}

// "there are N = floor((T-1)/L) samples; what is left over at the end is not read".
TEST_CASE("a file of T tokens has floor((T-1)/L) samples") {
  const testing::TemporaryFolder folder;
  for (uint32_t t = 5; t <= 20; ++t) {
    SampleSource dataset = tokens(folder.write("t.bin", little_endian(count_to(t), 2)), 4);
    CHECK(dataset.size() == (t - 1) / 4);
    CHECK(sample(dataset, dataset.size() - 1).back() == dataset.size() * 4);
  }
}

// "flat: little-endian uint16 (or uint32, training.token_dtype) token ids, no header".
TEST_CASE("ids are little-endian, of two or four bytes") {
  const testing::TemporaryFolder folder;
  CHECK(sample(tokens(folder.write("two.bin", std::string("\x01\x02\xff\x00\x34\x12", 6)), 2), 0) ==
        Ids{513, 255, 4660});
  const std::string wide = folder.write("four.bin", little_endian({1, 65536, 100000}, 4));
  CHECK(sample(tokens(wide, 2, 128256, TokenDtype::UInt32), 0) == Ids{1, 65536, 100000});
  CHECK(parse_token_dtype("uint16") == TokenDtype::UInt16);
  CHECK(parse_token_dtype("uint32") == TokenDtype::UInt32);
  CHECK_THROWS_AS(parse_token_dtype("int8"), UserError);
}

TEST_CASE("after sample N-1 of a tokens file comes sample 0 again") {
  const testing::TemporaryFolder folder;
  SampleSource dataset = tokens(folder.write("t.bin", little_endian(count_to(14), 2)), 4);  // N = 3
  CHECK(sample(dataset, 3) == Ids{0, 1, 2, 3, 4});
  CHECK(sample(dataset, 8) == Ids{8, 9, 10, 11, 12});
}

TEST_CASE("files of llm.c are told by their header") {
  const testing::TemporaryFolder folder;
  const std::string gpt2 = folder.write("a.bin", llmc_header(20240520, 1, 4) + little_endian({7, 8, 9, 50256}, 2));
  CHECK(sample(tokens(gpt2, 3), 0) == Ids{7, 8, 9, 50256});
  CHECK(sample(tokens(gpt2, 3, 70000, TokenDtype::UInt32), 0) == Ids{7, 8, 9, 50256});  // the header wins
  const std::string llama = folder.write("b.bin", llmc_header(20240801, 7, 3) + little_endian({1, 128000, 2}, 4));
  CHECK(sample(tokens(llama, 2, 128256), 0) == Ids{1, 128000, 2});
}

TEST_CASE("a file that is not as its header of llm.c says is refused") {
  const testing::TemporaryFolder folder;
  const auto refuses = [&](const std::string& bytes, const char* why) {
    CHECK_THROWS_WITH_AS(tokens(folder.write("t.bin", bytes), 1), doctest::Contains(why), UserError);
  };
  const std::string ids = little_endian({1, 2, 3}, 2);
  refuses(llmc_header(20240520, 2, 3) + ids, "with version 2\n  expected version 1");
  refuses(llmc_header(20240520, 1, 4) + ids, "has 1030 bytes\n  expected 1032; the file is cut short");
  refuses(llmc_header(20240520, 1, 2) + ids, "expected 1028; something was appended");
  refuses(llmc_header(20240520, 1, 0xffffffff) + ids, "count of 4294967295");
  refuses(llmc_header(20240801, 7, 3).substr(0, 1000), "1000 bytes\n  expected a header of 1024");
}

TEST_CASE("several files are one row of ids in the order of their names") {
  const testing::TemporaryFolder folder;
  folder.write("b.bin", little_endian({4, 5, 6}, 2));
  folder.write("a.bin", little_endian({0, 1, 2, 3}, 2));
  folder.write("c.bin", llmc_header(20240520, 1, 3) + little_endian({7, 8, 9}, 2));
  folder.write("notes.txt", "x");
  for (const std::string& path : {folder.path(), folder / "*.bin", folder / "[abc].bin"}) {
    CAPTURE(path);
    SampleSource dataset = tokens(path, 3);
    CHECK(dataset.num_tokens() == 10);
    CHECK(sample(dataset, 0) == Ids{0, 1, 2, 3});
    CHECK(sample(dataset, 1) == Ids{3, 4, 5, 6});
    CHECK(sample(dataset, 2) == Ids{6, 7, 8, 9});
    CHECK(sample(tokens(path, 9), 0) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  CHECK_THROWS_WITH_AS(tokens(folder / "*.bim", 3), doctest::Contains("no file has a name like this"), UserError);
  folder.write("empty/x.txt", "");
  CHECK_THROWS_WITH_AS(tokens(folder / "empty", 3), doctest::Contains("no such file below this folder"), UserError);
}

TEST_CASE("token files of sfsdp bring their documents, empty ones too") {
  const testing::TemporaryFolder folder;
  const auto write = [&](const std::string& name, uint64_t tokenizer, const std::vector<Ids>& documents) {
    TokenFileWriter writer(folder / name, 500, tokenizer, 0);
    for (const Ids& document : documents) writer.add(document);
    writer.finish();
    return folder / name;
  };
  const std::string a = write("a.tok", 7, {{10, 11, 12}, {}, {13}}), b = write("b.tok", 7, {{14, 15}});
  DatasetOptions options = {.path = folder / "?.tok", .seq_len = 4, .vocab_size = 500, .shuffle = Shuffle::Never};
  SampleSource plain = open_dataset(options);
  CHECK(plain.num_documents() == 4);
  CHECK(plain.num_tokens() == 6);
  CHECK(sample(plain, 0) == Ids{10, 11, 12, 13, 14});
  options.frame = [](const std::string&, uint64_t tokenizer_hash) {
    CHECK(tokenizer_hash == 7);
    return DocumentFrame{1, 2};
  };
  options.seq_len = 11;
  CHECK(sample(open_dataset(options), 0) == Ids{1, 10, 11, 12, 2, 1, 13, 2, 1, 14, 15, 2});
  options.shuffle = Shuffle::Default;  // documents, whole, in another order
  for (options.seed = 0; options.seed < 4; ++options.seed) {
    const Ids row = sample(open_dataset(options), 0);
    const auto has = [&](const Ids& part) {
      return std::search(row.begin(), row.end(), part.begin(), part.end()) != row.end();
    };
    CHECK((has({1, 10, 11, 12, 2}) && has({1, 13, 2}) && has({1, 14, 15, 2})));
  }
  options.vocab_size = 499;
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("set --model.args.vocab_size 500"), UserError);
  options.fixed_vocab = true;
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("of at least 500; export the model with one"),
                       UserError);
  options.vocab_size = 500;
  options.path = folder / "half";
  folder.write("half/00000.tok", "");
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("no dataset.json"), UserError);
  options.path = folder / "?.tok";
  write("c.tok", 8, {{3}});
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("c.tok: made by another tokenizer than"), UserError);
  folder.write("c.tok", little_endian({3}, 2));
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("token files of sfsdp and others"), UserError);
}

TEST_CASE("a changed id of a token file ends the run that reads it, whatever else it has read, and names the bytes") {
  const testing::TemporaryFolder folder;
  constexpr int32_t kIds = 2000000, kChanged = 1000000;  // 62 blocks, of which a start reads a few; not that of the id
  {
    TokenFileWriter writer(folder / "a.tok", 60000, 7, 0);
    Ids ids(kIds);
    for (int32_t i = 0; i < kIds; ++i) ids[static_cast<size_t>(i)] = i % 50000;
    writer.add(ids);
    writer.finish();
  }
  const auto open = [&] {
    return open_dataset({.path = folder / "a.tok", .seq_len = 9, .vocab_size = 60000, .shuffle = Shuffle::Never});
  };
  const auto row_of = [](int32_t id) { return id / 9; };
  CHECK(sample(open(), row_of(kChanged))[0] == row_of(kChanged) * 9 % 50000);
  std::fstream file(folder / "a.tok", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(64 + 2 * kChanged);
  file.put(static_cast<char>((kChanged % 50000 & 0xff) ^ 1));
  file.close();
  SampleSource source = open();  // no start reads all of a dataset
  CHECK(sample(source, 0) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto expect_refused = [&](int32_t id) {
    CHECK_THROWS_WITH_AS(sample(source, row_of(id)),
                         doctest::Contains("a.tok: bytes 1966144 to 2031680 are not what was written there"),
                         UserError);
  };
  expect_refused(kChanged);
  expect_refused(kChanged - 1000);  // another id of the block
  expect_refused(kChanged);
  CHECK(sample(source, 0).size() == 10);
}

TEST_CASE("more files than may be open are read all the same") {
  const testing::TemporaryFolder folder;
  const uint32_t files = 2 * TokenStore::kMaxOpen + 3;
  for (uint32_t i = 0; i < files; ++i) folder.write(concat(1000 + i, ".bin"), little_endian({i}, 2));
  SampleSource dataset = tokens(folder.path(), 1);
  for (int round = 0; round < 2; ++round)
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(files); ++i) CHECK(sample(dataset, i) == Ids{i, i + 1});
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto with = open_files();
  { const SampleSource gone = std::move(dataset); }
  CHECK(with - open_files() == static_cast<std::ptrdiff_t>(TokenStore::kMaxOpen));
}

TEST_CASE("a file that is cut or replaced while a run reads it is an error with its name") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("t.bin", little_endian(count_to(5000), 2));
  SampleSource open = tokens(path, 4), closed = tokens(path, 4);
  CHECK(sample(open, 1000) == Ids{4000, 4001, 4002, 4003, 4004});
  folder.write("t.bin", little_endian(count_to(100), 2));  // the same file, cut
  CHECK(sample(open, 0) == Ids{0, 1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(sample(open, 1000),
                       doctest::Contains((path + ": ends at byte 8000, but had 10000 when it was opened").c_str()),
                       UserError);
  CHECK_THROWS_WITH_AS(sample(closed, 0), doctest::Contains("200 bytes, but 10000 when the run began"), UserError);
}

TEST_CASE("shuffle = always gives each sample of a flat file once an epoch, in another order each") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("t.bin", little_endian(count_to(201), 2));  // N = 100
  SampleSource dataset =
      open_dataset({.path = path, .seq_len = 2, .vocab_size = 300, .shuffle = Shuffle::Always, .seed = 1});
  const auto epoch = [&](int64_t e) {
    Ids first_ids;
    for (int64_t i = 0; i < dataset.size(); ++i) first_ids.push_back(sample(dataset, e * dataset.size() + i)[0]);
    return first_ids;
  };
  const Ids first = epoch(0), second = epoch(1);
  CHECK(std::set<int32_t>(first.begin(), first.end()).size() == 100);
  CHECK(std::set<int32_t>(second.begin(), second.end()).size() == 100);
  CHECK(first != second);
  CHECK(first == epoch(0));
}

TEST_CASE("an id outside the vocabulary is refused with its position") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("t.bin", little_endian({1, 2, 3, 4, 50257, 6, 7}, 2));
  SampleSource dataset = tokens(path, 3, 50257);
  CHECK_THROWS_WITH_AS(sample(dataset, 1), doctest::Contains("token 50257 at position 4"), UserError);
  CHECK(sample(tokens(path, 3, 50258), 1) == Ids{4, 50257, 6, 7});
}

TEST_CASE("files that are no data say which file and what to do") {
  const testing::TemporaryFolder folder;
  const std::string missing = folder.path() + "/none.bin";
  CHECK_THROWS_WITH_AS(tokens(missing, 4), doctest::Contains((missing + ": No such file").c_str()), UserError);
  CHECK_THROWS_WITH_AS(tokens(missing, 4), doctest::Contains("set --training.dataset_path"), UserError);
  CHECK_THROWS_WITH_AS(tokens("/dev/null", 4), doctest::Contains("is a pipe, a device or a socket"), UserError);
  CHECK_THROWS_WITH_AS(tokens(folder.write("e.bin", ""), 4), doctest::Contains("an empty file"), UserError);
  CHECK_THROWS_WITH_AS(tokens(folder.write("o.bin", "abc"), 1), doctest::Contains("3 bytes are no whole number"),
                       UserError);
  CHECK_THROWS_WITH_AS(tokens(folder.write("s.bin", "abcdefgh"), 4), doctest::Contains("expected at least 5"),
                       UserError);
  CHECK_THROWS_AS(tokens("", 4), UserError);
  CHECK_THROWS_WITH_AS(open_dataset({.name = "c4", .path = "x", .seq_len = 1}), doctest::Contains("training.dataset"),
                       UserError);
}

TEST_CASE("unigram entropy is that of the frequencies of single ids") {
  CHECK(unigram_entropy(std::vector<int64_t>{2, 2, 2, 2}) == doctest::Approx(std::log(4.0)));
  CHECK(unigram_entropy(std::vector<int64_t>{0, 3, 1}) ==
        doctest::Approx(0.75 * std::log(4.0 / 3) + 0.25 * std::log(4.0)));
  CHECK(unigram_entropy(std::vector<int64_t>{0, 4}) == 0);
}

TEST_CASE("libtorch_headers concatenates headers by path and nothing else") {
  const testing::TemporaryFolder folder;
  folder.write("b.h", "3456");
  folder.write("a/z.hpp", "12");
  folder.write("a/a.h", "0");
  folder.write("a/skip.cc", "XXXX");
  folder.write("c.h", "789");
  SampleSource dataset = headers(folder.path(), 9);
  CHECK(dataset.num_tokens() == 10);
  CHECK(sample(dataset, 0) == Ids{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'});
  SampleSource capped = headers(folder.path(), 4, 0, 5);
  CHECK(capped.num_tokens() == 5);
  CHECK(sample(capped, 0) == Ids{'0', '1', '2', '3', '4'});
}

TEST_CASE("libtorch_headers gives each sample once, in an order that the seed alone decides") {
  const testing::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i <= 200; ++i) text += static_cast<char>(i);
  folder.write("a.h", text);
  const auto starts = [&](uint64_t seed) {
    SampleSource dataset = headers(folder.path(), 2, seed);
    Ids first_ids;
    for (int64_t i = 0; i < dataset.size(); ++i) first_ids.push_back(sample(dataset, i)[0]);
    return first_ids;
  };
  const Ids first = starts(1);
  CHECK(first.size() == 100);
  CHECK(std::set<int32_t>(first.begin(), first.end()).size() == 100);
  CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
  CHECK(first == starts(1));
  CHECK(first != starts(2));
  // splitmix64 with seed 1 and a Fisher-Yates shuffle from the end, computed in Python too.
  CHECK(Ids(first.begin(), first.begin() + 4) == Ids{64, 84, 70, 56});
}

TEST_CASE("libtorch_headers without headers says so") {
  const testing::TemporaryFolder folder;
  folder.write("a.cc", "int x;");
  const auto open = [](const std::string& path) { return headers(path, 2); };
  CHECK_THROWS_WITH_AS(open(folder.path()), doctest::Contains("no headers below this folder"), UserError);
  CHECK_THROWS_WITH_AS(open(folder.path() + "/none"), doctest::Contains("No such file"), UserError);
  CHECK_THROWS_WITH_AS(open(""), doctest::Contains("LibTorch's include folder"), UserError);
}

TEST_CASE("a dataset_path that is a pipe or a device is refused at once, whatever the dataset") {
  const testing::TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  std::filesystem::create_symlink("/dev/zero", folder / "zeros.bin");
  for (const std::string& path : {folder / "fifo", folder / "zeros.bin"}) {
    CHECK_THROWS_WITH_AS(tokens(path, 2),
                         doctest::Contains("is a pipe, a device or a socket\n  expected a file of token"), UserError);
    CHECK_THROWS_WITH_AS(data_files(
                             path, [](const std::string&) { return true; }, "text"),
                         doctest::Contains("is a pipe, a device or a socket\n  expected text"), UserError);
  }
}

TEST_CASE("libtorch_headers needs a vocabulary of all bytes") {
  const testing::TemporaryFolder folder;
  folder.write("a.h", "int x;");
  CHECK_THROWS_WITH_AS(
      open_dataset({.name = "libtorch_headers", .path = folder.path(), .seq_len = 2, .vocab_size = 255}),
      doctest::Contains("set --model.args.vocab_size 256"), UserError);
}

}  // namespace sfsdp::train::dataset_test
