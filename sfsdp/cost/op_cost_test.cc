// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_cost.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::op_cost_test {
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
  for (const Kernel& kernel : price_kernels(graph, unit_machine(), execution).kernels) bytes.push_back(kernel.bytes);
  return bytes;
}

using Bytes = std::vector<double>;

TEST_CASE("kernels: as the graph names them; each reads and writes what crosses its border") {
  const auto text = [](const char* a, const char* b, const char* c) {
    return concat(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[10]
fwd:
  %a = aten.neg %x)",
                  a, " : f32[10]\n  %b = aten.mul.Tensor %a, %x", b, " : f32[10]\n  %c = aten.neg %b", c,
                  " : f32[10]\n  return %c\n");
  };
  CHECK(bytes_of(text("", "", ""), Execution::Fused) == Bytes{80, 120, 80});
  CHECK(bytes_of(text(" kernel=0", " kernel=1", " kernel=2"), Execution::Fused) == Bytes{80, 120, 80});
  CHECK(bytes_of(text(" kernel=0", " kernel=0", " kernel=1"), Execution::Fused) == Bytes{80, 80});
  CHECK(bytes_of(text(" kernel=0", " kernel=0", " kernel=0"), Execution::Fused) == Bytes{80});
  CHECK(bytes_of(text(" kernel=0", " kernel=0", " kernel=0"), Execution::Eager) == Bytes{80});
}

TEST_CASE("kernels: a product's arithmetic counts, whatever stands after it in the kernel") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[16, 16]
fwd:
  %a = aten.mm %x, %x kernel=0 : f32[16, 16]
  %b = aten.neg %a kernel=0 : f32[16, 16]
  return %b
)");
  const KernelTable table = price_kernels(graph, unit_machine(), Execution::Fused);
  REQUIRE(table.kernels.size() == 1);
  CHECK(table.kernels[0].flops == 2 * 16 * 16 * 16);
  CHECK(table.kernels[0].bytes == 2 * 1024);  // x and b
  CHECK(table.kernels[0].seconds == 2 * 16 * 16 * 16);
}

TEST_CASE("kernels: a pack casts on its way, and FSDP2 copies gathered units out") {
  const std::string text = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : bf16[8/dp_shard]
  %x = input name=x : bf16[16] own(dp_shard)
fwd:
  %s = all_gather.start %w axis=dp_shard dim=0 : async bf16[16]
  %f = wait %s : bf16[16]
  %y = aten.mul.Tensor %x, %f kernel=0 : bf16[16]
bwd:
  %g = cast %y kernel=1 : f32[16]
  %p = pack [%g] offsets=[0] kernel=1 : f32[16]
  return %p
)";
  // the product of 16 values, then 32 bytes of bf16 read and 64 of f32 written
  CHECK(bytes_of(text, Execution::Fused) == Bytes{96, 96});
  CHECK(bytes_of(text, Execution::Compile) == Bytes{64, 96, 96});
  CHECK(bytes_of(text, Execution::Eager) == Bytes{64, 96, 96});
}

TEST_CASE("kernels: what FSDP's copies take, and its hooks on the host") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : bf16[2000/dp_shard]
fwd:
  %s = all_gather.start %w axis=dp_shard dim=0 : async bf16[4000]
  %f = wait %s : bf16[4000]
  %y = aten.neg %f kernel=0 : bf16[4000]
bwd:
  %g = cast %y kernel=1 : f32[4000]
  %p = pack [%g] offsets=[0] kernel=1 : f32[4000]
  return %p
)");
  const auto of = [&](System system) {
    return price_kernels(graph, unit_machine(), Execution::Compile, system).kernels;
  };
  const auto fsdp2 = of(System::Fsdp2), fsdp1 = of(System::Fsdp1), traced = of(System::Traced), own = of(System::Own);
  REQUIRE(fsdp2.size() == 3);
  const double launch = unit_machine().launch, dispatch = unit_machine().dispatch;
  // The copy out: 8,000 bytes read and written, at 2,000 of 3,350; the copy in: 8,000 read, 16,000 written, at 1,668.
  CHECK(fsdp2[0].seconds == doctest::Approx(launch + 16000 * 3350. / 2000));
  CHECK(fsdp2[2].seconds == doctest::Approx(launch + 24000 * 3350. / 1668));
  CHECK(fsdp2[0].host == doctest::Approx(dispatch + 1e-3));
  CHECK(fsdp2[1].host == dispatch);
  CHECK(fsdp2[2].host == doctest::Approx(dispatch + 1e-3));
  CHECK(traced[0].seconds == fsdp2[0].seconds);
  CHECK(traced[0].host == dispatch);
  // No copy out. Put together in bf16, cast, and divided in f32.
  REQUIRE(fsdp1.size() == 2);
  CHECK(fsdp1[0].host == doctest::Approx(dispatch + 1e-3));
  CHECK(fsdp1[1].seconds == doctest::Approx(launch + 16000 * 3350. / 2000 + 24000 + 32000));
  REQUIRE(own.size() == 2);
  CHECK(own[1].seconds == doctest::Approx(launch + 24000));
}

