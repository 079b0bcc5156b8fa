// SPDX-License-Identifier: BSD-3-Clause
// How large the blocks of kernels are by what their runs show; and access maps that are wrong of an op's kernel, so that the planner
// and the verifier are wrong with them: the machine, which asks no map, sees it.
#include "sfsdp/testing/machine/measured_reads.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/interp/kernels.h"
#include "sfsdp/testing/machine/reference.h"

namespace sfsdp::plan::machine::measured_reads_test {
namespace {

using ir::interp::Array;

constexpr const char* kOperands = R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 4]
      %z = input name=z : f32[2, 3, 4]
      %sq = input name=sq : f32[4, 4]
      %sq2 = input name=sq2 : f32[4, 4]
      %w = input name=w : f32[4]
      %r = input name=r : f32[6, 1]
      %r4 = input name=r4 : f32[4, 1]
      %s = input name=s : f32[]
      %h = input name=h : f32[3, 2]
      %h4 = input name=h4 : f32[3, 4]
      %q = input name=q : f32[1, 2, 3, 4]
      %ids = input name=ids : i64[4]
      %counter = input name=counter : i64[2]
    fwd:
)";

// "blocks of 4", with the results that are complete after the last, or "none".
//   nan: what all its floating operands hold is no number
std::string measured(const std::string& op_text, bool nan = false) {
  const ir::Graph graph = ir::parse_or_throw(concat(kOperands, "      ", op_text, "\n"));
  const ir::Op& op = *graph.ops().back();
  const ir::interp::Kernel kernel = ir::interp::find_kernel(op.opcode);
  REQUIRE((kernel != nullptr));
  std::vector<Array> operands;
  for (const ir::Value* operand : op.operands)
    if (operand) {
      operands.push_back(ir::interp::seeded(operand->type(), 3 + operands.size()));
      if (nan && ir::is_floating(operand->type().dtype))
        std::ranges::fill(operands.back().data, std::numeric_limits<double>::quiet_NaN());
    }
  const MeasuredReads reads = measure_reads(operands, [&](const std::vector<Array>& given) {
    std::vector<const Array*> in;
    size_t next = 0;
    for (const ir::Value* operand : op.operands) in.push_back(operand ? &given[next++] : nullptr);
    return kernel({.op = op, .operands = in, .host = {}, .axis_rank = 0});
  });
  if (!reads.by_blocks) return "none";
  std::string text = concat("blocks of ", reads.width);
  for (size_t r = 0; r < reads.over_blocks.size(); ++r)
    if (reads.over_blocks[r] != 0) text += concat(", over them ", r);
  return text;
}

TEST_CASE("measured reads: elements, pairs and rows are blocks; products, attention and lookups have none") {
  CHECK(measured("%o = aten.relu %x : f32[6, 4]") == "blocks of 1");
  CHECK(measured("%o = aten.add.Tensor %x, %w : f32[6, 4]") == "blocks of 1");
  CHECK(measured("%o = aten.mul.Tensor %x, %s : f32[6, 4]") == "blocks of 1");
  CHECK(measured("%o = dropout_backward %x, %counter keep=0.5 : f32[6, 4]") == "blocks of 1");
  CHECK(measured("%o = aten.cat [%sq, %sq2] dim=0 : f32[8, 4]") == "blocks of 1");
  CHECK(measured("%o = aten.sum.dim_IntList %x dim=[0] keepdim=true : f32[1, 4]") == "blocks of 1, over them 0");
  CHECK(measured("%o = aten.sum %x : f32[]") == "blocks of 1, over them 0");
  CHECK(measured("%o = aten.sum.dim_IntList %x dim=[-1] keepdim=true : f32[6, 1]") == "blocks of 4");
  CHECK(measured("%o = aten._log_softmax %x dim=1 half_to_float=false : f32[6, 4]") == "blocks of 4");
  CHECK(measured("%o, %p = rms_norm %z, %w dims=1 eps=0.5 : f32[2, 3, 4], f32[2, 3, 1]") == "blocks of 4");
  CHECK(measured("%o, %p = rms_norm %z, none dims=2 eps=0.5 : f32[2, 3, 4], f32[2, 1, 1]") == "blocks of 12");
  CHECK(measured("%o, %p = rms_norm_backward %x, %x, %w, %r, none dims=1 : f32[6, 4], f32[4]") ==
        "blocks of 4, over them 1");
  CHECK(measured("%o, %p = rms_norm_backward %x, %x, %w, %r, none dims=1 : f32[6, 4], f32[4]", true) ==
        "blocks of 4, over them 1");
  // as many rows as columns: a number of a row is none of a column
  CHECK(measured("%o, %p = rms_norm_backward %sq, %sq2, %w, %r4, none dims=1 : f32[4, 4], f32[4]") ==
        "blocks of 4, over them 1");
  CHECK(measured("%o = rope %z, %h, %h : f32[2, 3, 4]") == "blocks of 4");
  CHECK(measured("%o = rope_inverse %z, %h4, %h4 halves=true : f32[2, 3, 4]") == "blocks of 4");
  CHECK(measured("%o = linear %sq, %sq2 : f32[4, 4]") == "none");
  CHECK(measured("%o = linear %x, %sq : f32[6, 4]") == "none");
  CHECK(measured("%o = linear_dw %x, %x : f32[4, 4]") == "none");
  CHECK(measured("%o = embedding %sq, %ids : f32[4, 4]") == "none");
  CHECK(measured("%o, %p = sdpa %q, %q, %q : f32[1, 2, 3, 4], f32[1, 2, 3]") == "none");
}

