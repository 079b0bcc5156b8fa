// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_cost.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost {
namespace {

// 1 byte/s, 1 flop/s: a kernel's seconds are its bytes, a product's its flops where memory is fast.
Machine unit_machine() {
  Machine m;
  m.peak_bf16 = m.peak_f32 = 1;
  m.matmul_efficiency = m.attention_efficiency = m.memory_efficiency = 1;
  m.attention_half_length = 0;
  m.memory_bandwidth = 1;
  return m;
}

std::vector<double> bytes_of(const std::string& text, Execution execution) {
  const ir::Graph graph = ir::parse_or_throw(text);
  std::vector<double> bytes;
  for (const Kernel& kernel : form_kernels(graph, unit_machine(), execution).kernels) bytes.push_back(kernel.bytes);
  return bytes;
}

using Bytes = std::vector<double>;

TEST_CASE("kernels: who fuses what, over the border of a block and outside of blocks") {
  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[10]
fwd:
  %a = aten.neg %x : f32[10] at layers.0.norm
  %b = aten.neg %a : f32[10] at layers.0.mlp
  %c = aten.neg %b : f32[10] at layers.1.norm
  %d = aten.neg %c : f32[10] at layers.1.mlp
  %e = aten.neg %d : f32[10] at norm
  %f = aten.neg %e : f32[10] at norm
  return %f
)";
  CHECK(bytes_of(text, Execution::Fused) == Bytes{80});
  CHECK(bytes_of(text, Execution::Compile) == Bytes{80, 80, 80, 80});
  CHECK(bytes_of(text, Execution::Eager) == Bytes{80, 80, 80, 80, 80, 80});
}

TEST_CASE(
    "kernels: what is cut apart writes and reads what it had in registers, and reads twice what both parts read") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[10]
fwd:
  %a = aten.neg %x : f32[10]
  %b = aten.mul.Tensor %a, %x : f32[10]
  %c = aten.neg %b : f32[10]
  return %c
)");
  Machine machine = unit_machine();
  machine.launch = 1000;
  const KernelTable table = form_kernels(graph, machine, Execution::Fused);
  REQUIRE(table.kernels.size() == 1);
  const KernelCuts cuts(graph, machine);
  CHECK(cuts.seconds(table.kernels[0], 0) == 0);
  CHECK(cuts.seconds(table.kernels[0], 1) == 1000 + 3 * 40);  // a is written and read, x read again
  CHECK(cuts.seconds(table.kernels[0], 2) == 1000 + 2 * 40);  // b
  CHECK(cuts.seconds(table.kernels[0], 3) == 0);
}

TEST_CASE("kernels: no fusion over a section's end or a product") {
  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4, 4]
fwd:
  %a = aten.neg %x : f32[4, 4] at layers.0
  %b = aten.mm %a, %x : f32[4, 4] at layers.0
  %c = aten.neg %b : f32[4, 4] at layers.0
bwd:
  %d = aten.neg %c : f32[4, 4] at layers.0
  return %d
)";
  CHECK(bytes_of(text, Execution::Fused) == Bytes{128, 192, 128, 128});
  CHECK(bytes_of(text, Execution::Compile) == Bytes{128, 192, 128, 128});
}

TEST_CASE("kernels: casts into a bucket are the pack's own, and FSDP2 copies gathered units out") {
  const std::string text = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : bf16[8/dp_shard]
  %x = input name=x : bf16[16] own(dp_shard)
fwd:
  %s = all_gather.start %w axis=dp_shard dim=0 : async bf16[16]
  %f = wait %s : bf16[16]
  %y = aten.mul.Tensor %x, %f : bf16[16]
bwd:
  %g = cast %y : f32[16]
  %p = pack [%g] offsets=[0] : f32[16]
  return %p
)";
  // the product of 16 values, then 32 bytes of bf16 read and 64 of f32 written
  CHECK(bytes_of(text, Execution::Fused) == Bytes{96, 96});
  CHECK(bytes_of(text, Execution::Compile) == Bytes{64, 96, 96});
  CHECK(bytes_of(text, Execution::Eager) == Bytes{64, 96, 96});
}

