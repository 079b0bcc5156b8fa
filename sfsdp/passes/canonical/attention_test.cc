// SPDX-License-Identifier: BSD-3-Clause
// Attention within documents, found by the mask that is made of their numbers.
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::attention_test {
namespace {

const std::string kGiven = R"(
    graph mesh [] view local
      %q = input name=q : f32[2, 4, 6, 8]
      %k = input name=k : f32[2, 2, 6, 8]
      %docs = input name=docs : i64[2, 6]
      %other = input name=other : i64[2, 6]
    fwd:
)";

// Two layers share a mask, as the models capture it.
const std::string kMasked = kGiven + R"(      %rows = aten.unsqueeze %docs dim=2 : i64[2, 6, 1]
      %columns = aten.unsqueeze %docs dim=1 : i64[2, 1, 6]
      %zero = aten.scalar_tensor dtype=f32 layout=0 s=0.0 : f32[]
      %inf = aten.scalar_tensor dtype=f32 layout=0 s=-inf : f32[]
      %same = aten.eq.Tensor %rows, %columns : b1[2, 6, 6]
      %low = aten.tril %same : b1[2, 6, 6]
      %may = aten.unsqueeze %low dim=1 : b1[2, 1, 6, 6]
      %mask = aten.where.self %may, %zero, %inf : f32[2, 1, 6, 6]
      %a, %al = aten._scaled_dot_product_flash_attention_for_cpu %q, %k, %k, %mask : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 4, 6]{24, 1, 4} at layers.0
      %o, %l = aten._scaled_dot_product_flash_attention_for_cpu %a, %k, %k, %mask scale=0.5 : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 4, 6]{24, 1, 4} at layers.1
    bwd:
      %da, %dk, %dv = aten._scaled_dot_product_flash_attention_for_cpu_backward %q, %a, %k, %k, %o, %l, %mask dropout_p=0.0 is_causal=false scale=0.5 bwd_of=%o : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1} at layers.1
      %dq, %dk2, %dv2 = aten._scaled_dot_product_flash_attention_for_cpu_backward %da, %q, %k, %k, %a, %al, %mask dropout_p=0.0 is_causal=false bwd_of=%a : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1} at layers.0
      return %o, %dq, %dk, %dv, %dk2, %dv2
)";

std::string canonical(const std::string& text, const std::string& passes = "canonicalise") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text), "test.ir");
  run_passes(graph, parse_passes(passes));
  return ir::print(graph);
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = kMasked;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("canonicalise: a mask of documents becomes the documents, in attention and its gradient") {
  const std::string expected =
      kGiven +
      R"(      %a, %al = sdpa %q, %k, %k, %docs documents=true is_causal=true : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 4, 6]{24, 1, 4} at layers.0
      %o, %l = sdpa %a, %k, %k, %docs documents=true is_causal=true scale=0.5 : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 4, 6]{24, 1, 4} at layers.1
    bwd:
      %da, %dk, %dv = sdpa_backward %q, %a, %k, %k, %o, %l, %docs documents=true dropout_p=0.0 is_causal=true scale=0.5 bwd_of=%o : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1} at layers.1
      %dq, %dk2, %dv2 = sdpa_backward %da, %q, %k, %k, %a, %al, %docs documents=true dropout_p=0.0 is_causal=true bwd_of=%a : f32[2, 4, 6, 8]{192, 8, 32, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1}, f32[2, 2, 6, 8]{96, 8, 16, 1} at layers.0
      return %o, %dq, %dk, %dv, %dk2, %dv2
)";
  CHECK(canonical(kMasked) == ir::print(ir::parse_or_throw(testing::dedent(expected), "expected.ir")));
  const std::string swapped = canonical(with("eq.Tensor %rows, %columns", "eq.Tensor %columns, %rows"));
  CHECK(count(swapped, "documents=true") == 4);
}

TEST_CASE("canonicalise: a number that backward makes for itself, as forward made one for the mask, hides nothing") {
  std::string text = with("    bwd:\n",
                          "    bwd:\n"
                          "      %own = aten.scalar_tensor dtype=f32 layout=0 s=0 : f32[]\n"
                          "      %read = aten.add.Tensor %own, %l : f32[2, 4, 6]{24, 1, 4}\n");
  const size_t end = text.find("return %o");
  const std::string found = canonical(text.replace(end, 9, "return %read, %o"));
  CHECK(count(found, "documents=true") == 4);
  CHECK(count(found, "aten.scalar_tensor") == 1);  // that of backward
  CHECK(count(found, "aten.where") == 0);
}

