// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/run_report.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sfsdp::train::run_report_test {
namespace {

RunFiles run_of(int64_t steps) {
  RunFiles run;
  run.name = "outputs";
  for (int64_t k = 1; k <= steps; ++k) {
    StepLine line;
    line.step = k;
    for (size_t f = 0; f < kFields; ++f) line.values[f] = static_cast<double>(k) + static_cast<double>(f) / 16;
    run.steps.push_back(line);
  }
  return run;
}

// What stands where the page has its data; the rest of the page is the same for all runs.
nlohmann::json data_of(const std::string& page) {
  const std::string before = "const data =\n";
  const size_t begin = page.find(before) + before.size(), end = page.find(";\nconst $ =", begin);
  REQUIRE(end != std::string::npos);
  return nlohmann::json::parse(page.substr(begin, end - begin));
}

}  // namespace

TEST_CASE("the page holds each run's points, one for each step where there are few") {
  const std::vector<RunFiles> runs = {run_of(3), run_of(2)};
  const nlohmann::json data = data_of(run_report(runs));
  REQUIRE(data["runs"].size() == 2);
  CHECK(data["runs"][0]["first"] == std::vector<int>{1, 2, 3});
  CHECK(data["runs"][0]["mean"]["loss"] == std::vector<double>{1, 2, 3});
  CHECK(data["runs"][0]["mean"]["comm_exposed_s"][0] == 1 + 11.0 / 16);
  CHECK_FALSE(data["runs"][0].contains("least"));
  CHECK(data["runs"][0]["figures"]["loss"] == 2);  // mean of 1, 2, 3
  CHECK(data["runs"][1]["figures"]["step"] == 2);
}

TEST_CASE("a run of a million steps is a page of less than a megabyte") {
  const std::vector<RunFiles> runs = {run_of(1000000)};
  const std::string page = run_report(runs);
  CHECK(page.size() < 1000000);
  const nlohmann::json data = data_of(page);
  CHECK(data["runs"][0]["steps"] == 1000000);
  CHECK(data["runs"][0]["first"].size() <= 1500);
  CHECK(data["runs"][0]["last"].back() == 1000000);
  CHECK(data["runs"][0]["most"]["loss"][0] == data["runs"][0]["last"][0]);
}

TEST_CASE("of many validations every n-th stays, and the last") {
  RunFiles run = run_of(1);
  for (int64_t k = 1; k <= 10; ++k) run.validations.push_back({k, 1});
  const nlohmann::json data = data_of(run_report(std::vector<RunFiles>{run}, 4));
  std::vector<int64_t> steps;
  for (const auto& validation : data["runs"][0]["validations"]) steps.push_back(validation[0]);
  CHECK(steps == std::vector<int64_t>{1, 4, 7, 10});
}

TEST_CASE("a figure that no line has is unknown, not zero") {
  RunFiles run = run_of(2);
  for (StepLine& line : run.steps)
    for (const Field field : {Field::Data, Field::Memory, Field::Tps})
      line.values[static_cast<size_t>(field)] = std::numeric_limits<double>::quiet_NaN();
  const nlohmann::json figures = data_of(run_report(std::vector<RunFiles>{run}))["runs"][0]["figures"];
  for (const char* name : {"data", "memory", "tps", "mfu"}) CHECK(figures[name].is_null());
  CHECK_FALSE(figures["exposed"].is_null());
}

TEST_CASE("what JSON has no number for is left out of the curves") {
  std::vector<RunFiles> runs = {run_of(2), RunFiles()};
  runs[0].steps[1].values.fill(std::numeric_limits<double>::quiet_NaN());
  runs[0].validations = {{1, std::numeric_limits<double>::infinity()}};
  const nlohmann::json data = data_of(run_report(runs));
  CHECK(data["runs"][0]["mean"]["loss"][1].is_null());
  CHECK(data["runs"][0]["notFinite"] == std::vector<int>{0, 1});
  CHECK(data["runs"][0]["validations"][0][1].is_null());
  CHECK(data["runs"][1]["steps"] == 0);
  CHECK(data["runs"][1]["figures"]["loss"].is_null());
}

TEST_CASE("no name, key or value of a file can end the page's script") {
  RunFiles run = run_of(1);
  const std::string hostile = "</script><script>alert(1)</script>\"\\\n\t";
  run.name = hostile;
  run.problems = {hostile};
  RunStart start;
  start.config = {{hostile, hostile}};
  start.facts = {{hostile, hostile}};
  start.planned_memory = {{hostile, 1}};
  run.starts = {start};
  const std::vector<RunFiles> runs = {run};
  const std::string page = run_report(runs), clean = run_report(std::vector<RunFiles>{run_of(1)});
  const auto count = [](const std::string& text, const std::string& word) {
    size_t found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  CHECK(count(page, "<script") == count(clean, "<script"));
  CHECK(count(page, "</script") == count(clean, "</script"));
  const nlohmann::json data = data_of(page);
  CHECK(data["runs"][0]["name"] == hostile);
  CHECK(data["runs"][0]["config"][0][1] == hostile);
}

TEST_CASE("the page asks nothing of the network") {
  const std::string page = run_report(std::vector<RunFiles>{run_of(1)});
  for (const char* word : {"src=", "href=", "@import", "url(", "fetch(", "http:", "https:"})
    CHECK(page.find(word) == std::string::npos);
}

}  // namespace sfsdp::train::run_report_test
