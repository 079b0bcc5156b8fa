// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/fuse.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::passes::fuse_test {
namespace {

using testing::expect_pass;

TEST_CASE("fuse: a product and what follows element by element; the other operand of a product comes before it") {
  expect_pass("fuse", R"(
    graph mesh [] view local
      %w1 = param name=w1 : f32[8, 4]
      %w3 = param name=w3 : f32[8, 4]
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %a = linear %x, %w1 : f32[2, 3, 8]
      %b = linear %x, %w3 : f32[2, 3, 8]
      %s = aten.silu %a : f32[2, 3, 8]
      %h = aten.mul.Tensor %s, %b : f32[2, 3, 8]
      return %h
  )",
              R"(
    graph mesh [] view local
      %w1 = param name=w1 : f32[8, 4]
      %w3 = param name=w3 : f32[8, 4]
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %b = linear %x, %w3 kernel=0 : f32[2, 3, 8]
      %a = linear %x, %w1 kernel=1 : f32[2, 3, 8]
      %s = aten.silu %a kernel=1 : f32[2, 3, 8]
      %h = aten.mul.Tensor %s, %b kernel=1 : f32[2, 3, 8]
      return %h
  )");
}

TEST_CASE("fuse: a residual sum and the norm of rows after it; the sum over rows and its readers are two") {
  expect_pass("fuse", R"(
    graph mesh [] view local
      %w = param name=w : f32[4]
      %x = input name=x : f32[6, 4]
      %y = input name=y : f32[6, 4]
    fwd:
      %r = aten.add.Tensor %x, %y : f32[6, 4]
      %n, %rstd = rms_norm %r, %w dims=1 eps=0.5 : f32[6, 4], f32[6, 1]
      %g = aten.neg %n : f32[6, 4]
      %c = aten.sum.dim_IntList %g dim=[0] keepdim=true : f32[1, 4]
      %d = aten.mul.Tensor %g, %c : f32[6, 4]
      return %d, %rstd
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[4]
      %x = input name=x : f32[6, 4]
      %y = input name=y : f32[6, 4]
    fwd:
      %r = aten.add.Tensor %x, %y kernel=0 : f32[6, 4]
      %n, %rstd = rms_norm %r, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]
      %g = aten.neg %n kernel=0 : f32[6, 4]
      %c = aten.sum.dim_IntList %g dim=[0] keepdim=true kernel=1 : f32[1, 4]
      %d = aten.mul.Tensor %g, %c kernel=2 : f32[6, 4]
      return %d, %rstd
  )");
}

TEST_CASE("fuse: a number of each row stays in the row's kernel, other shapes do not") {
  expect_pass("fuse", R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
    fwd:
      %s = aten.sum.dim_IntList %x dim=[1] keepdim=true : f32[6, 1]
      %t = aten.neg %s : f32[6, 1]
      %y = aten.mul.Tensor %x, %t : f32[6, 4]
      %z = aten.transpose.int %y dim0=0 dim1=1 : f32[4, 6]{1, 4}
      %q = aten.neg %z : f32[4, 6]
      return %q
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
    fwd:
      %s = aten.sum.dim_IntList %x dim=[1] keepdim=true kernel=0 : f32[6, 1]
      %t = aten.neg %s kernel=0 : f32[6, 1]
      %y = aten.mul.Tensor %x, %t kernel=0 : f32[6, 4]
      %z = aten.transpose.int %y dim0=0 dim1=1 : f32[4, 6]{1, 4}
      %q = aten.neg %z kernel=1 : f32[4, 6]
      return %q
  )");
}

constexpr const char* kStep = R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[4/dp_shard]
      %m = state name=m : f32[4/dp_shard]
      %v = state name=v : f32[4/dp_shard]
      %step = state name=step : f32[]
      %nf = input name=nf : f32[]
      %c = input name=c : f32[]
      %x = input name=x : bf16[8] own(dp_shard)
    bwd:
      %a = aten.neg %x : bf16[8]
      %f = cast %a : f32[8]
      %p = pack [%f] offsets=[0] : f32[8]
      %rs.start = reduce_scatter.start %p axis=dp_shard dim=0 : async f32[4]
      %b = aten.neg %a : bf16[8]
      %rs = wait %rs.start : f32[4]
    opt:
      %g = scale %rs, %c : f32[4]
      %w.new, %m.new, %v.new = adamw %w, %m, %v, %g, %step, %nf beta1=0.9 beta2=0.95 donates=[0, 1, 2] eps=1e-08 weight_decay=0.1 : f32[4/dp_shard], f32[4/dp_shard], f32[4/dp_shard]
      return %b
      carry %w = %w.new
      carry %m = %m.new
      carry %v = %v.new
)";

