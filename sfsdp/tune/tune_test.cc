// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/tune.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/ir/parser.h"

namespace sfsdp::tune::tune_test {
namespace {

// A product, and five pointwise ops in a row; backward reads the last of each.
constexpr const char* kBlock = R"(graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[64, 896]
  %w = param name=layers.0.w : bf16[896, 64]
  %s = input name=s : bf16[64, 64]
fwd:
  %p = aten.mm %x, %w : bf16[64, 64] at layers.0
  %a = aten.neg %s : bf16[64, 64] at layers.0
  %b = aten.neg %a : bf16[64, 64] at layers.0
  %c = aten.neg %b : bf16[64, 64] at layers.0
  %d = aten.neg %c : bf16[64, 64] at layers.0
  %q = aten.neg %d : bf16[64, 64] at layers.0
bwd:
  %g = aten.mul.Tensor %p, %q : bf16[64, 64] at layers.0
  return %g
)";

// The product is 2 · 64 · 64 · 896 operations, and the row writes 4 · 8192 bytes more: computed again, it is the dearer one
// from 224 operations per byte on. H100: 0.667 · 989 / (0.8 · 3.35) = 246.1; A100: 0.78 · 312 / (0.8 · 2) = 152.1.
TEST_CASE("what a memory budget computes again follows the machine's flops over its bandwidth") {
  for (const auto& [machine, flops] : {std::pair("dgx_h100", 7340032), std::pair("a100_400g", 0)}) {
    CAPTURE(machine);
    ir::Graph graph = ir::parse_or_throw(kBlock);
    passes::PipelineOptions options;
    options.flat = false;
    options.remat = {.mode = passes::RematMode::MemoryBudget, .memory_budget = 0.5};
    std::optional<plan::BucketLayouts> layout;
    const auto reports = run_pipeline(graph, options, {.machine = machine}, layout);
    const auto remat = std::ranges::find(reports, "remat", &passes::PassReport::name);
    REQUIRE(remat != reports.end());
    CHECK(remat->metrics.get("flops_repeated") == flops);
  }
}

}  // namespace
}  // namespace sfsdp::tune::tune_test