TEST_CASE("kernels: eager multiplies complex numbers in one kernel, casts are their own") {
  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[10, 2]
  %cos = input name=cos : f32[10]
fwd:
  %a = aten._to_copy %x dtype=f32 : f32[10, 2]
  %re = aten.select.int %a dim=-1 index=0 : f32[10]{2}
  %im = aten.select.int %a dim=-1 index=1 : f32[10]{2}
  %b = aten.mul.Tensor %re, %cos : f32[10]
  %c = aten.mul.Tensor %im, %cos : f32[10]
  %d = aten.sub.Tensor %b, %c : f32[10]
  %e = aten.stack [%d, %b] dim=-1 : f32[10, 2]
  %f = aten._to_copy %e dtype=bf16 : bf16[10, 2]
  return %f
)";
  // casts of 40 and 80 bytes; the product reads two halves of 40 and 40 of cosines, and writes 80
  CHECK(bytes_of(text, Execution::Eager) == Bytes{120, 160, 120});
}

TEST_CASE("kernels: an embedding reads the rows it picks") {
  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %table = param name=table : f32[1000, 16]
  %i = input name=i : i64[4]
fwd:
  %y = aten.embedding %table, %i : f32[4, 16]
  return %y
)";
  CHECK(bytes_of(text, Execution::Fused) == Bytes{4 * 64 + 4 * 8 + 4 * 64});
}

TEST_CASE("kernels: narrow heads are slower per flop, wide ones no faster than 128") {
  Machine m = unit_machine();
  m.memory_bandwidth = 1e9;
  const auto seconds_per_flop = [&](int width) {
    const std::string shape = concat("bf16[1, 1, 64, ", width, "]");
    const ir::Graph graph = ir::parse_or_throw(concat(R"(
graph mesh [dp_shard=1] view local
  %q = input name=q : )",
                                                      shape, R"(
fwd:
  %o, %l = aten._scaled_dot_product_flash_attention_for_cpu %q, %q, %q, none is_causal=true : )",
                                                      shape, R"(, f32[1, 1, 64]
  return %o
)"));
    const Kernel kernel = form_kernels(graph, m, Execution::Fused).kernels.at(0);
    return kernel.seconds / kernel.flops;
  };
  CHECK(seconds_per_flop(128) == doctest::Approx(1));
  CHECK(seconds_per_flop(256) == doctest::Approx(1));
  CHECK(seconds_per_flop(64) == doctest::Approx(1 / 0.77).epsilon(0.01));
  CHECK(seconds_per_flop(32) > seconds_per_flop(64));
}

TEST_CASE("kernels: eager's host dispatches every op, views too; a compiled block its kernels, a plan none") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4, 4]
fwd:
  %t = aten.t %x : f32[4, 4]{1, 4} at layers.0
  %a = aten.mm %x, %t : f32[4, 4] at layers.0
  %b = aten.neg %a : f32[4, 4] at layers.0
  %c = aten.neg %b : f32[4, 4] at layers.0
  return %c
)");
  Machine m = unit_machine();
  m.dispatch = 1;
  const auto host = [&](Execution execution) {
    double sum = 0;
    for (const Kernel& kernel : form_kernels(graph, m, execution).kernels) sum += kernel.host;
    return sum;
  };
  CHECK(host(Execution::Eager) >= 4);
  CHECK(host(Execution::Compile) == 2);
  CHECK(host(Execution::Fused) == 0);
}

TEST_CASE("execution: by name") {
  CHECK(parse_execution("compile", "--execution") == Execution::Compile);
  CHECK_THROWS_WITH_AS(parse_execution("fast", "--execution"),
                       "--execution fast\n  expected fused, compile, eager or reference", UserError);
}

}  // namespace
}  // namespace sfsdp::cost