std::string fused(const std::string& text, const char* pass = "fuse") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text), "test.ir");
  run_passes(graph, parse_passes(pass));
  std::string kernels;
  for (const auto& op : graph.ops())
    if (const auto* kernel = op->find_attr<int64_t>("kernel"))
      kernels += concat(kernels.empty() ? "" : " ", op->result()->name(), ':', *kernel);
  CHECK(plan::check_kernels(graph) == "");
  return kernels;
}

TEST_CASE("fuse: a pack casts on its way, an update scales its gradient, collectives end kernels") {
  CHECK(fused(kStep) == "a:0 f:1 p:1 b:2 g:3 w.new:3");
  CHECK(fused(kStep, "fuse scope=none") == "a:0 f:1 p:1 b:2 g:3 w.new:4");
  // What clipping scales, in a section of its own; PyTorch clips before the optimizer is called.
  std::string clipped = kStep;
  clipped.replace(clipped.find("opt:"), 4, "clip:");
  clipped.insert(clipped.find("      %w.new"), "    opt:\n");
  CHECK(fused(clipped) == "a:0 f:1 p:1 b:2 g:3 w.new:3");
  CHECK(fused(clipped, "fuse scope=module") == "a:0 f:1 p:1 b:2 g:3 w.new:4");
}

TEST_CASE("fuse: a sum over micro-batches is added to where gradients are packed, unless somebody else reads them") {
  const char* text = R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : bf16[8] own(dp_shard)
    bwd:
      %a = aten.neg %x : bf16[8]
      %f = cast %a : f32[8]
      %p = pack [%f] offsets=[0] : f32[8]
      %s = accumulate %p : f32[8]
      return %s
)";
  CHECK(fused(text) == "a:0 f:1 p:1 s:1");
  CHECK(fused(text, "fuse scope=none") == "a:0 f:1 p:1 s:1");
  std::string both = text;
  both.replace(both.find("return %s"), 9, "return %s, %p");
  CHECK(fused(both, "fuse scope=none") == "a:0 f:1 p:1 s:2");
}

TEST_CASE("fuse: what reads an updated parameter, such as its cast for the next gather, comes after the update") {
  std::string text = kStep;
  const std::string returned = "      return %b";
  text.insert(text.find(returned), "      %low = cast %w.new : bf16[4/dp_shard]\n");
  text.replace(text.find(returned), returned.size(), returned + ", %low");
  CHECK(fused(text) == "a:0 f:1 p:1 b:2 g:3 w.new:3 low:4");
}

