// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/commands.h"

#include <doctest/doctest.h>

#include <sstream>

#include "sfsdp/base/check.h"

namespace sfsdp::tools::commands_test {
namespace {

struct Result {
  int status = 0;
  std::string out, err;
};

// Without running: what a command would do is no part of these tests.
Result call(const Command& command, const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const auto run = [](const Request&, std::ostream&, std::ostream&) { return 0; };
  const int status = run_command(command, args, run, out, err);
  return {status, out.str(), err.str()};
}

Request parse(const std::string& command, const std::vector<std::string>& args) {
  return parse_request(find_command(command), args);
}

// A value that an option with a value takes.
std::string value_of(const Option& option) {
  return option.name == "--mesh" ? "dp_shard=4" : option.name == "--world" ? "4" : "x";
}

TEST_CASE("every command explains itself and each of its options, on standard output") {
  const std::string all = help_of_all();
  for (const Command& command : commands()) {
    CAPTURE(command.name);
    CHECK(all.find("\n  " + command.name + " ") != std::string::npos);
    for (const char* flag : {"--help", "-h"}) {
      const Result help = call(command, {flag});
      CHECK(help.status == 0);
      CHECK(help.err.empty());
      CHECK(help.out.starts_with("usage: sfsdp " + command.name));
      for (const Option& option : command.options) CHECK(help.out.find("  " + option.name) != std::string::npos);
      if (command.takes_config) CHECK(help.out.find("  --config FILE") != std::string::npos);
    }
    CHECK(call(command, {"--", "--help"}).out.empty());  // that is for the ranks
  }
  CHECK(help_of(find_command("train")).find("--training.steps INT") != std::string::npos);
}

TEST_CASE("every option of every command is read; misspelt, it is named") {
  for (const Command& command : commands()) {
    for (const Option& option : command.options) {
      CAPTURE(command.name);
      CAPTURE(option.name);
      std::vector<std::string> args = {option.name};
      if (!option.value.empty() && !option.value_is_optional) args.push_back(value_of(option));
      CHECK(call(command, args).status == 0);
      CHECK(parse_request(command, args).own.has(option.name));
      if (option.name.size() < 4) continue;
      args[0].insert(args[0].size() - 1, "x");
      const Result wrong = call(command, args);
      CHECK(wrong.status == 2);
      CHECK(wrong.err.find("error: unknown flag " + args[0]) == 0);
      CHECK(wrong.err.find("did you mean " + option.name + "?") != std::string::npos);
      if (!option.value.empty()) continue;
      CHECK_FALSE(parse_request(command, std::vector<std::string>{option.name, "false"}).own.has(option.name));
      CHECK(parse_request(command, std::vector<std::string>{option.name + "=true"}).own.has(option.name));
    }
    CHECK(call(command, {"--zzzzzz"}).err.find("did you mean") == std::string::npos);
  }
}

TEST_CASE("every command that takes a config takes it by both names, and all keys of train") {
  for (const Command& command : commands()) {
    if (!command.takes_config) continue;
    CAPTURE(command.name);
    CHECK(parse_request(command, std::vector<std::string>{"--config", "c.toml"}).config_args ==
          std::vector<std::string>{"--config=c.toml"});
    CHECK(parse_request(command, std::vector<std::string>{"--job.config_file=c.toml", "--training.steps", "3"})
              .config_args == std::vector<std::string>{"--job.config_file=c.toml", "--training.steps=3"});
    CHECK(call(command, {"--training.stepz", "3"}).err.find("did you mean --training.steps?") != std::string::npos);
  }
}

TEST_CASE("a command that does not exist names the nearest") {
  std::string names;
  for (const Command& command : commands()) names += (names.empty() ? "" : ", ") + command.name;
  const std::string expected = "no command simulat\n  expected " + names + "; did you mean simulate?";
  CHECK_THROWS_WITH_AS(find_command("simulat"), expected.c_str(), UserError);
}

TEST_CASE("options of the command are taken, all else is train's") {
  const Request r = parse("simulate", {"--machine", "m.toml", "--simulate.jitter=0.1", "--training.steps", "3",
                                       "--json", "--config", "c.toml", "--world", "8"});
  CHECK(r.world == 8);
  CHECK(r.get("machine") == "m.toml");
  CHECK(r.get("simulate.jitter") == "0.1");
  CHECK(r.has("json"));
  CHECK(r.config_args == std::vector<std::string>{"--training.steps=3", "--config=c.toml"});
}

TEST_CASE("a mesh is short for the degrees, and the world where none is given") {
  const Request r = parse("plan", {"--mesh", "dp_replicate=2,dp_shard=4"});
  CHECK(r.world == 8);
  CHECK(r.config_args == std::vector<std::string>{"--parallelism.data_parallel_replicate_degree=2",
                                                  "--parallelism.data_parallel_shard_degree=4"});
  CHECK(parse("plan", {"--mesh=dp_replicate=2", "--world", "8"}).world == 8);
  CHECK_THROWS_WITH_AS(
      parse("plan", {"--mesh", "dp_shart=4"}),
      "--mesh dp_shart=4: no axis dp_shart\n  expected dp_replicate, dp_shard, ep, cp or tp; did you mean dp_shard?",
      UserError);
  for (const char* mesh : {"dp_shard=0", "dp_shard"})
    CHECK_THROWS_WITH_AS(parse("plan", {"--mesh", mesh}),
                         doctest::Contains("expected a number of at least 1, as in dp_shard=4"), UserError);
  CHECK_THROWS_WITH_AS(parse("plan", {"--mesh", "dp_shard=2,dp_shard=2"}), doctest::Contains("each axis once"),
                       UserError);
}

TEST_CASE("a degree is given by --mesh or by its key, or by both alike, in either order") {
  const std::vector<std::string> mesh = {"--mesh", "dp_shard=2,tp=2"},
                                 degree = {"--parallelism.tensor_parallel_degree", "4"},
                                 other = {"--parallelism.context_parallel_degree", "4"};
  const auto both = [&](std::vector<std::string> first, const std::vector<std::string>& then) {
    first.insert(first.end(), then.begin(), then.end());
    return parse("plan", first);
  };
  const char* error =
      "--mesh dp_shard=2,tp=2 beside --parallelism.tensor_parallel_degree 4\n  expected the same, or one of them; "
      "--mesh stands for "
      "--parallelism.tensor_parallel_degree=2";
  CHECK_THROWS_WITH_AS(both(mesh, degree), error, UserError);
  CHECK_THROWS_WITH_AS(both(degree, mesh), error, UserError);
  CHECK(both(mesh, other).config_args.size() == 3);
  CHECK(both(mesh, {"--parallelism.tensor_parallel_degree", "2"}).config_args.size() ==
        3);  // as plan --search prints them
}

TEST_CASE("a value that an option cannot have says what was expected") {
  CHECK_THROWS_WITH_AS(parse("plan", {"--world", "many"}), "--world = many\n  expected a number of at least 1",
                       UserError);
  CHECK_THROWS_WITH_AS(parse("plan", {"--machine"}), "--machine without a value\n  expected --machine M", UserError);
  const Request r = parse("simulate", {"--simulate.execution", "fuse"});
  CHECK_THROWS_WITH_AS(choice_of(r, "simulate.execution", {"fused", "eager"}),
                       "--simulate.execution = fuse\n  expected fused or eager; did you mean fused?", UserError);
  CHECK(choice_of(parse("simulate", {}), "simulate.execution", {"fused", "eager"}) == "fused");
}

TEST_CASE("what a command throws is an error with a prefix; status 2 where the user can cure it, else 1") {
  std::ostringstream out, err;
  const auto run = [](const Request&, std::ostream&, std::ostream&) -> int { throw UserError("training.steps = 0"); };
  CHECK(run_command(find_command("plan"), {}, run, out, err) == 2);
  CHECK(err.str() == "error: training.steps = 0\n");
  const auto fail = [](const Request&, std::ostream&, std::ostream&) -> int { throw CommError("rank 1 is gone"); };
  CHECK(run_command(find_command("plan"), {}, fail, out, err) == 1);
}

}  // namespace
}  // namespace sfsdp::tools::commands_test
