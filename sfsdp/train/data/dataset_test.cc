// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train {

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

Ids sample(const TokenDataset& dataset, int64_t index) {
  Ids ids(static_cast<size_t>(dataset.seq_len()) + 1);
  dataset.read_sample(index, ids);
  return ids;
}

TokenDataset tokens(const std::string& path, int64_t seq_len, int64_t vocab = 70000,
                    TokenDtype dtype = TokenDtype::UInt16) {
  return open_dataset({.name = "tokens", .path = path, .seq_len = seq_len, .vocab_size = vocab, .token_dtype = dtype});
}

}  // namespace

// conventions.md, Tokens: "sample i = tokens[i*L .. i*L+L] inclusive, L+1 ids ... Neighbours share one id".
TEST_CASE("sample i of a tokens file starts at i*L and shares its last id with the next sample") {
  const testing::TemporaryFolder folder;
  const TokenDataset dataset = tokens(folder.write("t.bin", little_endian(count_to(14), 2)), 4);
  CHECK(dataset.num_tokens() == 14);
  CHECK(sample(dataset, 0) == Ids{0, 1, 2, 3, 4});
  CHECK(sample(dataset, 1) == Ids{4, 5, 6, 7, 8});
  CHECK(sample(dataset, 2) == Ids{8, 9, 10, 11, 12});
}

// "there are N = floor((T-1)/L) samples; what is left over at the end is not read".
TEST_CASE("a file of T tokens has floor((T-1)/L) samples") {
  const testing::TemporaryFolder folder;
  for (uint32_t t = 5; t <= 20; ++t) {
    const TokenDataset dataset = tokens(folder.write("t.bin", little_endian(count_to(t), 2)), 4);
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

// "step k reads samples (k-1)*B .. k*B-1, in file order ... after sample N-1 comes sample 0 again".
TEST_CASE("step k reads samples ((k-1)*B + j) mod N") {
  std::vector<int64_t> read;
  for (int64_t step = 1; step <= 3; ++step)
    for (int64_t j = 0; j < 4; ++j) read.push_back(sample_of_step(step, j, 4, 6));
  CHECK(read == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(sample_of_step(1, 7, 8, 3) == 1);  // a batch larger than the file wraps within the step
  CHECK_THROWS_AS(sample_of_step(0, 0, 4, 6), InternalError);
}

// "after sample N-1 comes sample 0 again (said once in the log)".
TEST_CASE("the wrap is said at exactly one step: the first that reads sample 0 again") {
  const testing::TemporaryFolder folder;
  const TokenDataset dataset = tokens(folder.write("t.bin", little_endian(count_to(25), 2)), 4);  // N = 6
  for (int64_t batch = 1; batch <= 20; ++batch) {
    std::vector<int64_t> said;
    int64_t first_repeat = 0;
    for (int64_t step = 1; step <= 30; ++step) {
      if (wrap_notice(dataset, step, batch)) said.push_back(step);
      if (first_repeat == 0 && step * batch > dataset.size()) first_repeat = step;
    }
    CHECK(said == std::vector<int64_t>{first_repeat});
  }
  CHECK(wrap_notice(dataset, 2, 4)->find("6 samples are read at step 2") != std::string::npos);
}

TEST_CASE("an id outside the vocabulary is refused with its position") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("t.bin", little_endian({1, 2, 3, 4, 50257, 6, 7}, 2));
  const TokenDataset dataset = tokens(path, 3, 50257);
  CHECK_THROWS_WITH_AS(sample(dataset, 1), doctest::Contains("token 50257 at position 4"), UserError);
  CHECK(sample(tokens(path, 3, 50258), 1) == Ids{4, 50257, 6, 7});
}

TEST_CASE("files that are no data say which file and what to do") {
  const testing::TemporaryFolder folder;
  const std::string missing = folder.path() + "/none.bin";
  CHECK_THROWS_WITH_AS(tokens(missing, 4), doctest::Contains((missing + ": No such file").c_str()), UserError);
  CHECK_THROWS_WITH_AS(tokens(missing, 4), doctest::Contains("set --training.dataset_path"), UserError);
  CHECK_THROWS_WITH_AS(tokens(folder.path(), 4), doctest::Contains("not a file"), UserError);
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
  const TokenDataset dataset = open_dataset({.name = "libtorch_headers", .path = folder.path(), .seq_len = 9});
  CHECK(dataset.vocab_size() == 256);
  CHECK(dataset.num_tokens() == 10);
  CHECK(sample(dataset, 0) == Ids{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'});
  const auto capped = open_dataset({.name = "libtorch_headers", .path = folder.path(), .seq_len = 4, .max_bytes = 5});
  CHECK(capped.num_tokens() == 5);
  CHECK(sample(capped, 0) == Ids{'0', '1', '2', '3', '4'});
}

TEST_CASE("libtorch_headers gives each sample once, in an order that the seed alone decides") {
  const testing::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i <= 200; ++i) text += static_cast<char>(i);
  folder.write("a.h", text);
  const auto starts = [&](uint64_t seed) {
    const auto dataset = open_dataset({.name = "libtorch_headers", .path = folder.path(), .seq_len = 2, .seed = seed});
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
  const auto open = [](const std::string& path) {
    return open_dataset({.name = "libtorch_headers", .path = path, .seq_len = 2});
  };
  CHECK_THROWS_WITH_AS(open(folder.path()), doctest::Contains("no headers below this folder"), UserError);
  CHECK_THROWS_WITH_AS(open(folder.path() + "/none"), doctest::Contains("No such file"), UserError);
  CHECK_THROWS_WITH_AS(open(""), doctest::Contains("LibTorch's include folder"), UserError);
}

}  // namespace sfsdp::train
