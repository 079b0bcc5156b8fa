// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/arguments.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"

namespace sfsdp::arguments_test {
namespace {

const Syntax kSyntax = {"sfsdp try",
                        {{"-n", "N", "ranks"},
                         {"--log-rank", "LIST", "whose lines"},
                         {"--json", "", "as one object"},
                         {"--job.print_config", "", "log it"},
                         {"--print-ir-diff", "FOLDER", "what changed", true},
                         {"--training.steps", "INT", "steps"},
                         {"--metrics.log_freq", "INT", "steps between lines"},
                         {"--model.args.", "VALUE", "of the flavor"}},
                        "FILE",
                        "arguments of the ranks"};

Arguments parse(const std::vector<std::string>& args) { return parse_arguments(args, kSyntax); }

std::string error_of(const std::vector<std::string>& args) {
  const Arguments arguments = parse(args);
  return arguments.errors.size() == 1 ? arguments.errors[0] : concat(arguments.errors.size(), " errors");
}

TEST_CASE("a value stands after a blank or =, may be negative or empty, and the last one wins") {
  const Arguments a = parse({"-n", "2", "--training.steps=7", "--training.steps", "-1", "--log-rank", ""});
  CHECK(a.errors.empty());
  CHECK(a.get("-n") == "2");
  CHECK(a.get("--training.steps") == "-1");
  CHECK(a.all("--training.steps") == std::vector<std::string>{"7", "-1"});
  CHECK(a.has("--log-rank"));
  CHECK(a.get("--log-rank", "x") == "");
  CHECK(a.get("--metrics.log_freq", "10") == "10");
}

TEST_CASE("a boolean is bare or takes true or false; no_ switches it off") {
  for (const std::vector<std::string>& on :
       {std::vector<std::string>{"--json"}, {"--json", "true"}, {"--json=true"}, {"--no_json", "--json"}})
    CHECK(parse(on).has("--json"));
  for (const std::vector<std::string>& off :
       {std::vector<std::string>{"--json", "false"}, {"--json=false"}, {"--no-json"}, {"--json", "--no_json"}, {}})
    CHECK_FALSE(parse(off).has("--json"));
  CHECK(parse({"--job.no-print-config"}).get("--job.print_config") == "false");
  CHECK(parse({"--json", "graph.ir"}).operands == std::vector<std::string>{"graph.ir"});
  CHECK(error_of({"--json=yes"}) == "--json = yes\n  expected true or false; bare it is true");
  CHECK(error_of({"--job.no_print_config=true"}) ==
        "--job.no_print_config = true\n  expected no value, or --job.print_config true");
}

TEST_CASE("dashes and underscores are one; a name that ends in a dot takes all below it") {
  CHECK(parse({"--log_rank", "1"}).get("--log-rank") == "1");
  CHECK(parse({"--training-x.steps", "1"}).errors.size() == 1);
  CHECK(parse({"--model.args.n-layers", "3"}).get("--model.args.n_layers") == "3");
  CHECK(parse({"--model.args.", "3"}).errors.size() <= 1);
}

TEST_CASE("an optional value stands after = only") {
  CHECK(parse({"--print-ir-diff", "graph.ir"}).operands == std::vector<std::string>{"graph.ir"});
  CHECK(parse({"--print-ir-diff"}).has("--print-ir-diff"));
  CHECK(parse({"--print-ir-diff=d"}).get("--print-ir-diff") == "d");
  CHECK(error_of({"--print-ir-diff="}) == "--print-ir-diff=\n  expected --print-ir-diff, or --print-ir-diff=FOLDER");
}

TEST_CASE("what stands after -- belongs to others, and one argument may be no option") {
  const Arguments a = parse({"-", "--", "train", "--nothing"});
  CHECK(a.operands == std::vector<std::string>{"-"});
  CHECK(*a.rest == std::vector<std::string>{"train", "--nothing"});
  CHECK_FALSE(parse({}).rest);
  CHECK(error_of({"a", "b"}) == "argument b\n  expected a flag of sfsdp try, or -- before arguments of the ranks");
}

TEST_CASE("a command takes as many arguments without a flag as it says") {
  Syntax syntax = kSyntax;
  syntax.most_operands = 2;
  const std::vector<std::string> args = {"a", "--json", "b", "c"};
  const Arguments a = parse_arguments(args, syntax);
  CHECK(a.operands == std::vector<std::string>{"a", "b"});
  CHECK(a.errors.size() == 1);
}

TEST_CASE("a misspelt flag names the one that was meant, and nothing where none is near") {
  CHECK(error_of({"--log-ranks", "1"}) ==
        "unknown flag --log-ranks\n  expected a flag that sfsdp try --help lists; did you mean --log-rank?");
  CHECK(error_of({"--training.stepz", "2"}).ends_with("did you mean --training.steps?"));
  CHECK(error_of({"--training.log_freq", "2"}).ends_with("did you mean --metrics.log_freq?"));  // another section
  CHECK(error_of({"--steps", "2"}).ends_with("did you mean --training.steps?"));                // no section
  CHECK(error_of({"--trian"}) == "unknown flag --trian\n  expected a flag that sfsdp try --help lists");
  CHECK(error_of({"-n", "--json"}) == "-n without a value\n  expected -n N");
  CHECK(parse({"--nix", "1", "--nox", "--training.steps"}).errors.size() == 3);  // all of them
}

TEST_CASE("help lists each option with what its value is called") {
  const std::string text = describe(kSyntax.options);
  CHECK(text.find("  -n N                      ranks\n") == 0);
  CHECK(text.find("\n  --print-ir-diff[=FOLDER]  what changed\n") != std::string::npos);
  CHECK(text.find("\n  --model.args.KEY VALUE    of the flavor\n") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::arguments_test