TEST_CASE("fuse: nothing joins a library's kernel; a cast for a pack does not part a norm from the sum after it") {
  CHECK(fused(R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4]
      %i = input name=i : i64[3]
    fwd:
      %e = embedding %w, %i : f32[3, 4]
      %y = aten.neg %e : f32[3, 4]
      return %y
  )") == "e:0 y:1");
  CHECK(fused(R"(
    graph mesh [] view local
      %w = param name=w : bf16[4]
      %x = input name=x : bf16[6, 4]
      %r = input name=r : f32[6, 1]
    bwd:
      %dx, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 : bf16[6, 4], bf16[4]
      %c = cast %dw : f32[4]
      %s = aten.add.Tensor %dx, %x : bf16[6, 4]
      %p = pack [%c] offsets=[0] : f32[4]
      return %p, %s
  )") == "dx:0 s:0 c:1 p:1");
}

TEST_CASE("fuse: what reads other rows, or of which nothing is known, is a kernel by itself") {
  CHECK(fused(R"(
    graph mesh [] view local
      %w = param name=w : f32[4]
      %x = input name=x : f32[6, 4]
      %ids = input name=ids : i64[6]
    fwd:
      %a = aten.neg %x : f32[6, 4]
      %n, %mean, %rstd = aten.native_batch_norm %a, %w, none, none, none eps=1e-05 momentum=0.1 training=true : f32[6, 4], f32[4], f32[4]
      %l, %c, %e = cross_entropy %n, %ids : f32[], f32[], f32[6]
      return %l
  )") == "a:0 n:1 l:2");
  CHECK(fused(R"(
    graph mesh [] view local
      %w = param name=w : f32[4, 4]
      %x = input name=x : f32[6, 4]
    fwd:
      %y = linear %x, %w : f32[6, 4]
      %c = aten.cumprod %y dim=0 : f32[6, 4]
      %z = linear %c, %w : f32[6, 4]
      %r = aten.cumprod %z dim=1 : f32[6, 4]
      %s = aten.neg %r : f32[6, 4]
      return %s
  )") == "y:0 c:1 z:2 r:3 s:3");
  CHECK(fused(R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
    fwd:
      %a = aten.neg %x : f32[6, 4]
      %b = aten.special_i0 %a : f32[6, 4]
      %c = aten.neg %b : f32[6, 4]
      return %c
  )") == "a:0 b:1 c:2");
}

TEST_CASE("fuse: pairs of one dimension are turned in one kernel, those of two are not") {
  const char* text = R"(
    graph mesh [] view local
      %x = input name=x : f32[2, 6, 4]
      %c = input name=c : f32[6, 2]
      %d = input name=d : f32[12, 1]
    fwd:
      %a = rope %x, %c, %c : f32[2, 6, 4]
      %b = rope %a, %c, %c : f32[2, 6, 4]
      %v = aten.view %b size=[2, 12, 2] : f32[2, 12, 2]
      %e = rope %v, %d, %d : f32[2, 12, 2]
      return %e
  )";
  CHECK(fused(text) == "a:0 b:0 e:1");
}

TEST_CASE("fuse: torch.compile of each block sees one block") {
  const char* kBlocks = R"(
    graph mesh [] view local
      %x = input name=x : f32[8]
    fwd:
      %a = aten.neg %x : f32[8] at layers.0
      %b = aten.neg %a : f32[8] at layers.0.norm
      %c = aten.neg %b : f32[8] at layers.1
      %d = aten.neg %c : f32[8] at output
      %e = aten.neg %d : f32[8] at output
      return %e
  )";
  CHECK(fused(kBlocks) == "a:0 b:0 c:0 d:0 e:0");
  CHECK(fused(kBlocks, "fuse scope=module") == "a:0 b:0 c:1 d:2 e:3");
  const char* kProduct = R"(
    graph mesh [] view local
      %x = input name=x : f32[8, 8]
    fwd:
      %a = linear %x, %x : f32[8, 8] at layers.0
      %b = aten.neg %a : f32[8, 8] at layers.0
      %c = aten.neg %b : f32[8, 8] at layers.0
      return %c
  )";
  CHECK(fused(kProduct) == "a:0 b:0 c:0");
  CHECK(fused(kProduct, "fuse scope=module") == "a:0 b:1 c:1");
}

TEST_CASE("fuse: of random programs the kernels can exist, and each op that computes has one") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    ir::Graph graph = testing::random_program(seed);
    for (const auto& op : graph.ops()) op->attrs.erase("kernel");
    for (const char* pass : {"fuse", "fuse scope=module", "fuse scope=none"}) {
      run_passes(graph, parse_passes(pass));
      CHECK(plan::check_kernels(graph) == "");
    }
  }
}

// What check_kernels says of a kernel's ops.
void says(const std::string& ops, const char* part) {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : f32[6, 4]
  %w = param name=w : f32[4]
  %m = param name=m : f32[4, 4]
  %k = param name=k : f32[2, 4]
  %ids = input name=ids : i64[6]
  %i = input name=i : i64[3]
  %q = input name=q : f32[2, 4, 8, 16]
fwd:
)" + ops,
                                             "test.ir");
  CAPTURE(ops);
  const std::string wrong = plan::check_kernels(graph);
  CHECK_MESSAGE(wrong.find(part) != std::string::npos, wrong);
  if (std::string_view(part).empty()) CHECK(wrong == "");
}

