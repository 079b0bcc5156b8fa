// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/sweep_cases.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"

using sfsdp::tools::read_sweep;
using sfsdp::tools::SweepCase;

namespace {

// "mesh=dp_shard=8 training.seq_len=2048" of each case.
std::vector<std::string> texts_of(const std::vector<SweepCase>& cases) {
  std::vector<std::string> texts;
  for (const SweepCase& c : cases) {
    std::string text;
    for (const auto& option : c.options) text += (text.empty() ? "" : " ") + option.name + "=" + option.value;
    texts.push_back(c.error.empty() ? text : "error");
  }
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a line of a sweep is one configuration, sections are dotted names") {
  const auto cases = read_sweep(R"(
# a comment
{"mesh": "dp_shard=8", "training": {"seq_len": 2048, "dtype": "bfloat16"}, "model.args.tied": true}
{"simulate.jitter": 0.25, "lr_scheduler.decay_ratio": null}
)",
                                "cases.jsonl");
  CHECK(texts_of(cases) == Texts{"mesh=dp_shard=8 training.seq_len=2048 training.dtype=bfloat16 model.args.tied=true",
                                 "simulate.jitter=0.25 lr_scheduler.decay_ratio=None"});
  CHECK(cases[0].line == 3);
  CHECK(cases[0].options[2].json == "\"bfloat16\"");
  CHECK(cases[1].options[1].json == "null");
}

TEST_CASE("lists are ranges whose product is taken, the last varying fastest; a list in a list is one value") {
  CHECK(texts_of(read_sweep(R"({"a": [1, 2], "b": {"c": ["x", "y"]}, "d": -3})", "f")) ==
        Texts{"a=1 b.c=x d=-3", "a=1 b.c=y d=-3", "a=2 b.c=x d=-3", "a=2 b.c=y d=-3"});
  const auto lists = read_sweep(R"({"debug.disable_pass": [["remat", "wrap"], []]})", "f");
  CHECK(texts_of(lists) == Texts{"debug.disable_pass=remat,wrap", "debug.disable_pass="});
  CHECK(lists[0].options[0].json == R"(["remat", "wrap"])");
}

TEST_CASE("a line of a sweep that is wrong is a case with an error, the others go on") {
  const auto cases =
      read_sweep("{\"a\": 1}\n{\"a\": }\n[1]\n{\"a\": []}\n{\"a.b\": 1, \"a\": {\"b\": 2}}\n{\"a\": 2}", "f");
  CHECK(texts_of(cases) == Texts{"a=1", "error", "error", "error", "error", "a=2"});
  CHECK(cases[1].error.find("f:2") != std::string::npos);
  CHECK(cases[2].error == "f:3: an array\n  expected an object, such as {\"mesh\": \"dp_shard=8\"}");
  CHECK(cases[4].error == "a.b is set twice\n  expected it once, in a section or with its whole name");
}

TEST_CASE("a sweep says which values its options take") {
  const auto error = [](const std::string& line) { return read_sweep(line, "f")[0].error; };
  const std::string no_null = " = null\n  expected a number or a text; null unsets a key of a config";
  CHECK(error(R"({"mesh": null})") == "mesh" + no_null);
  CHECK(error(R"({"simulate": {"jitter": [0.1, null]}})") == "simulate.jitter" + no_null);
  CHECK(error(R"({"help": true})") ==
        "help in a case of a sweep\n  expected a key of a config, or an option that simulate --help lists");
}

TEST_CASE("a sweep of too many configurations is refused before they are made") {
  std::string range = "[0";
  for (int i = 1; i < 200; ++i) range += "," + std::to_string(i);
  range += "]";
  const std::string line = "{\"a\": " + range + ", \"b\": " + range + ", \"c\": " + range + "}";
  CHECK_THROWS_WITH_AS(read_sweep(line, "f"),
                       "f:1: more than 1,000,000 configurations\n  expected fewer; share them out over several files",
                       sfsdp::UserError);
}
