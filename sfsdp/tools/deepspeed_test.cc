// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/deepspeed.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/tools/simulate_step.h"

namespace sfsdp::tools::deepspeed_test {
namespace {

const char* const kParams = R"(
graph mesh [dp_shard=2] view local
  %e = param name=e.weight : f32[60] at e
  %l.flat = param members=[l.q, l.k, l.w] name=l.flat numels=[30, 20, 100] offsets=[0, 30, 50] size=150 : f32[75/dp_shard] at l
fwd:
  %y = aten.neg %e : f32[60]
  return %y
)";

TEST_CASE("deepspeed: a bucket takes parameters in their order until it has its elements") {
  const ir::Graph graph = ir::parse_or_throw(kParams);
  const auto units = [&](int64_t prefetch, int64_t live) {
    return deepspeed_units(graph, {.prefetch_bucket = prefetch, .max_live_parameters = live});
  };
  CHECK(units(1, 1000) == "e.weight, l.q, l.k, l.w");
  CHECK(units(50, 1000) == "e.weight, [l.q, l.k], l.w");
  CHECK(units(61, 1000) == "[e.weight, l.q], [l.k, l.w]");
  CHECK(units(1000, 1000) == "[e.weight, l.q, l.k, l.w]");
  CHECK(units(1000, 100) == "e.weight, [l.q, l.k], l.w");  // one bucket in use and one ahead
}

SimulateSetup setup_of(std::vector<std::string> args, const train::JobConfig& config = {}) {
  args.insert(args.end(),
              {"--machine", "dgx_h100", "--simulate.execution", "eager", "--simulate.system", "deepspeed3"});
  return simulate_setup(parse_request(find_command("simulate"), args), config);
}

TEST_CASE("deepspeed: the documentation's sizes, or those that are given; stage 3 alone") {
  const SimulateSetup usual = setup_of({});
  REQUIRE(usual.deepspeed);
  CHECK(usual.deepspeed->prefetch_bucket == 50000000);
  CHECK(usual.deepspeed->max_live_parameters == 1000000000);
  CHECK(usual.options.reduce_bucket == 500000000);
  CHECK(usual.pytorch->reduce_bucket == 500000000);
  CHECK(setup_of({"--simulate.prefetch_bucket", "7"}).deepspeed->prefetch_bucket == 7);
  CHECK(setup_of({"--simulate.reduce_bucket", "9"}).options.reduce_bucket == 9);
  train::JobConfig config;
  config.parallelism.zero_stage = 2;
  CHECK_THROWS_WITH_AS(setup_of({}, config), doctest::Contains("expected 3; stages 1 and 2 are fsdp2"), UserError);
  config.parallelism.zero_stage = 3;
  config.parallelism.fsdp_units = "layers.*";
  CHECK_THROWS_WITH_AS(setup_of({}, config), doctest::Contains("expected neither"), UserError);
  CHECK_THROWS_AS(setup_of({"--simulate.reduce_bucket", "0"}), UserError);
}

}  // namespace
}  // namespace sfsdp::tools::deepspeed_test