TEST_CASE("fuse: a number of each row is read with its row alone, however many numbers and elements there are") {
  const auto kernels = [](const std::string& reads) {
    return fused(concat(R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 6]
      %w = input name=w : f32[6, 6]
      %q = input name=q : f32[3, 4, 2]
      %e = input name=e : f32[4, 2, 3]
    fwd:
      %h = aten.mm %x, %w : f32[4, 6]
      %s = aten.amax %h dim=[-1] keepdim=true : f32[4, 1]
)",
                        reads, "\n      return %z\n"));
  };
  CHECK(kernels("      %z = aten.mul.Tensor %h, %s : f32[4, 6]") == "h:0 s:1 z:1");
  CHECK(kernels("      %s.rows = aten.view %s size=[4, 1, 1] : f32[4, 1, 1]\n"
                "      %z = aten.mul.Tensor %e, %s.rows : f32[4, 2, 3]") == "h:0 s:1 z:1");
  // each of the four numbers is read in three of the rows of six
  CHECK(kernels("      %z = aten.mul.Tensor %q, %s : f32[3, 4, 2]") == "h:0 s:1 z:2");
  CHECK(kernels("      %z = aten.stack [%s, %s, %s, %s, %s, %s] dim=0 : f32[6, 4, 1]") == "h:0 s:1 z:2");
}

TEST_CASE("kernels that cannot exist are refused") {
  const std::string norm = "  %n, %r = rms_norm %x, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]\n";
  says(norm + "  %c = aten.sum.dim_IntList %n dim=[0] keepdim=true kernel=0 : f32[1, 4]\n",
       "elements that other blocks make");
  says(norm +
           "  %d, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 kernel=0 : f32[6, 4], f32[4]\n"
           "  %z = aten.neg %dw kernel=0 : f32[4]\n",
       "complete only after all rows");
  says(norm +
           "  %t = aten.transpose.int %n dim0=0 dim1=1 : f32[4, 6]{1, 4}\n"
           "  %z = aten.neg %t kernel=0 : f32[4, 6]\n",
       "in another order");
  says(norm + "  %y = linear %n, %m kernel=0 : f32[6, 4]\n", "elements that other blocks make");
  says(
      "  %y = linear %x, %m kernel=0 : f32[6, 4]\n"
      "  %n, %r = rms_norm %y, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]\n",
      "a tile of a product holds no whole row");
  says("  %y = linear %x, %m kernel=0 : f32[6, 4]\n  %z = linear %x, %m kernel=0 : f32[6, 4]\n",
       "with another product");
  says(norm +
           "  %v = aten.view %n size=[12, 2] : f32[12, 2]\n"
           "  %s = aten.sum.dim_IntList %v dim=[1] keepdim=true kernel=0 : f32[12, 1]\n",
       "has rows of 2");
  says("  %a = aten.neg %x kernel=0 : f32[6, 4]\n  %b = aten.neg %x : f32[6, 4]\n", "has no kernel");
  says("  %a = aten.neg %x kernel=1 : f32[6, 4]\n  %b = aten.neg %x kernel=0 : f32[6, 4]\n", "side by side");
  says(
      "  %a = aten.neg %x kernel=0 : f32[6, 4]\n  %b = aten.neg %x kernel=1 : f32[6, 4]\n"
      "  %c = aten.neg %a kernel=0 : f32[6, 4]\n",
      "side by side");
  says("  %a = aten.neg %x kernel=0 : f32[6, 4]\n  %t = aten.t %a kernel=0 : f32[4, 6]{1, 4}\n", "it computes nothing");
  says(
      "  %s = aten.sum.dim_IntList %x dim=[0] keepdim=true kernel=0 : f32[1, 4]\n"
      "  %y = aten.mul.Tensor %x, %s kernel=0 : f32[6, 4]\n",
      "complete only after all rows");
  says(
      "  %p = aten.stack [%x, %x] dim=2 kernel=0 : f32[6, 4, 2]\n  %z = aten.neg %p kernel=0 : f32[6, 4, 2]\n"
      "  %f = aten.flip %z dims=[0] kernel=0 : f32[6, 4, 2]\n",
      "elements that other blocks make");
}

