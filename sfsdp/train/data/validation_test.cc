// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/validation.h"

#include <doctest/doctest.h>

#include <limits>
#include <numeric>
#include <set>

#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/sample_source.h"

namespace sfsdp::train::validation_test {

namespace {

// `samples` samples of two ids each: sample i is (i, i + 1).
SampleSource counting(const testing::TemporaryFolder& folder, int64_t samples) {
  std::string bytes;
  for (int64_t i = 0; i <= samples; ++i) {
    bytes += static_cast<char>(i & 0xff);
    bytes += static_cast<char>(i >> 8);
  }
  return {TokenStore("v", {find_tokens(folder.write("v", bytes), TokenDtype::UInt16)}), {1, 1000}};
}

}  // namespace

TEST_CASE("the last samples fill batches by divisors of the rows") {
  using Counts = std::vector<int64_t>;
  CHECK(fill_batches(6, 3) == Counts{3, 3});
  CHECK(fill_batches(8, 3) == Counts{3, 3, 1, 1});
  CHECK(fill_batches(63, 64) == Counts{32, 16, 8, 4, 2, 1});
  CHECK(fill_batches(47, 24) == Counts{24, 12, 8, 3});
  CHECK(fill_batches(2, 7) == Counts{1, 1});
  CHECK(fill_batches(0, 4).empty());
}

TEST_CASE(
    "a pass over the set has each sample with the same weight, on any number of ranks, in as many batches on each") {
  const testing::TemporaryFolder folder;
  for (const int64_t samples : {1, 2, 5, 12, 31})
    for (const int64_t ranks : {1, 2, 3, 4})
      for (const int64_t local : {1, 2, 5}) {
        CAPTURE(samples);
        CAPTURE(ranks);
        CAPTURE(local);
        // What all ranks' rows of a batch are; the loss of a sample is the square of its number.
        std::vector<double> sums(100, 0);
        std::vector<std::multiset<int64_t>> rows(100);
        const auto run = [&](int64_t rank, bool adds) {
          SampleSource source = counting(folder, samples);
          size_t batch = 0;
          return validate(source, {local, rank, ranks, -1}, [&](const MicroBatch& b) {
            REQUIRE(static_cast<int64_t>(ids_of(b, 0).size()) == local);
            for (const int64_t id : ids_of(b, 0))
              if (adds) {
                sums[batch] += static_cast<double>(id * id) / static_cast<double>(local * ranks);
                rows[batch].insert(id);
              }
            return sums[batch++];
          });
        };
        for (int64_t rank = 0; rank < ranks; ++rank) run(rank, true);
        double expected = 0;
        for (int64_t i = 0; i < samples; ++i) expected += static_cast<double>(i * i) / static_cast<double>(samples);
        std::set<int64_t> seen;
        for (const auto& batch : rows) seen.insert(batch.begin(), batch.end());
        CHECK(static_cast<int64_t>(seen.size()) == samples);
        const int64_t batches = run(0, false).batches;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const ValidationResult result = run(rank, false);
          CHECK(result.loss == doctest::Approx(expected).epsilon(1e-12));
          CHECK(result.tokens == samples);
          CHECK(result.batches == batches);
        }
      }
}

TEST_CASE("steps bounds the batches, and one pass bounds the steps") {
  const testing::TemporaryFolder folder;
  SampleSource source = counting(folder, 10);
  std::vector<int64_t> read;
  const auto note = [&](const MicroBatch& b) {
    read.insert(read.end(), ids_of(b, 0).begin(), ids_of(b, 0).end());
    return 1.0;
  };
  CHECK(validate(source, {2, 0, 1, 3}, note).batches == 3);
  CHECK(read == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  read.clear();
  CHECK(validate(source, {2, 0, 1, std::numeric_limits<int64_t>::max()}, note).tokens == 10);
  CHECK(read.size() == 10);
  read.clear();
  validate(source, {2, 0, 1, 1}, note);  // from the first sample again
  CHECK(read == std::vector<int64_t>{0, 1});
}

}  // namespace sfsdp::train::validation_test
