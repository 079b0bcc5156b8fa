// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/request.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"

namespace sfsdp::tools {
namespace {

Request parse(const std::vector<std::string>& args) {
  return parse_request(args, {"machine", "simulate.jitter", "simulate.execution"}, {"json"});
}

TEST_CASE("request: options of the command are taken, all else is train's") {
  const Request r = parse({"--machine", "m.toml", "--simulate.jitter=0.1", "--training.steps", "3", "--json",
                           "--config", "c.toml", "--world", "8"});
  CHECK(r.world == 8);
  CHECK(r.get("machine", "") == "m.toml");
  CHECK(r.get("simulate.jitter", "") == "0.1");
  CHECK(r.has("json"));
  CHECK(r.config_args == std::vector<std::string>{"--job.config_file", "c.toml", "--training.steps", "3"});
}

TEST_CASE("request: a mesh is short for the degrees, and the world where none is given") {
  const Request r = parse({"--mesh", "dp_replicate=2,dp_shard=4"});
  CHECK(r.world == 8);
  CHECK(r.config_args == std::vector<std::string>{"--parallelism.data_parallel_replicate_degree", "2",
                                                  "--parallelism.data_parallel_shard_degree", "4"});
  CHECK(parse({"--mesh=dp_replicate=2", "--world", "8"}).world == 8);
  CHECK_THROWS_WITH_AS(
      parse({"--mesh", "dp_shart=4"}),
      doctest::Contains("no axis dp_shart\n  expected dp_replicate or dp_shard; the nearest is dp_shard"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--mesh", "dp_replicate=1000000000000,dp_shard=1000000000000"}),
                       doctest::Contains("more than 1048576 ranks"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--mesh", "dp_shard=0"}), doctest::Contains("at least 1"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--mesh", "dp_shard"}), doctest::Contains("as in dp_shard=4"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--mesh", "dp_shard=2,dp_shard=2"}), doctest::Contains("each axis once"), UserError);
}

TEST_CASE("request: what is misspelt is named with the nearest that exists") {
  CHECK_THROWS_WITH_AS(parse({"--simulate.jiter", "1"}), doctest::Contains("the nearest is --simulate.jitter"),
                       UserError);
  CHECK_THROWS_WITH_AS(parse({"--machin", "m"}), doctest::Contains("the nearest is --machine"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--world", "many"}), doctest::Contains("--world many\n  expected a number"), UserError);
  CHECK_THROWS_WITH_AS(parse({"--machine"}), doctest::Contains("expected a value behind it"), UserError);
  const Request r = parse({"--simulate.execution", "fuse"});
  CHECK_THROWS_WITH_AS(choice_of(r, "simulate.execution", {"fused", "eager"}),
                       doctest::Contains("--simulate.execution fuse\n  expected fused or eager; the nearest is fused"),
                       UserError);
  CHECK(choice_of(parse({}), "simulate.execution", {"fused", "eager"}) == "fused");
}

}  // namespace
}  // namespace sfsdp::tools