TEST_CASE("kernels: their work is what the table has, whatever the machine, with the sums that they read") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %g = input name=g : f32[8, 16]
  %x = input name=x : f32[8, 32]
bwd:
  %d = linear_dw %g, %x kernel=0 : f32[16, 32]
  %s = accumulate %d kernel=0 : f32[16, 32]
  %n = aten.neg %s kernel=1 : f32[16, 32]
  return %n
)");
  const std::vector<KernelWork> work = work_of_kernels(graph, kernels_of(graph));
  const auto table = price_kernels(graph, unit_machine(), Execution::Fused).kernels;
  REQUIRE(work.size() == 2);
  CHECK(work[0].flops == 2 * 16 * 32 * 8);
  CHECK(work[0].sum_bytes == 4 * 16 * 32);
  CHECK(work[0].bytes == 4 * (8 * 16 + 8 * 32 + 2 * 16 * 32));  // both operands, the sum read and written
  CHECK(work[1].flops == 0);
  CHECK(work[1].sum_bytes == 0);
  CHECK(work[1].bytes == 2 * 4 * 16 * 32);
  for (size_t k = 0; k < work.size(); ++k) {
    CHECK(work[k].flops == table[k].flops);
    CHECK(work[k].bytes == table[k].bytes);
    CHECK(work[k].sum_bytes == table[k].sum_bytes);
  }
}

TEST_CASE("kernels: a sum over micro-batches is read and written besides what is added: 10 bytes a gradient") {
  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %g = input name=g : bf16[8]
bwd:
  %f = cast %g kernel=0 : f32[8]
  %p = pack [%f] kernel=0 offsets=[0] : f32[8]
  %s = accumulate %p kernel=0 : f32[8]
  return %s
)";
  CHECK(bytes_of(text, Execution::Fused) == Bytes{80});
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

TEST_CASE("kernels: a loss in parts reads the rank's logits once and leaves three numbers a row") {
  const std::string text = R"(
graph mesh [tp=2] view local
  %x = input name=x : f32[4, 8/tp]
  %t = input name=t : i64[4]
loss:
  %p = cross_entropy_parts %x, %t axis=tp : f32[3/tp, 4]
  return %p
)";
  CHECK(bytes_of(text, Execution::Fused) == Bytes{4 * 8 * 4 + 4 * 8 + 3 * 4 * 4});
}

TEST_CASE("kernels: attention within documents counts pairs of one, from a triangle's down to a token's own") {
  Machine m = unit_machine();
  m.memory_bandwidth = 1e9;
  m.attention_half_length = 100;
  const auto kernels = [&](const std::string& documents) {
    const std::string attrs = concat(documents, " is_causal=true : ");
    const char* const operand = documents.empty() ? "none" : "%d";
    const ir::Graph graph = ir::parse_or_throw(concat(R"(
graph mesh [dp_shard=1] view local
  %q = input name=q : bf16[2, 4, 64, 128]
  %d = input name=d : i64[2, 64]
fwd:
  %o, %l = sdpa %q, %q, %q, )",
                                                      operand, attrs, R"(bf16[2, 4, 64, 128], f32[2, 4, 64]
bwd:
  %a, %b, %c = sdpa_backward %o, %q, %q, %q, %o, %l, )",
                                                      operand, " dropout_p=0.0", attrs,
                                                      R"(bf16[2, 4, 64, 128], bf16[2, 4, 64, 128], bf16[2, 4, 64, 128]
  return %a, %b, %c
)"));
    return price_kernels(graph, m, Execution::Fused).kernels;
  };
  const auto causal = kernels("");
  REQUIRE(causal.size() == 2);
  CHECK(causal[0].flops == 4.0 * 2 * 4 * 64 * 64 / 2 * 128);
  for (const char* all :
       {" documents=true", " document_tokens=64 documents=true", " document_tokens=1000 documents=true"})
    for (const size_t i : {0u, 1u}) {
      CHECK(kernels(all)[i].flops == causal[i].flops);
      CHECK(kernels(all)[i].seconds == doctest::Approx(causal[i].seconds));  // but for the numbers of the documents
    }
  // Four documents of 16: a quarter of the pairs.
  const auto four = kernels(" document_tokens=16 documents=true");
  for (const size_t i : {0u, 1u}) CHECK(four[i].flops == causal[i].flops / 4);
  double flops = 0, seconds = 0;
  for (const int64_t tokens : {1, 2, 3, 7, 16, 33, 63, 64, 65}) {
    const auto some = kernels(concat(" document_tokens=", tokens, " documents=true"));
    CHECK(some[1].flops >= flops);
    CHECK(some[1].seconds >= seconds);
    CHECK(some[1].flops == 2.5 * some[0].flops);
    flops = some[1].flops;
    seconds = some[1].seconds;
  }
  CHECK(flops == causal[1].flops);
}