// ---- LibTorch's ops whose rows say one thing, with kernels that do another

using Kernel = Array (*)(const Array& x);

Array doubled(const Array& x) {
  Array y = x;
  for (double& v : y.data) v *= 2;
  return y;
}
Array mirrored_in_rows(const Array& x) {
  Array y = x;
  for (size_t e = 0; e < y.data.size(); ++e) y.data[e] = x.data[e / 8 * 8 + 7 - e % 8];
  return y;
}
Array added_in_rows(const Array& x) {
  Array y = x;
  for (size_t e = 0; e < y.data.size(); ++e)
    if (e % 8 != 0) y.data[e] += y.data[e - 1];
  return y;
}
Array added_over_rows(const Array& x) {
  Array y = x;
  for (size_t e = 8; e < y.data.size(); ++e) y.data[e] += y.data[e - 8];
  return y;
}

// The greatest so far of a column: written over itself, it comes out as before.
Array greatest_over_rows(const Array& x) {
  Array y = x;
  for (size_t e = 8; e < y.data.size(); ++e) y.data[e] = std::max(y.data[e], y.data[e - 8]);
  return y;
}
Array greater_of_mirrored(const Array& x) {
  Array y = x;
  for (size_t e = 0; e < y.data.size(); ++e) y.data[e] = std::max(x.data[e], x.data[47 - e]);
  return y;
}
// What is read of the other row is its sign alone.
Array masked_by_next_row(const Array& x) {
  Array y = x;
  for (size_t e = 0; e < y.data.size(); ++e) y.data[e] = x.data[(e + 8) % 48] > 0 ? std::abs(x.data[e]) : 0;
  return y;
}
Array mirrored_added(const Array& x) {
  Array y = x;
  for (size_t e = 0; e < y.data.size(); ++e) y.data[e] += x.data[47 - e];
  return y;
}
Array last_reads_first(const Array& x) {
  Array y = x;
  y.data[47] += x.data[0];
  return y;
}
Array one_reads_another(const Array& x) {
  Array y = x;
  y.data[40] += x.data[30];
  return y;
}
Array first_added(const Array& x) {
  Array y = x;
  for (double& v : y.data) v += x.data[0];
  return y;
}

// %y over %a, as the planner has it by the op's map.
StepPlan plan_of(const std::string& op) {
  StepPlan plan = make_plan(ir::parse_or_throw(concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 8]
    fwd:
      %a = aten.mul.Scalar %x other=0.5 kernel=0 : f32[6, 8]
      %y = )",
                                                      op, R"( kernel=1 : f32[6, 8]
      %end = aten.neg %y kernel=2 : f32[6, 8]
      return %end
  )")));
  REQUIRE(print(plan).find("  %y inside %a at +0") != std::string::npos);
  REQUIRE(join(verify_plan(plan), "\n") == "");
  return plan;
}

std::string seen_by_machine(const StepPlan& plan, const ir::interp::OtherKernels& other) {
  return find_difference(plan, {.other = other});
}

