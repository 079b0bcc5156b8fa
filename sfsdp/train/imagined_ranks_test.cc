// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/imagined_ranks.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "sfsdp/base/error.h"

namespace sfsdp::train::imagined_ranks_test {
namespace {

int64_t ranks_of(const std::map<std::string, std::string>& variables) {
  return imagined_ranks([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("fake_backend takes its ranks from NGPU, else WORLD_SIZE, and nothing that is no such number") {
  CHECK(ranks_of({}) == 1);
  CHECK(ranks_of({{"NGPU", "8"}, {"WORLD_SIZE", "4"}}) == 8);
  CHECK(ranks_of({{"WORLD_SIZE", "4"}, {"RANK", "0"}}) == 4);
  for (const char* wrong : {"x", "4x", "", "0", "-1", "1048577"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(ranks_of({{"NGPU", wrong}, {"WORLD_SIZE", "4"}}),
                         doctest::Contains("\n  expected a number of ranks from 1 to 1048576 in NGPU"), UserError);
  }
}

TEST_CASE("fake_backend is one process: what a launcher starts beside it is refused") {
  CHECK(ranks_of({{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}) == 1);
  CHECK_THROWS_WITH_AS(
      ranks_of({{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"RANK", "0"}, {"NGPU", "8"}}),
      doctest::Contains("comm.mode = fake_backend with LOCAL_WORLD_SIZE = \"2\"\n  expected one process"), UserError);
  CHECK_THROWS_WITH_AS(ranks_of({{"LOCAL_WORLD_SIZE", "1"}, {"RANK", "1"}}), doctest::Contains("RANK = \"1\""),
                       UserError);
}

}  // namespace sfsdp::train::imagined_ranks_test