TEST_CASE("kernels that cannot exist are refused: what reads other rows, and ops of which nothing is known") {
  const std::string other = "elements that other blocks make";
  const std::string sum = "  %a = aten.neg %x kernel=0 : f32[6, 4]\n";
  says(sum +
           "  %n, %s, %t = aten.native_batch_norm %a, %w, none, none, none eps=1e-05 momentum=0.1 training=true "
           "kernel=0 : "
           "f32[6, 4], f32[4], f32[4]\n",
       other.c_str());
  says(sum + "  %z = aten.special_i0 %a kernel=0 : f32[6, 4]\n", other.c_str());
  says("  %z = aten.special_i0 %x kernel=0 : f32[6, 4]\n  %a = aten.neg %x kernel=0 : f32[6, 4]\n",
       "a kernel of its own");
  const std::string product = "  %y = linear %x, %m kernel=0 : f32[6, 4]\n";
  says(product + "  %c = aten.cumprod %y dim=0 kernel=0 : f32[6, 4]\n", other.c_str());
  says(product + "  %c = aten.cumprod %y dim=1 kernel=0 : f32[6, 4]\n", "a tile of a product holds no whole row");
}

TEST_CASE("kernels that cannot exist are refused: what a product's tiles become has no whole rows") {
  const std::string product = "  %y = linear %x, %m kernel=0 : f32[6, 4]\n";
  const std::string sum = product + "  %a = aten.add.Tensor %x, %y kernel=0 : f32[6, 4]\n";
  says(sum, "");
  for (const char* read : {"%n, %r = rms_norm %a, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]",
                           "%l, %n, %e = cross_entropy %a, %ids kernel=0 : f32[], f32[], f32[6]",
                           "%s = aten.sum.dim_IntList %a dim=[1] keepdim=true kernel=0 : f32[6, 1]"})
    says(concat(sum, "  ", read, '\n'), "a tile of a product holds no whole row");
  // Through a reshape, and through more than one op.
  says(sum +
           "  %b = aten.neg %a kernel=0 : f32[6, 4]\n  %v = aten.view %b size=[3, 2, 4] : f32[3, 2, 4]\n"
           "  %s = aten.sum.dim_IntList %v dim=[2] keepdim=true kernel=0 : f32[3, 2, 1]\n",
       "a tile of a product holds no whole row");
  says(sum + "  %n, %r = rms_norm %a, %w dims=1 eps=0.5 kernel=1 : f32[6, 4], f32[6, 1]\n", "");
}

TEST_CASE("kernels that cannot exist are refused: ops that share no work") {
  const std::string product = "  %y = linear %x, %m kernel=0 : f32[6, 4]\n";
  const std::string norm = "  %n, %r = rms_norm %x, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]\n";
  says("  %a = aten.neg %x kernel=0 : f32[6, 4]\n  %b = aten.neg %k kernel=0 : f32[2, 4]\n", "works on 8 elements");
  says(norm + "  %b = cast %k kernel=0 : bf16[2, 4]\n", "works on 8 elements, its kernel on 24");
  says("  %b = cast %k kernel=0 : bf16[2, 4]\n  %l, %n, %e = cross_entropy %x, %ids kernel=0 : f32[], f32[], f32[6]\n",
       "works on 8 elements, its kernel on 24");
  says("  %o, %s = rms_norm %k, %w dims=1 eps=0.5 kernel=0 : f32[2, 4], f32[2, 1]\n" + norm,
       "works on 8 elements, its kernel on 24");
  says(product + "  %b = aten.neg %x kernel=0 : f32[6, 4]\n", "reads nothing of the product");
  says("  %b = aten.neg %x kernel=0 : f32[6, 4]\n" + product, "reads nothing of the product");
  says(product + "  %b = aten.sum.dim_IntList %x dim=[1] kernel=0 : f32[6]\n", "reads nothing of the product");
  says("  %s = aten.sum.dim_IntList %x dim=[0] kernel=0 : f32[4]\n  %b = aten.neg %x kernel=0 : f32[6, 4]\n",
       "stands beside aten.sum.dim_IntList %s");
  says("  %e = embedding %m, %i kernel=0 : f32[3, 4]\n  %b = aten.neg %x kernel=0 : f32[6, 4]\n",
       "stands beside embedding %e");
  says("  %p = pack [%k] offsets=[0] kernel=0 : f32[8]\n  %b = cast %k kernel=0 : bf16[2, 4]\n",
       "casts of what it packs");
  says("  %p = pack [%k] offsets=[0] kernel=0 : f32[8]\n  %b = accumulate %k kernel=0 : f32[2, 4]\n",
       "casts of what it packs");
  // One number of each row, and a result that is written in another dtype: a sum over rows is as small as it is.
  says(norm + "  %b = aten.neg %r kernel=0 : f32[6, 1]\n", "");
  says(norm + "  %b = cast %r kernel=0 : bf16[6, 1]\n", "");
  says(norm +
           "  %d, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 kernel=1 : f32[6, 4], f32[4]\n"
           "  %b = cast %dw kernel=1 : bf16[4]\n",
       "");
}

