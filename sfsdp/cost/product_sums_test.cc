// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_sums.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::product_sums_test {
namespace {

// A weight of 16 x 16 whose gradient is a product in bf16, and a norm's of 16, side by side in the sum of a unit.
const char* const kText = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[8, 16]
  %g = input name=g : bf16[8, 16]
  %n = input name=n : bf16[16]
fwd:
  %y = aten.neg %x : bf16[8, 16]
bwd:
  %dn = aten.neg %n : bf16[16]
  %dw = linear_dw %g, %x : bf16[16, 16]
  %cn = cast %dn kernel=0 : f32[16]
  %cw = cast %dw kernel=0 : f32[16, 16]
  %p = pack [%cn, %cw] kernel=0 offsets=[0, 16] : f32[272]
  %sum = accumulate %p kernel=0 : f32[272]
)";

Machine unit_machine() {
  Machine m;
  m.peak_bf16 = m.peak_f32 = 1e30;
  m.matmul_efficiency = m.memory_efficiency = 1;
  m.memory_bandwidth = 1;
  return m;
}

TEST_CASE("product sums: products whose gradient nothing but the sum reads") {
  const auto count = [](const std::string& rest) { return product_sums(ir::parse_or_throw(kText + rest)).size(); };
  CHECK(count("  return %sum\n") == 1);
  CHECK(count("  %again = aten.neg %dw : bf16[16, 16]\n  return %sum, %again\n") == 0);
  CHECK(product_sums(ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[8, 16]
bwd:
  %dw = linear_dw %x, %x : bf16[16, 16]
  return %dw
)"))
            .empty());
}

TEST_CASE("product sums: a product reads and writes the sum, the sum's kernel has the rest") {
  ir::Graph graph = ir::parse_or_throw(std::string(kText) + "  return %sum\n");
  const auto kernel = [&](bool in_products, const char* opcode) {
    Composites composites;
    composites.product_sums = in_products;
    const KernelTable table = price_kernels(graph, unit_machine(), Execution::Eager, System::Fsdp2, composites);
    for (const Kernel& k : table.kernels)
      if (k.ops.back()->is(opcode)) return k;
    return Kernel{};
  };
  // Operands 2 x 8 x 16 of 2 bytes; the gradient 2 x 256, or the sum 4 x 256 read and written.
  CHECK(kernel(false, "linear_dw").bytes == 512 + 512);
  CHECK(kernel(true, "linear_dw").bytes == 512 + 2048);
  CHECK(kernel(true, "linear_dw").seconds_at(0) == 512 + 1024);  // the first micro-batch has no sum to read
  // 10 bytes an element: of both gradients, or of the norm's.
  CHECK(kernel(false, "accumulate").bytes == 10 * 272);
  CHECK(kernel(true, "accumulate").bytes == 10 * 16);
  CHECK(kernel(true, "accumulate").seconds_at(0) == 6 * 16);
}

TEST_CASE("product sums: a sum of products alone has no kernel") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : bf16[8, 16]
bwd:
  %dw = linear_dw %x, %x : bf16[16, 16]
  %c = cast %dw kernel=0 : f32[16, 16]
  %p = pack [%c] kernel=0 offsets=[0] : f32[256]
  %sum = accumulate %p kernel=0 : f32[256]
  return %sum
)");
  Composites composites;
  composites.product_sums = true;
  Machine machine = unit_machine();
  machine.launch = machine.dispatch = 1;
  const KernelTable table = price_kernels(graph, machine, Execution::Eager, System::Fsdp2, composites);
  REQUIRE(table.kernels.size() == 2);
  CHECK(table.kernels[1].seconds == 0);
  CHECK(table.kernels[1].host == 0);
}

}  // namespace
}  // namespace sfsdp::cost::product_sums_test