TEST_CASE("canonicalise: masks that each attention makes of one condition, as LibTorch does, are the documents too") {
  std::string text = with("%o, %l = aten", R"(%zero2 = aten.scalar_tensor dtype=f32 layout=0 s=0.0 : f32[]
      %inf2 = aten.scalar_tensor dtype=f32 layout=0 s=-inf : f32[]
      %mask2 = aten.where.self %may, %zero2, %inf2 : f32[2, 1, 6, 6]
      %o, %l = aten)");
  for (const std::string part : {"%k, %mask scale", "%l, %mask dropout"}) {
    const size_t at = text.find(part);
    text.replace(at, part.size(), part.substr(0, 9) + "2" + part.substr(9));
  }
  REQUIRE(count(text, "%mask2") == 3);
  CHECK(canonical(text) == canonical(kMasked));
  const size_t at = text.find("%zero2 = aten.scalar_tensor dtype=f32 layout=0 s=0.0");
  CHECK(count(canonical(text.replace(at, 52, "%zero2 = aten.scalar_tensor dtype=f32 layout=0 s=1.0")), "documents=") ==
        0);
}

TEST_CASE("canonicalise: how many tokens costs take a document to have stands on the ops") {
  const std::string text = canonical(kMasked, "canonicalise document_tokens=3");
  CHECK(count(text, "document_tokens=3 documents=true") == 4);
}

TEST_CASE("canonicalise: a mask that differs in one number, op or operand stays a mask") {
  const std::pair<const char*, const char*> differences[] = {
      {"s=0.0", "s=1.0"},
      {"s=-inf", "s=-1e+30"},
      {"s=-inf", "s=inf"},
      {"aten.eq.Tensor", "aten.ge.Tensor"},
      {"aten.eq.Tensor", "aten.ne.Tensor"},
      {"%columns = aten.unsqueeze %docs", "%columns = aten.unsqueeze %other"},
      {"aten.tril %same", "aten.triu %same"},
      {"aten.tril %same", "aten.tril %same diagonal=1"},
      {"aten.tril %same", "aten.logical_not %same"},
      {"aten.where.self %may, %zero, %inf", "aten.where.self %may, %inf, %zero"},
  };
  for (const auto& [from, to] : differences) {
    CAPTURE(to);
    const std::string text = canonical(with(from, to));
    CHECK(count(text, "documents=") == 0);
    CHECK(count(text, " = sdpa ") == 2);
    CHECK(count(text, " = sdpa_backward ") == 2);
    CHECK(count(text, "%mask") == 5);
  }
}

TEST_CASE("canonicalise: ids that are no whole numbers, or of another batch, stay in a mask") {
  std::string text = kMasked;
  for (const char* name : {"i64[2, 6]", "i64[2, 6, 1]", "i64[2, 1, 6]"})
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) text.replace(at, 3, "f32");
  CHECK(count(canonical(text), "documents=") == 0);
  text = kMasked;
  for (const char* name :
       {"i64[2, 6", "i64[2, 1", "b1[2, 6", "b1[2, 1", "%mask = aten.where.self %may, %zero, %inf : f32[2"})
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
      text.replace(at + std::string(name).find("[2"), 2, "[1");
  const std::string one = canonical(text);
  CHECK(count(one, "documents=") == 0);
  CHECK(count(one, " = sdpa ") == 2);
}

TEST_CASE("canonicalise: a mask that something else reads stays one, for all of its readers") {
  for (const char* leak : {"%mask", "%low", "%same"}) {
    CAPTURE(leak);
    const std::string text = canonical(with("return %o", concat("return ", leak, ", %o")));
    CHECK(count(text, "documents=") == 0);
    CHECK(count(text, " = sdpa ") == 2);
  }
  // A number is no mask.
  CHECK(count(canonical(with("return %o", "return %zero, %o")), "documents=true") == 4);
}

TEST_CASE("decompose: documents become a mask just before each attention, and none is kept for backward") {
  const std::string text = canonical(kMasked, "canonicalise, decompose");
  CHECK(count(text, "aten.where.self") == 4);
  const size_t backward = text.find("bwd:");
  for (const char* mask : {"aten.where.self", "aten.tril", "aten.eq.Tensor"})
    CHECK(count(text.substr(backward), mask) == 2);
  CHECK(count(text, "documents") == 0);
  CHECK(count(text, "is_causal=false") == 2);
  CHECK(count(text, "is_causal=true") == 0);
}

}  // namespace
}  // namespace sfsdp::passes::attention_test