TEST_CASE(
    "kernels: attention of a part counts its share of the triangle, the mean over the ranks, and reads all keys") {
  const auto kernels = [&](int64_t ranks, const std::string& axis) {
    const std::string q = concat("bf16[2, 4, ", 64 / ranks, ", 128]"), k = "bf16[2, 2, 64, 128]";
    const std::string sums = concat("f32[2, 4, ", 64 / ranks, "]"), attrs = concat(axis, " is_causal=true : ");
    const ir::Graph graph = ir::parse_or_throw(
        concat("graph mesh [cp=", ranks, "] view local\n  %q = input name=q : ", q, "\n  %k = input name=k : ", k,
               "\nfwd:\n  %o, %l = sdpa %q, %k, %k, none", attrs, q, ", ", sums,
               "\nbwd:\n  %a, %b, %c = sdpa_backward %o, %q, %k, %k, %o, %l, none dropout_p=0.0", attrs, q, ", ", k,
               ", ", k, "\n  return %a, %b, %c\n"));
    return price_kernels(graph, unit_machine(), Execution::Fused).kernels;
  };
  const auto whole = kernels(1, "");
  for (const char* axis : {" axis=cp", " axis=cp balanced=true"}) {
    const auto part = kernels(4, axis);
    REQUIRE(part.size() == 2);
    for (const size_t i : {0u, 1u}) CHECK(part[i].flops == whole[i].flops / 4);
    // q, o and lse of 16 queries; keys and values, one tensor here, of 64
    CHECK(part[0].bytes == 2 * (2 * 4 * 16 * 128 * 2) + 2 * 4 * 16 * 4 + 2 * 2 * 64 * 128 * 2);
  }
}

// 4 ranks of 16 queries: the last one's see 48 keys and half of 16 in the mean, where a rank's see 32. In a ring it sees all keys of
// each other rank, where the others see none of those that come after theirs.
TEST_CASE(
    "kernels: attention of a part in natural order takes as long as the last rank's, in head and tail as the mean") {
  const auto kernels = [&](const char* attrs) {
    const ir::Graph graph = ir::parse_or_throw(concat(R"(
graph mesh [cp=4] view local
  %q = input name=q : f32[2, 4, 16, 128]
  %k = input name=k : f32[2, 4, 64, 128]
  %r = input name=r : f32[2, 4, 16, 128]
fwd:
  %o, %l = sdpa %q, )",
                                                      attrs, R"( : f32[2, 4, 16, 128], f32[2, 4, 16]
  return %o
)"));
    return price_kernels(graph, unit_machine(), Execution::Fused).kernels;
  };
  const auto seconds = [&](const char* attrs) { return kernels(attrs).at(0).seconds; };
  const double mean = seconds("%k, %k, none axis=cp balanced=true is_causal=true");
  CHECK(seconds("%k, %k, none axis=cp is_causal=true") == doctest::Approx(mean * (48 + 8) / 32));
  CHECK(seconds("%k, %k, none axis=cp") == doctest::Approx(mean * 2));
  const double own = seconds("%r, %r, none axis=cp is_causal=true shift=0");
  CHECK(seconds("%r, %r, none axis=cp balanced=true is_causal=true shift=0") == doctest::Approx(own));
  CHECK(seconds("%r, %r, none axis=cp balanced=true is_causal=true shift=1") == doctest::Approx(own));
  CHECK(seconds("%r, %r, none axis=cp is_causal=true shift=1") == doctest::Approx(own * 2));
  CHECK(seconds("%k, %k, none axis=cp document_tokens=32 documents=true is_causal=true") ==
        doctest::Approx(seconds("%k, %k, none axis=cp balanced=true document_tokens=32 documents=true is_causal=true") *
                        1.5));
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
    const Kernel kernel = price_kernels(graph, m, Execution::Fused).kernels.at(0);
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
  %t = aten.t %x : f32[4, 4]{1, 4}
  %a = aten.mm %x, %t kernel=0 : f32[4, 4]
  %b = aten.neg %a kernel=1 : f32[4, 4]
  %c = aten.neg %b kernel=1 : f32[4, 4]
  return %c
)");
  Machine m = unit_machine();
  m.dispatch = 1;
  const auto host = [&](Execution execution) {
    double sum = 0;
    for (const Kernel& kernel : price_kernels(graph, m, execution).kernels) sum += kernel.host;
    return sum;
  };
  CHECK(host(Execution::Eager) == 4);  // the input too, the last op not
  CHECK(host(Execution::Compile) == 2);
  CHECK(host(Execution::Fused) == 0);
}

TEST_CASE("execution: by name") {
  CHECK(parse_execution("compile", "--execution") == Execution::Compile);
  CHECK_THROWS_WITH_AS(parse_execution("fast", "--execution"),
                       "--execution fast\n  expected fused, compile, eager or reference", UserError);
}

}  // namespace
}  // namespace sfsdp::cost::op_cost_test
