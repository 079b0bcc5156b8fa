// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/target.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::target_test {
namespace {

constexpr int64_t kMiB = 1048576;

Target gpu(const char* device, int64_t multiprocessors) {
  Machine machine;
  machine.name = "my machine";
  machine.device = device;
  machine.multiprocessors = multiprocessors;
  return target_of(machine);
}

// The workspace that one kernel of these ops needs.
int64_t bytes(const std::string& ops, const Target& target) {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : bf16[300, 40]
  %w = param name=w : bf16[40]
  %m = param name=m : bf16[64, 40]
  %r = input name=r : f32[300, 1]
  %q = input name=q : bf16[2, 4, 130, 40]
  %k = input name=k : bf16[2, 2, 130, 40]
  %l = input name=l : f32[2, 4, 130]
fwd:
)" + ops);
  std::vector<const ir::Op*> kernel;
  for (const auto& op : graph.ops())
    if (!ir::is_root(*op)) kernel.push_back(op.get());
  return workspace_bytes(kernel, target);
}

TEST_CASE("targets: products, communicators, blocks and alignments of a CPU and of devices by their names") {
  const Target cpu = cpu_target();
  CHECK(cpu.name == "cpu");
  CHECK(cpu.product_bytes == 10518528);  // 16 threads, each 1,024 x (512 + 2 + 128) bytes
  CHECK(cpu.communicator_bytes == kMiB);
  CHECK(cpu.blocks == 16);
  CHECK_FALSE(cpu.joins_products);
  CHECK_FALSE(cpu.accumulates_in_memory);
  const Target h100 = gpu("H100 SXM 80 GB", 132);
  CHECK(h100.name == "my_machine");
  CHECK(h100.product_bytes == 32 * kMiB);
  CHECK(h100.communicator_bytes == 80 * kMiB);
  CHECK(h100.blocks == 132);
  CHECK(h100.joins_products);
  CHECK(h100.accumulates_in_memory);
  CHECK(gpu("H200 SXM 141 GB", 132).product_bytes == 32 * kMiB);
  CHECK(gpu("GB200 186 GB", 148).product_bytes == 32 * kMiB);
  CHECK(gpu("A100 SXM 80 GB", 108).product_bytes == 8519680);  // 8,320 KiB
  CHECK(gpu("Xeon", 1).product_bytes == cpu.product_bytes);
  CHECK(h100.adds_in_products);
  CHECK(!cpu.adds_in_products);
  for (const Target& target : {cpu, h100}) {
    CHECK(target.alignment == 256);
    CHECK(target.window_alignment == 4096);
  }
}

TEST_CASE("workspaces: a page, a product's, and partial sums where rows are added up by blocks") {
  const Target h100 = gpu("H100 SXM 80 GB", 132);
  CHECK(bytes("  %y = aten.neg %x : bf16[300, 40]\n", h100) == 4096);
  CHECK(bytes("  %y = linear %x, %m : bf16[300, 64]\n", h100) == 32 * kMiB);
  CHECK(bytes("  %y = linear %x, %m : bf16[300, 64]\n", cpu_target()) == 10518528);
  // The weight's gradient: 40 sums of f32 in each of 132 blocks are 21,120 bytes, which are six pages; of 16, 2,560 bytes.
  const std::string norm = "  %d, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 : bf16[300, 40], bf16[40]\n";
  CHECK(bytes(norm, h100) == 6 * 4096);
  CHECK(bytes(norm, cpu_target()) == 4096);
  // A sum of columns: 40 outputs, as many; of rows, 300 outputs: 4 x 132 x 300 = 158,400 bytes, 39 pages.
  CHECK(bytes("  %s = aten.sum.dim_IntList %x dim=[0] : bf16[40]\n", h100) == 6 * 4096);
  CHECK(bytes("  %s = aten.sum.dim_IntList %x dim=[1] : bf16[300]\n", h100) == 39 * 4096);
  // Partial sums of 65,536 rows among the 70,000: 4 x 132 x 65,536 bytes.
  CHECK(bytes("  %f = full value=1.0 : f32[70000, 2]\n  %s = aten.sum.dim_IntList %f dim=[1] : f32[70000]\n", h100) ==
        33 * kMiB);
}

TEST_CASE("workspaces: attention's backward adds up the queries' gradient in f32 where a device does so in memory") {
  const Target h100 = gpu("H100 SXM 80 GB", 132);
  const auto backward = [](const char* key, const char* type) {
    return std::string("  %a, %b, %c = aten._scaled_dot_product_flash_attention_for_cpu_backward %q, %q, ") + key +
           ", " + key + ", %q, %l, none dropout_p=0.0 is_causal=true : bf16[2, 4, 130, 40], " + type + ", " + type +
           "\n";
  };
  // 2 x 4 heads, 130 positions in 256, a width of 40 in 64, and one sum: 4 x 2,048 x 65 = 532,480 bytes, 130 pages.
  CHECK(bytes(backward("%q", "bf16[2, 4, 130, 40]"), h100) == 130 * 4096);
  // Keys that two query heads share: 2 gradients x 2 x 4 heads x 130 x 40 in bf16 are 166,400 bytes more: 698,880, 171 pages.
  CHECK(bytes(backward("%k", "bf16[2, 2, 130, 40]"), h100) == 171 * 4096);
  CHECK(bytes(backward("%k", "bf16[2, 2, 130, 40]"), cpu_target()) == 10518528);
  CHECK(bytes("  %a, %b = aten._scaled_dot_product_flash_attention_for_cpu %q, %q, %q, none is_causal=true : "
              "bf16[2, 4, 130, 40], f32[2, 4, 130]\n",
              h100) == 32 * kMiB);
}

TEST_CASE("workspaces: a processor's attention makes a mask of the documents, a GPU's reads them") {
  const char* const documents =
      "  %d = full value=1 : i64[2, 130]\n"
      "  %a, %b = sdpa %q, %q, %q, %d documents=true is_causal=true : bf16[2, 4, 130, 40], f32[2, 4, 130]\n";
  const char* const causal = "  %a, %b = sdpa %q, %q, %q, none is_causal=true : bf16[2, 4, 130, 40], f32[2, 4, 130]\n";
  CHECK(bytes(documents, gpu("H100 SXM 80 GB", 132)) == 32 * kMiB);
  // 2 x 130 x 130 x (2 + 1 + 1) bytes are 135,200: 34 pages.
  CHECK(bytes(causal, cpu_target()) == 10518528);
  CHECK(bytes(documents, cpu_target()) == 10518528 + 34 * 4096);
  // A part, 65 of 130 queries, has half as many, 67,600 bytes, 17 pages; without documents one for all samples, 9 pages.
  const auto part = [](const std::string& fourth, const std::string& attrs) {
    return concat(
        "  %d = full value=1 : i64[2, 130]\n  %p = aten.slice.Tensor %q dim=2 end=65 start=0 : "
        "bf16[2, 4, 65, 40]{20800, 5200, 40, 1}\n  %a, %b = sdpa %p, %q, %q, ",
        fourth, " axis=cp is_causal=true", attrs, " : bf16[2, 4, 65, 40], f32[2, 4, 65]\n");
  };
  CHECK(bytes(part("%d", " documents=true"), cpu_target()) == 10518528 + 17 * 4096);
  CHECK(bytes(part("none", ""), cpu_target()) == 10518528 + 9 * 4096);
  CHECK(bytes(part("%d", " attention_kernel=sfsdp.flash documents=true"), cpu_target()) == 10518528);
}

}  // namespace
}  // namespace sfsdp::cost::target_test
