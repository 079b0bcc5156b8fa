// SPDX-License-Identifier: BSD-3-Clause
// A configuration as a file: what is printed and saved reproduces the run.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/config/config_fields.h"

namespace sfsdp::train::config_print_test {
namespace {

JobConfig from_flags(const std::vector<std::string>& flags) { return load_config(flags); }

JobConfig from_toml(const std::string& text) {
  const testing::TemporaryFolder folder;
  return load_config_file(folder.write("job.toml", text));
}

TEST_CASE("what --print-config prints is read as the same configuration, and prints the same again, hash included") {
  const JobConfig config = from_flags({"--optimizer.no_decay", "*norm*,*bias", "--training.steps", "7",
                                       "--model.args.vocab_size", "256", "--lr_scheduler.decay_ratio", "0.25"});
  const std::string text = printed(config);
  CHECK(text.starts_with("# Configuration "));
  CHECK(text.find("\nno_decay = [\"*norm*\", \"*bias\"]\n") != std::string::npos);
  CHECK(text.find("\ndecay_ratio = 0.25\n") != std::string::npos);
  CHECK(text.find("\n# total_steps is unset\n") != std::string::npos);
  CHECK(text.find("\nconfig_file") == std::string::npos);
  CHECK(printed(from_toml(text)) == text);
  for (const Field& field : config_fields())
    if (field.path() != "job.config_file") CHECK(text.find(field.key + " ") != std::string::npos);
  CHECK(printed(from_flags({"--training.steps", "8"})).substr(0, 40) != text.substr(0, 40));
}

TEST_CASE("job.save_config_file is TOML that reproduces the run, or JSON") {
  const testing::TemporaryFolder scratch;
  const std::filesystem::path folder = scratch.path();
  const auto saved = [&](const std::string& name) {
    const JobConfig config = from_flags({"--job.dump_folder", folder.string(), "--job.save_config_file", name,
                                         "--model.args.dim", "24", "--debug.disable_pass", "wrap"});
    save_config(config);
    std::ifstream file(folder / name);
    return std::pair(config, std::string(std::istreambuf_iterator<char>(file), {}));
  };
  const auto [config, toml] = saved("sub/run.toml");
  CHECK(toml == printed(config));
  const JsonValue root = parse_json(saved("run.json").second, "run.json");
  CHECK(*root.find("training")->find("steps")->as<uint64_t>() == 10000);
  CHECK(*root.find("model.args")->find("dim")->as<uint64_t>() == 24);
  CHECK(root.find("training")->find("dataset_path")->as<JsonNull>());
  CHECK(root.find("debug")->find("disable_pass")->as<JsonArray>()->size() == 1);
  CHECK_THROWS_WITH_AS(save_config(from_flags({"--job.dump_folder", "/proc", "--job.save_config_file", "x"})),
                       doctest::Contains("/proc/x.tmp: cannot be made: "), UserError);
}

TEST_CASE("profiling.profile_freq has room for the steps that are timed") {
  CHECK(from_flags({"--profiling.profile_freq", "3"}).profiling.profile_freq == 3);
  CHECK_THROWS_WITH_AS(
      from_flags({"--profiling.profile_freq", "3", "--profiling.enable_profiling"}),
      "profiling.profile_freq = 3, with profiler_active = 1 and profiler_warmup = 3\n  expected at least their sum, 4",
      UserError);
}

}  // namespace
}  // namespace sfsdp::train::config_print_test