TEST_CASE("kernels that cannot exist are refused: an update beside what scales the gradient of another") {
  std::string step = R"(graph mesh [] view local
  %w = param name=w : f32[4]
  %m = state name=m : f32[4]
  %v = state name=v : f32[4]
  %step = state name=step : f32[]
  %nf = input name=nf : f32[]
  %c = input name=c : f32[]
  %g = input name=g : f32[4]
  %h = input name=h : f32[4]
opt:
  %scaled = scale %h, %c kernel=0 : f32[4]
  %w.new, %m.new, %v.new = adamw %w, %m, %v, %g, %step, %nf beta1=0.9 beta2=0.95 donates=[0, 1, 2] eps=1e-08 kernel=0 weight_decay=0.1 : f32[4], f32[4], f32[4]
)";
  const auto wrong = [&] { return plan::check_kernels(ir::parse_or_throw(step, "test.ir")); };
  CHECK(wrong().find("scale %scaled stands beside adamw %w.new") != std::string::npos);
  step.replace(step.find("%v, %g"), 6, "%v, %scaled");
  CHECK(wrong() == "");
}

TEST_CASE("kernels that cannot exist are refused: one that each micro-batch runs and the last alone") {
  const auto wrong = [](const char* first, const char* second) {
    return plan::check_kernels(
        ir::parse_or_throw(concat(R"(graph mesh [] view local
  %x = input name=x : f32[6, 4]
bwd:
  %a = aten.neg %x kernel=0)",
                                  first, " : f32[6, 4]\n  %b = aten.neg %x kernel=0", second, " : f32[6, 4]\n"),
                           "test.ir"));
  };
  CHECK(wrong("", "") == "");
  CHECK(wrong(" once=true", " once=true") == "");
  CHECK(wrong("", " once=true").find("%b runs once a step, its kernel in each micro-batch") != std::string::npos);
  CHECK(wrong(" once=true", "").find("%b runs in each micro-batch, its kernel once a step") != std::string::npos);
}

TEST_CASE("kernels that cannot exist are refused: one that micro-batches run in part") {
  const auto wrong = [](const char* section) {
    return plan::check_kernels(ir::parse_or_throw(concat(R"(graph mesh [] view local micro_batches=3
  %x = input name=x : f32[4]
bwd:
  %sum = accumulate %x kernel=0 : f32[4]
)",
                                                         section, "  %b = aten.neg %x kernel=0 : f32[4]\n"),
                                                  "test.ir"));
  };
  CHECK(wrong("") == "");
  for (const char* section : {"clip:\n", "opt:\n"})
    CHECK(wrong(section).find("%b runs in another part of the step than accumulate %sum") != std::string::npos);
}

