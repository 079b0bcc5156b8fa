// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/composites.h"

#include <doctest/doctest.h>

#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::composites_test {
namespace {

// Bytes per element and kernels of each op as PyTorch 2.13's dispatcher records them (tests/fixtures/composite_kernels.py).
// Besides, log_softmax walks three times over a row and its gradient twice, a row's loss reads one element, and its
// gradient makes zeros first, as that of a slice does; rope's copy of conjugates is small.
TEST_CASE("composites: PyTorch's kernels and bytes, as its dispatcher records them") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[10, 100]
  %f = input name=f : f32[10, 100]
  %w = input name=w : bf16[100]
  %cos = input name=cos : f32[10, 50]
  %t = input name=t : i64[10]
fwd:
  %a, %ra = rms_norm %x, %w dims=1 cast_first=true eps=1.0 : bf16[10, 100], f32[10, 1]
  %b, %rb = rms_norm %x, %w dims=1 eps=1.0 : bf16[10, 100], f32[10, 1]
  %c, %rc = rms_norm %f, %w dims=1 eps=1.0 : f32[10, 100], f32[10, 1]
  %d = rope %x, %cos, %cos : bf16[10, 100]
  %k = rope %x, %cos, %cos halves=true in_dtype=true : bf16[10, 100]
  %l = rope %x, %cos, %cos halves=true : bf16[10, 100]
  %m = rope %f, %cos, %cos halves=true : f32[10, 100]
  %e, %n = cross_entropy %x, %t : f32[], i64[]
bwd:
  %g, %gw = rms_norm_backward %x, %x, %w, %ra, none dims=1 cast_first=true : bf16[10, 100], bf16[100]
  %h, %hw = rms_norm_backward %x, %x, %w, %rb, none dims=1 : bf16[10, 100], bf16[100]
  %i = rope_inverse %x, %cos, %cos : bf16[10, 100]
  %j = cross_entropy_backward %e, %x, %t, %n : bf16[10, 100]
  %o = rope_inverse %x, %cos, %cos halves=true in_dtype=true : bf16[10, 100]
  return %a, %b, %c, %d, %e, %g, %h, %i, %j, %k, %l, %m, %o
)");
  struct Expected {
    std::string result;
    int64_t kernels;
    double all, alone;
  };
  const std::vector<Expected> expected = {{"a", 8, 36, 4}, {"b", 8, 40, 4},  {"c", 6, 28, 8},   {"d", 3, 20, 4},
                                          {"e", 3, 22, 2}, {"g", 16, 92, 6}, {"h", 17, 104, 6}, {"i", 3, 20, 4},
                                          {"j", 4, 26, 4}, {"k", 5, 20, 4},  {"l", 7, 52, 4},   {"m", 5, 40, 8},
                                          {"o", 9, 30, 4}};
  const Composites all = {.norm = true, .rope = true, .real_rope = true, .loss = true};
  size_t found = 0;
  for (const auto& op : graph.ops())
    for (const Expected& e : expected) {
      if (op->results().empty() || op->result()->name() != e.result) continue;
      ++found;
      CAPTURE(e.result);
      CHECK(more_kernels(*op, all).count == e.kernels - 1);
      CHECK(more_kernels(*op, all).bytes == doctest::Approx(1000 * (e.all - e.alone)));
      CHECK(more_kernels(*op, {}).count == 0);
    }
  CHECK(found == expected.size());
}

TEST_CASE("composites: keys and values for each query head; AdamW an operation at a time") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %q = input name=q : bf16[1, 8, 10, 4]
  %k = input name=k : bf16[1, 2, 10, 4]
fwd:
  %o, %l = sdpa %q, %k, %k, none is_causal=true : bf16[1, 8, 10, 4], f32[1, 8, 10]
  %p, %m = sdpa %q, %q, %q, none is_causal=true : bf16[1, 8, 10, 4], f32[1, 8, 10]
bwd:
  %dq, %dk, %dv = sdpa_backward %o, %q, %k, %k, %o, %l, none is_causal=true : bf16[1, 8, 10, 4], bf16[1, 2, 10, 4], bf16[1, 2, 10, 4]
  return %dq, %dk, %dv, %p
)");
  const Composites heads = {.heads = true};
  const auto more = [&](const std::string& result) {
    for (const auto& op : graph.ops())
      if (op->result()->name() == result) return more_kernels(*op, heads).bytes;
    return -1.0;
  };
  const double one = 2.0 * 2 * 10 * 4;      // bytes of k
  CHECK(more("o") == 2 * (one + 4 * one));  // read, written four times
  CHECK(more("dq") ==
        2 * (4 * one + 4 * one));  // written four times, read four times, written once: and that the op does
  CHECK(more("p") == 0);
}

TEST_CASE("composites: eager mode dispatches each kernel, a compiled block does not") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[10, 100]
  %cos = input name=cos : f32[10, 50]
fwd:
  %d = rope %x, %cos, %cos : bf16[10, 100]
  return %d
)");
  Machine machine;
  machine.memory_bandwidth = machine.memory_efficiency = 1;
  machine.launch = 10000;
  machine.dispatch = 7;
  const auto kernel = [&](Execution execution, const Composites& composites) {
    return price_kernels(graph, machine, execution, System::Fsdp2, composites).kernels.at(0);
  };
  const Kernel one = kernel(Execution::Eager, {}), eager = kernel(Execution::Eager, {.rope = true}),
               compiled = kernel(Execution::Compile, {.rope = true});
  CHECK(eager.seconds - one.seconds == doctest::Approx(2 * 10000 + 16 * 1000));
  CHECK(eager.host - one.host == doctest::Approx(2 * 7));
  CHECK(compiled.seconds == eager.seconds);
  CHECK(compiled.host == 7);
}

}  // namespace
}  // namespace sfsdp::cost::composites_test
