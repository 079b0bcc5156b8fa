// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/flight_report.h"

#include <doctest/doctest.h>

#include <fstream>
#include <numeric>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing/process_memory.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::comm::flight_report_test {
namespace {

std::vector<int> ranks_to(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

FlightEntry call(const std::string& group, uint64_t sequence, const std::string& name, bool finished) {
  const auto at = static_cast<int64_t>(sequence) * 1000;
  return {group, sequence, concat("all_gather ", name, " of 4096 bytes"), "layers.3", 4096, at, finished ? at + 10 : 0};
}

// Ranks of one group that have all finished calls 1 to `finished`.
std::vector<FlightRecord> run_of(int world_size, uint64_t finished) {
  std::vector<FlightRecord> records;
  for (int rank = 0; rank < world_size; ++rank) {
    FlightRecord record = {rank, world_size, "", finished, {{"dp_shard", ranks_to(world_size)}}, {}};
    for (uint64_t s = 1; s <= finished; ++s) record.entries.push_back(call("dp_shard", s, "%w", true));
    records.push_back(std::move(record));
  }
  return records;
}

void expect_lines(const std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    CHECK_MESSAGE(("\n" + text).find("\n" + line + "\n") != std::string::npos, line, "\n  in\n", text);
}

TEST_CASE("flight_report: ranks in words") {
  CHECK(rank_list({3}) == "3");
  CHECK(rank_list({4, 3}) == "3, 4");
  CHECK(rank_list({7, 0, 1, 2, 9}) == "0-2, 7, 9");
  std::vector<int> even;
  for (int rank = 0; rank < 64; rank += 2) even.push_back(rank);
  CHECK(rank_list(even) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 20 more");
}

TEST_CASE("flight_report: one of 64 ranks computes, the others wait for it") {
  auto records = run_of(64, 40);
  for (auto& record : records)
    if (record.rank != 17) record.entries.push_back(call("dp_shard", 41, "%b3", false));
  const std::string text = explain_flight(records);
  expect_lines(text, {"Flight records of 64 of 64 ranks",
                      "all_gather %b3 of 4096 bytes over dp_shard, sequence 41 at layers.3, 4096 bytes",
                      "  ranks 0-16, 18-63 have entered it", "  rank 17 has not entered it",
                      "    rank 17: it is in no collective, so it computes, reads data or writes a file; it last "
                      "finished all_gather %w of 4096 bytes over dp_shard, sequence 40 at layers.3",
                      "So: rank 17 holds up 63 ranks; read its log"});
}

TEST_CASE("flight_report: ranks without a record, and one that came after the others had given up") {
  auto records = run_of(8, 3);
  for (auto& record : records) {
    record.reason = concat("CommError on rank ", record.rank, " of 8: barrier\n  no answer from rank 5");
    record.entries.push_back(call("dp_shard", 4, "%b", false));
  }
  records[2].entries.back().entered_us += 100'300'000;
  records.erase(records.begin() + 5);
  const std::string text = explain_flight(records);
  expect_lines(text, {"Flight records of 7 of 8 ranks", "rank 5 left none", "ranks 0-4, 6, 7: barrier",
                      "  no answer from rank 5", "  rank 2 entered it 100.3 s after the others",
                      "    rank 5: it left no record: it was killed, is stopped, or its file is on another disk",
                      "So: rank 5 holds up 7 ranks; read its log"});
}

TEST_CASE("flight_report: calls that differ are named by rank, at the first of them") {
  auto records = run_of(8, 5);
  for (auto& record : records) {
    record.entries.push_back(call("dp_shard", 6, record.rank == 3 ? "%other" : "%b", false));
    record.entries[2].call += "";
  }
  expect_lines(explain_flight(records),
               {"Group dp_shard: from sequence 6 on ranks make different calls",
                "  ranks 0-2, 4-7 call all_gather %b of 4096 bytes", "  rank 3 calls all_gather %other of 4096 bytes"});
}

// Rank 0 waits for 1 in one group, 1 for 0 in another.
TEST_CASE("flight_report: ranks that wait for each other in two groups") {
  auto records = run_of(8, 5);
  for (auto& record : records) record.groups["world"] = ranks_to(8);
  for (auto& record : records)
    record.entries.push_back(record.rank % 2 == 0 ? call("dp_shard", 6, "%b", false) : call("world", 1, "%n", false));
  expect_lines(explain_flight(records), {"So: ranks 0, 1 wait for each other, in different collectives:",
                                         "  rank 0: all_gather %b of 4096 bytes over dp_shard, sequence 6 at layers.3",
                                         "  rank 1: all_gather %n of 4096 bytes over world, sequence 1 at layers.3",
                                         "  the order of calls differs between them: compare their programs"});
}

// HSDP: groups of one name, each with ranks of its own; one pair is held up, the wait goes on to the whole world.
TEST_CASE("flight_report: a rank that is held up is not the one that holds up") {
  std::vector<FlightRecord> records;
  for (int rank = 0; rank < 16; ++rank) {
    const std::vector<int> pair = {rank / 2 * 2, rank / 2 * 2 + 1};
    FlightRecord record = {rank, 16, "", 0, {{"dp_shard", pair}, {"world", ranks_to(16)}}, {}};
    record.entries.push_back(call("dp_shard", 1, "%b", rank != 6));
    if (rank == 7) record.entries.pop_back();
    if (rank != 6 && rank != 7) record.entries.push_back(call("world", 1, "%n", false));
    records.push_back(std::move(record));
  }
  expect_lines(explain_flight(records),
               {"  ranks 6, 7 have not entered it",
                "    rank 6: it is in all_gather %b of 4096 bytes over dp_shard, sequence 1 at layers.3",
                "So: rank 7 holds up 15 ranks; read its log"});
}

TEST_CASE("flight_report: a run in which nobody waits") {
  auto records = run_of(8, 2);
  for (auto& record : records) record.reason = "the loss is nan at step 4";
  expect_lines(explain_flight(records),
               {"ranks 0-7: the loss is nan at step 4",
                "So: nobody waits for a rank that has not come; the reasons above are all there is"});
}

TEST_CASE("flight_recorder: the last calls are kept, written and read back") {
  FlightRecorder recorder(3);
  const CallSite site = {"dp_shard", {4, 5}, 1, 8};
  for (uint64_t s = 1; s <= 5; ++s) {
    recorder.enter(site, all_gather_call(8, 16, 2, {"%a\"", "m"}), s);
    if (s < 5) recorder.finish(site, s);
  }
  const testing::TemporaryFolder folder;
  const std::string path = folder / "traces/rank_5.json";
  write_flight_record(path, recorder.record(5, 8, "why \"\n\t"));
  const auto records = read_flight_records(folder / "traces");
  REQUIRE(records.size() == 1);
  const FlightRecord& record = records[0];
  CHECK(record.rank == 5);
  CHECK(record.world_size == 8);
  CHECK(record.reason == "why \"\n\t");
  CHECK(record.calls == 5);
  CHECK(record.groups.at("dp_shard") == std::vector<int>{4, 5});
  REQUIRE(record.entries.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const FlightEntry& entry = record.entries[i];
    CHECK(entry.sequence == 3 + i);
    CHECK(entry.call == "all_gather %a\" of 16 bytes");
    CHECK(entry.module_path == "m");
    CHECK(entry.bytes == 16);
    CHECK((entry.finished_us >= entry.entered_us) == (i < 2));
  }
}

TEST_CASE("flight_recorder: calls of two groups that run at once each finish by themselves") {
  FlightRecorder recorder(10);
  const CallSite a = {"tp", {0, 1}, 0, 4}, b = {"ep", {0, 2}, 0, 4};
  recorder.enter(a, barrier_call({"%a", ""}), 1);
  recorder.enter(b, barrier_call({"%b", ""}), 1);
  recorder.finish(a, 1);
  FlightRecord record = recorder.record(0, 4, "why");
  REQUIRE(record.entries.size() == 2);
  CHECK(record.entries[0].finished_us > 0);
  CHECK(record.entries[1].finished_us == 0);
  recorder.enter(a, barrier_call({"%c", ""}), 2);
  recorder.finish(a, 2);
  FlightRecorder other(10);  // a rank that has not come to group ep
  other.enter({"ep", {0, 2}, 1, 4}, barrier_call({"%z", ""}), 0);
  other.finish({"ep", {0, 2}, 1, 4}, 0);
  expect_lines(explain_flight({recorder.record(0, 4, "why"), other.record(2, 4, "why")}),
               {"barrier %b over ep, sequence 1, 0 bytes", "  rank 0 has entered it", "  rank 2 has not entered it",
                "So: rank 2 holds up 1 rank; read its log"});
}

// A text in each entry would also keep the pages around it, among which a step frees its temporaries.
TEST_CASE("flight_recorder: a full record takes some 40 bytes a call, and forgets the words of calls it no longer has" *
          doctest::skip(testing::kSanitized)) {
  constexpr int64_t kCalls = 100000, kSlack = testing::kMib;  // the slack is what `growth` may be wrong by
  const CallSite site = {"dp_shard", {0, 1}, 0, 2};
  std::optional<FlightRecorder> recorder;
  const auto record_calls = [&](uint64_t first, uint64_t last) {
    for (uint64_t s = first; s <= last; ++s) {
      const std::string name = concat("%layers.", s % 10, ".attention.weight.full");
      recorder->enter(site, all_gather_call(8, 16, 2, {s % 100 == 99 ? concat(name, s) : name, "layers.attention"}), s);
    }
  };
  // Made in there: memory that the heap has already would not be counted.
  const int64_t full = testing::growth([&] {
    recorder.emplace(kCalls);
    record_calls(1, kCalls);
  });
  CHECK(full >= kCalls * 32 - kSlack);  // or nothing is counted
  CHECK(full <= kCalls * 40 + kSlack);
  CHECK(testing::growth([&] { record_calls(kCalls + 1, 10 * kCalls); }) <= kSlack);
  CHECK(recorder->record(0, 2, "").entries.front().sequence == 9 * kCalls + 1);
}

TEST_CASE("flight_report: folders and files that are none are refused by name") {
  const testing::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_flight_records(folder.path()), doctest::Contains("no flight record"), UserError);
  CHECK_THROWS_WITH_AS(read_flight_records(folder / "none"), doctest::Contains("No such file or directory"), UserError);
  for (const std::string text :
       {"", "[]", "{\"rank\": 0}", "{\"world_size\": 2, \"rank\": 2}", "{\"world_size\": 99999999999, \"rank\": 0}"}) {
    std::ofstream(folder / "rank_0.json") << text;
    CHECK_THROWS_WITH_AS(read_flight_records(folder.path()), doctest::Contains("rank_0.json"), UserError);
  }
}

}  // namespace
}  // namespace sfsdp::comm::flight_report_test
