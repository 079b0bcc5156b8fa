// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::metrics_file_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

StepMetrics of_step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  return metrics;
}

struct ScratchFile {
  testing::TemporaryFolder folder;
  std::string path = folder / "outputs/metrics.jsonl";
  std::vector<std::string> lines() const { return split(read_file(path), '\n'); }
};

}  // namespace

TEST_CASE("every line of metrics.jsonl is there before the file is closed") {
  const ScratchFile scratch;
  MetricsFile file(scratch.path, 0, {});
  file.write(of_step(1));
  CHECK(read_file(scratch.path) == json_line(of_step(1)) + "\n");
  file.write(ValidationMetrics{.step = 1, .loss = 2});
  CHECK(scratch.lines().size() == 3);
}

TEST_CASE("a run that goes on after step 2 cuts the lines of later steps, validations too") {
  const ScratchFile scratch;
  {
    MetricsFile file(scratch.path, 0, {});
    for (const int64_t step : {1, 2}) file.write(of_step(step));
    file.write(ValidationMetrics{.step = 2});
    file.write(of_step(3));
    file.write(ValidationMetrics{.step = 3});
    file.write(of_step(4));
  }
  MetricsFile(scratch.path, 2, {}).write(of_step(3));
  const auto lines = scratch.lines();
  REQUIRE(lines.size() == 5);
  CHECK(lines[1] == json_line(of_step(2)));
  CHECK(lines[2] == json_line(ValidationMetrics{.step = 2}));
  CHECK(lines[3] == json_line(of_step(3)));
  CHECK(lines[4].empty());
}

TEST_CASE("a half line that a crash left is cut, and so is what has grown over the reader's piece") {
  const ScratchFile scratch;
  {
    MetricsFile file(scratch.path, 0, {});
    for (int64_t step = 1; step <= 2000; ++step) file.write(of_step(step));  // some 500 KiB
  }
  const std::string whole = read_file(scratch.path);
  std::ofstream(scratch.path, std::ios::app) << "{\"step\": 2001, \"lo";
  MetricsFile(scratch.path, 2000, {}).write(of_step(2001));
  CHECK(read_file(scratch.path) == whole + json_line(of_step(2001)) + "\n");
  MetricsFile(scratch.path, 1000, {});
  CHECK(scratch.lines().size() == 1001);
  CHECK(whole.starts_with(read_file(scratch.path)));
}

TEST_CASE("lines that are no step's stay where they are") {
  const ScratchFile scratch;
  scratch.folder.write("outputs/metrics.jsonl",
                       "a note\n{\"step\": 1}\n" + std::string(200000, 'x') + "\n{\"step\": 2}\n");
  MetricsFile(scratch.path, 1, {});
  CHECK(read_file(scratch.path) == "a note\n{\"step\": 1}\n" + std::string(200000, 'x') + "\n");
}

TEST_CASE("an earlier run's files get the next number that is free for both") {
  const ScratchFile scratch;
  const std::string outputs = scratch.folder / "outputs";
  const auto write = [&](const char* name, const char* text) { scratch.folder.write(concat("outputs/", name), text); };
  CHECK(move_aside(outputs).empty());
  write("metrics.jsonl", "first");
  write("run.jsonl", "first run");
  CHECK(move_aside(outputs) == outputs + "/metrics.1.jsonl");
  write("metrics.jsonl", "second");  // its run.jsonl was lost
  write("run.2.jsonl", "another's");
  CHECK(move_aside(outputs) == outputs + "/metrics.3.jsonl");
  CHECK(read_file(outputs + "/metrics.1.jsonl") == "first");
  CHECK(read_file(outputs + "/run.1.jsonl") == "first run");
  CHECK(read_file(outputs + "/run.2.jsonl") == "another's");
  CHECK(read_file(outputs + "/metrics.3.jsonl") == "second");
  CHECK_FALSE(std::filesystem::exists(scratch.path));
  write("metrics.jsonl", "");
  write("run.jsonl", "saved a seed checkpoint");
  CHECK(move_aside(outputs).empty());
  CHECK(std::filesystem::exists(outputs + "/run.jsonl"));
}

TEST_CASE("a metrics file that cannot be written names itself and the cure") {
  const ScratchFile scratch;
  std::filesystem::create_directories(scratch.path);  // a folder stands where the file should
  CHECK_THROWS_WITH_AS(MetricsFile(scratch.path, 0, {}), doctest::Contains("set --job.dump_folder"), UserError);
}

TEST_CASE("a metrics file that is a link to a device without an end is refused, at the first start and when going on") {
  const ScratchFile scratch;
  std::filesystem::create_directories(scratch.folder / "outputs");
  std::filesystem::create_symlink("/dev/full", scratch.path);
  for (const int64_t last_step : {0, 4})
    CHECK_THROWS_WITH_AS(MetricsFile(scratch.path, last_step, {}),
                         doctest::Contains("metrics.jsonl: is no regular file"), UserError);
}

}  // namespace sfsdp::train::metrics_file_test
