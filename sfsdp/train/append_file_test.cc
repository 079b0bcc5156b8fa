// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/append_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/metrics_file.h"
#include "sfsdp/train/run_log.h"

namespace sfsdp::train::append_file_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// While one lives, no file of this process can grow above `bytes`: a write stops there in the middle of what it writes, as it
// does on a full disk.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : on_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, on_signal_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  void (*on_signal_)(int);
};

}  // namespace

TEST_CASE("append_file: a full disk drops records, is said once, and no part of a record stays in the file") {
  const testing::TemporaryFolder folder;
  std::vector<std::string> said;
  AppendFile file(folder / "log", [&](const std::string& line) { said.push_back(line); });
  bool first = false, second = true, third = true;
  std::string while_full;
  {
    const SmallDisk disk(25);
    first = file.write("ten bytes\n");
    second = file.write("more than fifteen bytes\n");
    while_full = read_file(folder / "log");
    third = file.write("more than fifteen bytes again\n");
  }
  CHECK(first);
  CHECK_FALSE(second);
  CHECK_FALSE(third);
  CHECK(while_full == "ten bytes\n");
  REQUIRE(said.size() == 1);
  CHECK(said[0].starts_with(folder / "log: File too large; training goes on"));
  CHECK(file.write("room again\n"));
  CHECK(file.write("and more\n"));
  CHECK(read_file(folder / "log") == "ten bytes\nroom again\nand more\n");
  CHECK(file.dropped() == 2);
  REQUIRE(said.size() == 2);
  CHECK(said[1] == folder / "log: is written again; 2 records are missing");
}

TEST_CASE("append_file: a pipe is refused, not waited for, whoever reads it") {
  const testing::TemporaryFolder folder;
  REQUIRE(mkfifo((folder / "log").c_str(), 0600) == 0);
  const auto open = [&] { AppendFile(folder / "log", [](const std::string&) {}); };
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("log: is a pipe\n  expected a file"), UserError);
  const int reader = ::open((folder / "log").c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  CHECK_THROWS_AS(open(), UserError);
  ::close(reader);
}

TEST_CASE("append_file: a device without room is lived through, a path that cannot be is an error") {
  std::vector<std::string> said;
  AppendFile file("/dev/full", [&](const std::string& line) { said.push_back(line); });
  for (int i = 0; i < 3; ++i) CHECK_FALSE(file.write("a"));
  CHECK(file.dropped() == 3);
  REQUIRE(said.size() == 1);
  CHECK(said[0].starts_with("/dev/full: No space left on device; "));
  CHECK_THROWS_WITH_AS(AppendFile("/dev/null/log", {}), doctest::Contains("set --job.dump_folder"), UserError);
}

// metrics.jsonl has whole lines of the steps that it has, the event file its version before the first of them.
TEST_CASE("append_file: a run goes on where its metrics find no room, says it once for each file, and counts") {
  const testing::TemporaryFolder folder;
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 1,
              .dump_folder = folder.path(),
              .tensorboard_folder = folder / "tb",
              .now = [&] { return ++clock; }},
             out);
  RunFacts facts;
  facts.config.training.steps = 6;
  facts.global_batch = facts.data_ranks = 1;
  const auto step = [&](int64_t k) {
    StepMetrics metrics;
    metrics.step = k;
    metrics.step_time_s = 1;
    log.step(metrics);
  };
  log.start(facts);
  step(1);
  {
    const SmallDisk disk(std::filesystem::file_size(folder / "metrics.jsonl") + 10);
    for (const int64_t k : {2, 3, 4}) step(k);
  }
  for (const int64_t k : {5, 6}) step(k);
  log.completed(1);
  std::vector<std::string> begins;
  for (const std::string& line : split(read_file(folder / "metrics.jsonl"), '\n')) begins.push_back(line.substr(0, 11));
  CHECK(begins == std::vector<std::string>{"{\"step\": 1,", "{\"step\": 5,", "{\"step\": 6,", ""});
  const auto count = [&](const std::string& what) {
    size_t found = 0;
    for (const std::string& line : split(out.str(), '\n')) found += line.find(what) != std::string::npos;
    return found;
  };
  CHECK(count("metrics.jsonl: File too large; training goes on") == 1);
  CHECK(count("metrics.jsonl: is written again; 3 records are missing") == 1);
  CHECK(count("step: ") == 6);
  CHECK(out.str().ends_with("records of metrics are missing\n"));
}

}  // namespace sfsdp::train::append_file_test
