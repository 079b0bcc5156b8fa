// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/name_kernels.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::name_kernels_test {
namespace {

using testing::expect_pass, testing::expect_unchanged;

TEST_CASE("name_kernels: products in float32, attention and losses that sfsdp's kernels compute") {
  expect_pass("name_kernels products=onednn.matmul attention=sfsdp.flash rows=sfsdp.rows", R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[4, 8]
  %w = input name=w : f32[6, 8]
  %h = input name=h : bf16[4, 8]
  %v = input name=v : bf16[6, 8]
  %q = input name=q : f32[2, 4, 32, 16]
  %k = input name=k : f32[2, 2, 32, 16]
  %n = input name=n : f32[2, 4, 32, 24]
  %m = input name=m : f32[2, 1, 32, 32]
  %d = input name=d : i64[2, 32]
  %t = input name=t : i64[6]
fwd:
  %a = linear %x, %w : f32[4, 6]
  %b = linear %h, %v : bf16[4, 6]
  %o, %l = sdpa %q, %k, %k, none is_causal=true : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o1, %l1 = sdpa %q, %k, %k, %d documents=true is_causal=true : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o2, %l2 = sdpa %q, %k, %k, %m : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o3, %l3 = sdpa %n, %n, %n : f32[2, 4, 32, 24], f32[2, 4, 32]
  %c, %cn, %cl = cross_entropy %v, %t : f32[], f32[], f32[6]
  %e, %en, %el = cross_entropy %v, %t in_dtype=true : bf16[], bf16[], bf16[6]
  return %a, %b, %o, %o1, %o2, %o3, %c, %e
)",
              R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[4, 8]
  %w = input name=w : f32[6, 8]
  %h = input name=h : bf16[4, 8]
  %v = input name=v : bf16[6, 8]
  %q = input name=q : f32[2, 4, 32, 16]
  %k = input name=k : f32[2, 2, 32, 16]
  %n = input name=n : f32[2, 4, 32, 24]
  %m = input name=m : f32[2, 1, 32, 32]
  %d = input name=d : i64[2, 32]
  %t = input name=t : i64[6]
fwd:
  %a = linear %x, %w product_kernel=onednn.matmul : f32[4, 6]
  %b = linear %h, %v : bf16[4, 6]
  %o, %l = sdpa %q, %k, %k, none attention_kernel=sfsdp.flash is_causal=true : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o1, %l1 = sdpa %q, %k, %k, %d attention_kernel=sfsdp.flash documents=true is_causal=true : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o2, %l2 = sdpa %q, %k, %k, %m : f32[2, 4, 32, 16], f32[2, 4, 32]
  %o3, %l3 = sdpa %n, %n, %n : f32[2, 4, 32, 24], f32[2, 4, 32]
  %c, %cn, %cl = cross_entropy %v, %t row_kernel=sfsdp.rows : f32[], f32[], f32[6]
  %e, %en, %el = cross_entropy %v, %t in_dtype=true : bf16[], bf16[], bf16[6]
  return %a, %b, %o, %o1, %o2, %o3, %c, %e
)");
}

TEST_CASE("name_kernels: products by shape before the name for all, in float64 by shape alone") {
  const std::string table = "f64:4x6x8:nt=aten.mm;f32:4x6x8:nt=openblas.gemm";
  expect_pass("name_kernels products=onednn.matmul products_by_shape=\"" + table + "\"", R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[4, 8]
  %w = input name=w : f32[6, 8]
  %d = input name=d : f64[4, 8]
  %v = input name=v : f64[6, 8]
  %u = input name=u : f64[5, 8]
fwd:
  %a = linear %x, %w : f32[4, 6]
  %b = linear_dx %a, %w : f32[4, 8]
  %c = linear %d, %v : f64[4, 6]
  %e = linear %d, %u : f64[4, 5]
  return %a, %b, %c, %e
)",
              R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[4, 8]
  %w = input name=w : f32[6, 8]
  %d = input name=d : f64[4, 8]
  %v = input name=v : f64[6, 8]
  %u = input name=u : f64[5, 8]
fwd:
  %a = linear %x, %w product_kernel=openblas.gemm : f32[4, 6]
  %b = linear_dx %a, %w product_kernel=onednn.matmul : f32[4, 8]
  %c = linear %d, %v product_kernel=aten.mm : f64[4, 6]
  %e = linear %d, %u : f64[4, 5]
  return %a, %b, %c, %e
)");
  CHECK(to_string(parse_product_table(table)) == table);
  for (const char* text : {"f32:4x6x8:nt", "f32:4x6x8:nt=", "=aten.mm", "f32:4x6:nt=aten.mm", ";"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_product_table(text), UserError);
  }
}

TEST_CASE("name_kernels: without names it changes nothing") {
  expect_unchanged("name_kernels", R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[4, 8]
  %w = input name=w : f32[6, 8]
fwd:
  %a = linear %x, %w : f32[4, 6]
  return %a
)");
}

}  // namespace
}  // namespace sfsdp::passes::name_kernels_test