TEST_CASE(
    "wrong maps towards an element or a row, which the planner and the verifier follow, are seen by the machine") {
  const auto seen = [](const char* op, Kernel kernel) {
    return seen_by_machine(plan_of(op), [=](const ir::Op&, std::span<const Array* const> in) {
      return std::vector<Array>{kernel(*in[0])};
    });
  };
  const char* const kByElement = "aten.erf %a";  // ... -> ...
  CHECK(seen(kByElement, &doubled) == "");
  CHECK(seen(kByElement, &mirrored_in_rows).find("aten.erf %y makes element") != std::string::npos);
  CHECK(seen(kByElement, &added_over_rows).find("aten.erf %y makes element") != std::string::npos);
  const char* const kByRow = "aten.cumsum %a dim=1";  // ... !d[dim] -> ... d
  CHECK(seen(kByRow, &doubled) == "");
  CHECK(seen(kByRow, &added_in_rows) == "");
  CHECK(seen(kByRow, &mirrored_in_rows).find("aten.cumsum %y makes element") != std::string::npos);
  CHECK(seen(kByRow, &added_over_rows).find("aten.cumsum %y makes element") != std::string::npos);
  for (const char* op : {kByElement, kByRow})
    for (Kernel kernel : {&greatest_over_rows, &greater_of_mirrored, &masked_by_next_row, &mirrored_added,
                          &last_reads_first, &one_reads_another, &first_added})
      CHECK(seen(op, kernel) != "");
  CHECK(seen(kByElement, &added_in_rows) != "");
}

TEST_CASE("what a kernel reads is seen where all that it makes is nan") {
  const StepPlan plan = make_plan(ir::parse_or_throw(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 8]
    fwd:
      %a = aten.log %x kernel=0 : f32[6, 8]
      %y = aten.erf %a kernel=1 : f32[6, 8]
      %end = aten.nan_to_num %y kernel=2 : f32[6, 8]
      return %end
  )"));
  REQUIRE(print(plan).find("  %y inside %a at +0") != std::string::npos);
  const auto seen = [&](Kernel erf) {
    return seen_by_machine(plan, [=](const ir::Op& op, std::span<const Array* const> in) {
      Array y = op.is("aten.erf") ? erf(*in[0]) : *in[0];
      if (op.is("aten.log")) std::ranges::fill(y.data, std::numeric_limits<double>::quiet_NaN());
      if (op.is("aten.nan_to_num"))
        for (double& v : y.data) v = std::isnan(v) ? 0.5 : v;
      return std::vector<Array>{y};
    });
  };
  CHECK(seen(&doubled) == "");
  CHECK(seen(&mirrored_in_rows).find("aten.erf %y makes element") != std::string::npos);
  CHECK(seen(&added_over_rows).find("aten.erf %y makes element") != std::string::npos);
}

// A norm's gradients: that of its input over what comes in, row by row, and those of weight and bias, added up over all rows.
TEST_CASE("a wrong map of what is added up over all rows is seen by the machine") {
  const StepPlan plan = make_plan(ir::parse_or_throw(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 8]
      %g = input name=g : f32[6, 8]
      %mean = input name=mean : f32[6, 1]
      %rstd = input name=rstd : f32[6, 1]
      %w = input name=w : f32[8]
    fwd:
      %a = aten.mul.Scalar %g other=0.5 kernel=0 : f32[6, 8]
      %y, %dw, %db = aten.native_layer_norm_backward %a, %x, %mean, %rstd, %w, none kernel=1 normalized_shape=[8] output_mask=[true, true, true] : f32[6, 8], f32[8], f32[8]
      return %y, %dw, %db
  )"));
  REQUIRE(print(plan).find("  %y inside %a at +0") != std::string::npos);
  REQUIRE(join(verify_plan(plan), "\n") == "");
  const auto kernel = [](size_t shift) {
    return [=](const ir::Op&, std::span<const Array* const> in) {
      Array dw = Array::zeros(ir::DType::f32, {8}), db = dw;
      for (size_t e = 0; e < 48; ++e) {
        dw.data[e % 8] += in[0]->data[e] * in[1]->data[(e + shift) % 48];
        db.data[(e + shift) % 8] += in[0]->data[e];
      }
      return std::vector<Array>{doubled(*in[0]), dw, db};
    };
  };
  CHECK(seen_by_machine(plan, kernel(0)) == "");
  CHECK(seen_by_machine(plan, kernel(1)).find("aten.native_layer_norm_backward %y makes element") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::plan::machine::measured_reads_test
