// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/join_products.h"

#include <doctest/doctest.h>

#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::join_products_test {
namespace {

using testing::expect_pass;

// Three layers of one input, whose weights lie side by side in a unit.
constexpr const char* kLayers = R"(
    graph mesh [] view local
      %flat = input name=flat : f32[52]
      %x = input name=x : f32[3, 4]
      %gq = input name=gq : f32[3, 6]
      %gk = input name=gk : f32[3, 4]
      %gv = input name=gv : f32[3, 3]
    fwd:
      %wq = view %flat offset=0 : f32[6, 4] at l.wq
      %q = linear %x, %wq : f32[3, 6] at l.wq
      %wv = view %flat offset=40 : f32[3, 4] at l.wv
      %v = linear %x, %wv : f32[3, 3] at l.wv
      %wk = view %flat offset=24 : f32[4, 4] at l.wk
      %k = linear %x, %wk : f32[3, 4] at l.wk
    bwd:
      %dwv = linear_dw %gv, %x bwd_of=%v : f32[3, 4] at l.wv
      %nv = aten.neg %dwv : f32[3, 4]
      %dxv = linear_dx %gv, %wv bwd_of=%v : f32[3, 4] at l.wv
      %dwk = linear_dw %gk, %x bwd_of=%k : f32[4, 4] at l.wk
      %dxk = linear_dx %gk, %wk bwd_of=%k : f32[3, 4] at l.wk
      %s1 = aten.add.Tensor %dxv, %dxk : f32[3, 4] at l
      %dwq = linear_dw %gq, %x bwd_of=%q : f32[6, 4] at l.wq
      %dxq = linear_dx %gq, %wq bwd_of=%q : f32[3, 4] at l.wq
      %dx = aten.add.Tensor %s1, %dxq : f32[3, 4] at l
      return %q, %k, %v, %dwq, %dwk, %nv, %dx
)";

TEST_CASE("join_products: QKV is one product, forward, for the weights and for the input") {
  expect_pass("join_products", kLayers, R"(
    graph mesh [] view local
      %flat = input name=flat : f32[52]
      %x = input name=x : f32[3, 4]
      %gq = input name=gq : f32[3, 6]
      %gk = input name=gk : f32[3, 4]
      %gv = input name=gv : f32[3, 3]
    fwd:
      %wq.joined = view %flat offset=0 : f32[13, 4] at l.wq
      %q, %k, %v = joined_linear %x, %wq.joined widths=[6, 4, 3] : f32[3, 6], f32[3, 4], f32[3, 3] at l.wq
    bwd:
      %dwv, %dwk, %dwq = joined_linear_dw %gv, %gk, %gq, %x bwd_of=%q : f32[3, 4], f32[4, 4], f32[6, 4] at l.wq
      %nv = aten.neg %dwv : f32[3, 4]
      %wq.joined_1 = view %flat offset=0 : f32[13, 4] at l
      %dx = joined_linear_dx %gq, %gk, %gv, %wq.joined_1 bwd_of=%q order=[2, 1, 0] : f32[3, 4] at l
      return %q, %k, %v, %dwq, %dwk, %nv, %dx
  )");
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string metrics_of(const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text), "test.ir");
  const auto reports = run_passes(graph, parse_passes("join_products"));
  std::string counts;
  for (const auto& [name, count] : reports[0].metrics.counts())
    if (name.starts_with("joined") || name.starts_with("left")) counts += concat(name, ' ', count, ' ');
  return counts;
}

TEST_CASE("join_products: what cannot be joined is counted by reason") {
  CHECK(metrics_of(kLayers) == "joined_linear 1 joined_linear_dw 1 joined_linear_dx 1 ");
  const std::string two = "joined_linear 1 joined_linear_dw 1 joined_linear_dx 1 left_apart 1 ";
  // Padding before the last weight, or a weight of another unit: the sum of all three is none of the other two alone.
  const std::string flat = with(kLayers, "flat : f32[52]", "flat : f32[53]");
  const std::string no_sum = "joined_linear 1 joined_linear_dw 1 left_apart 1 left_sum 1 ";
  CHECK(metrics_of(with(flat, "offset=40", "offset=41")) == no_sum);
  const std::string other = with(kLayers, "%x = input", "%other = input name=other : f32[12]\n      %x = input");
  CHECK(metrics_of(with(other, "view %flat offset=40", "view %other offset=0")) == no_sum);
  // That of q and k is, where it comes first.
  const std::string v_last = with(with(flat, "offset=40", "offset=41"), "aten.add.Tensor %dxv, %dxk", "aten.neg %dxv");
  CHECK(metrics_of(with(v_last, "aten.add.Tensor %s1, %dxq", "aten.add.Tensor %dxk, %dxq")) == two);
  // Something else is added in between, or reads a partial sum.
  CHECK(metrics_of(with(kLayers, "aten.add.Tensor %s1, %dxq", "aten.add.Tensor %x, %dxq")) ==
        "joined_linear 1 joined_linear_dw 1 left_sum 1 ");
  CHECK(metrics_of(with(kLayers, "%nv, %dx\n", "%nv, %dx, %s1\n")) == "joined_linear 1 joined_linear_dw 1 left_sum 1 ");
  // A bias of the one in the middle leaves none side by side.
  CHECK(metrics_of(with(with(kLayers, "%k = linear %x, %wk :", "%k = linear %x, %wk, %bias :"), "%x = input",
                        "%bias = input name=bias : f32[4]\n      %x = input")) == "left_apart 2 left_bias 1 ");
}