TEST_CASE("kernels that cannot exist are refused: results that other rows or blocks make") {
  const std::string norm = "  %n, %r = rms_norm %x, %w dims=1 eps=0.5 kernel=0 : f32[6, 4], f32[6, 1]\n";
  says(
      "  %l, %n, %e = cross_entropy %x, %ids kernel=0 : f32[], f32[], f32[6]\n"
      "  %z = aten.neg %l kernel=0 : f32[]\n",
      "complete only after all rows");
  says("  %e = embedding %m, %i kernel=0 : f32[3, 4]\n  %z = aten.neg %e kernel=0 : f32[3, 4]\n",
       "nothing joins what makes it");
  says(
      "  %a, %l = aten._scaled_dot_product_flash_attention_for_cpu %q, %q, %q, none is_causal=true kernel=0 : "
      "f32[2, 4, 8, 16], f32[2, 4, 8]\n  %z = aten.neg %a kernel=0 : f32[2, 4, 8, 16]\n",
      "nothing joins what makes it");
  says("  %a = aten.neg %w kernel=0 : f32[4]\n  %b = aten.mul.Tensor %x, %a kernel=0 : f32[6, 4]\n",
       "needs elements that other rows make");
  const std::string largest = "  %s = aten.amax %x dim=[-1] keepdim=true kernel=0 : f32[6, 1]\n";
  says(largest + "  %b = aten.mul.Tensor %x, %s kernel=0 : f32[6, 4]\n", "");
  says(largest + "  %y = view %x : f32[2, 6, 2]\n  %b = aten.mul.Tensor %y, %s kernel=0 : f32[2, 6, 2]\n",
       "needs elements that other rows make");
  says(largest + "  %b = aten.stack [%s, %s, %s, %s] dim=0 kernel=0 : f32[4, 6, 1]\n",
       "needs elements that other rows make");
}

TEST_CASE("what a kernel may not write over what it reads") {
  const auto wrong = [](const char* op) {
    const ir::Graph graph = ir::parse_or_throw(concat(R"(graph mesh [] view local
  %w = param name=w : f32[4]
  %n = param name=n : f32[4, 1]
fwd:
  %x = full value=1.0 kernel=0 : f32[6, 4]
  )",
                                                      op),
                                               "test.ir");
    const std::vector<const ir::Op*> kernel = {graph.ops().back().get()};
    const auto& read = *kernel[0]->operands[0];
    return plan::check_written_over(kernel, read, *kernel[0]->result());
  };
  const auto says = [&](const char* op, const char* part) {
    CAPTURE(op);
    const std::string text = wrong(op);
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  CHECK(wrong("%y = aten.neg %x kernel=1 : f32[6, 4]") == "");
  says("%y = cast %x kernel=1 : bf16[6, 4]", "makes elements of another size");
  says("%y = aten.sum.dim_IntList %x dim=[0] kernel=1 : f32[4]", "makes elements of another size");
  says("%y = aten.flip %x dims=[0] kernel=1 : f32[6, 4]", "makes elements in no order that is known");
  says("%y = aten.cumprod %x dim=0 kernel=1 : f32[6, 4]", "makes elements in no order that is known");
  CHECK(wrong("%y = aten.cumprod %x dim=1 kernel=1 : f32[6, 4]") == "");
  says("%y = aten.special_i0 %x kernel=1 : f32[6, 4]", "makes elements in no order that is known");
  says(
      "%y, %dw, %db = aten.native_batch_norm_backward %x, %x, none, none, none, none, none eps=1e-05 "
      "output_mask=[true, true, true] train=true kernel=1 : f32[6, 4], f32[4], f32[4]",
      "makes elements in no order that is known");
}

TEST_CASE("what a kernel may not write over what it reads: an operand of which others see each element often") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [] view local
fwd:
  %r = full value=1.0 kernel=0 : f32[6, 1]
  %x = full value=1.0 kernel=1 : f32[6, 4]
  %s = aten.neg %r kernel=2 : f32[6, 1]
  %y = aten.mul.Tensor %x, %r kernel=2 : f32[6, 4]
)",
                                             "test.ir");
  const auto op = [&](const char* name) { return graph.find_value(name)->producer(); };
  const std::vector<const ir::Op*> kernel = {op("s"), op("y")};
  const std::string wrong = plan::check_written_over(kernel, *graph.find_value("r"), *graph.find_value("s"));
  CHECK_MESSAGE(wrong.find("aten.mul.Tensor %y of the same kernel reads elements several times") != std::string::npos,
                wrong);
}

}  // namespace
}  // namespace sfsdp::passes::fuse_test