TEST_CASE("group_weights, bucket: weights of layers that read one activation lie side by side, without padding") {
  const char* kStep = R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a rows=3 trainable=false unit=u : f32[2/dp_shard~, 5] at a
      %b = param name=b rows=4 trainable=false unit=u : f32[2/dp_shard, 3] at b
      %c = param name=c rows=5 trainable=false unit=u : f32[3/dp_shard~, 5] at c
      %d = param name=d rows=2 trainable=false unit=OTHER : f32[1/dp_shard, 5] at d
      %x = input name=x : f32[2, 5] own(dp_shard)
    fwd:
      %a.full = all_gather %a axis=dp_shard dim=0 : f32[4, 5] at a
      %a.w = narrow %a.full dim=0 length=3 start=0 : f32[3, 5] at a
      %ya = linear %x, %a.w : f32[2, 3] at a
      %b.full = all_gather %b axis=dp_shard dim=0 : f32[4, 3] at b
      %yb = linear %ya, %b.full : f32[2, 4] at b
      %c.full = all_gather %c axis=dp_shard dim=0 : f32[6, 5] at c
      %c.w = narrow %c.full dim=0 length=5 start=0 : f32[5, 5] at c
      %yc = linear %x, %c.w : f32[2, 5] at c
      %d.full = all_gather %d axis=dp_shard dim=0 : f32[2, 5] at d
      %yd = linear %x, %d.full : f32[2, 2] at d
      return %yb, %yc, %yd
)";
  const auto layout = [&](const char* unit) {
    ir::Graph graph = ir::parse_or_throw(testing::dedent(with(kStep, "OTHER", unit)), "test.ir");
    const auto reports = run_passes(graph, parse_passes("group_weights, bucket, join_products"));
    return concat(plan::print(plan::bucket_layouts_of(graph)), "left_apart ", reports[0].metrics.get("left_apart"),
                  " joined ", reports[2].metrics.get("joined_linear"));
  };
  // Each other parameter begins on a multiple of 64 elements, 256 bytes.
  const std::string same = layout("u"), other = layout("v");
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  has(same, "  a offset=0 numel=15\n  c offset=15 numel=25\n  d offset=40 numel=10\n  b offset=64 numel=12\n");
  has(same, "left_apart 0 joined 1");
  has(other, "  a offset=0 numel=15\n  c offset=15 numel=25\n  b offset=64 numel=12\n");
  has(other, "left_apart 1 joined 1");
}

// Two of three results are as wide: their elements at one place are still made by two blocks.
TEST_CASE("fuse: what follows a joined product reads one of its results, or any where all are as wide") {
  const char* kSwiglu = R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %w = input name=w : f32[12, 4]
    fwd:
      %a, %b = joined_linear %x, %w KERNELwidths=[6, 6] : f32[3, 6], f32[3, 6]
      %s = aten.silu %a KERNEL: f32[3, 6]
      %h = aten.mul.Tensor %s, %b KERNEL: f32[3, 6]
      return %h
)";
  const auto numbered = [](std::string text, const std::string& kernel) {
    for (size_t at = text.find("KERNEL"); at != std::string::npos; at = text.find("KERNEL"))
      text.replace(at, 6, kernel);
    return text;
  };
  expect_pass("fuse", numbered(kSwiglu, ""), numbered(kSwiglu, "kernel=0 "));
  const char* kThree = R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %w = input name=w : f32[13, 4]
    fwd:
      %a, %b, %c = joined_linear %x, %w FIRSTwidths=[5, 5, 3] : f32[3, 5], f32[3, 5], f32[3, 3]
      %s = aten.silu %a FIRST: f32[3, 5]
      %n = aten.neg %c FIRST: f32[3, 3]
      %h = aten.mul.Tensor %s, %b LAST: f32[3, 5]
      return %h, %n
)";
  const auto kernels = [&](const std::string& first, const std::string& last) {
    std::string text = kThree;
    for (size_t at = text.find("FIRST"); at != std::string::npos; at = text.find("FIRST")) text.replace(at, 5, first);
    return with(text, "LAST", last);
  };
  expect_pass("fuse", kernels("", ""), kernels("kernel=0 ", "kernel=1 "));
  const std::string wrong =
      plan::check_kernels(ir::parse_or_throw(testing::dedent(kernels("kernel=0 ", "kernel=0 ")), "test.ir"));
  CHECK_MESSAGE(wrong.find("reads two results of a product") != std::string::npos, wrong);
}

}  // namespace
}  // namespace sfsdp::passes::join_products_test
