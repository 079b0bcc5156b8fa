// SPDX-License-Identifier: BSD-3-Clause
// sfsdp's kernels of rows as the executor calls them: no further from float64 than LibTorch's ops.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/canonical_call.h"
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace rows_call_test {

using Tensors = std::vector<at::Tensor>;

// What a call gives stays until its next run.
Tensors copied(std::span<at::Tensor> given) { return {given.begin(), given.end()}; }

std::string with_dtype(std::string text, const std::string& dtype) {
  for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text.replace(at, 1, dtype);
  return text;
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  const at::Tensor wide = exact.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).square().mean() / wide.square().mean()).sqrt().item<double>();
}

// Random numbers of the types of an op's operands; integers below 7.
Tensors operands_for(const ir::Op& op) {
  Tensors operands;
  for (const ir::Value* value : op.operands) {
    operands.emplace_back();
    if (!value) continue;
    const ir::Type& type = value->type();
    const auto dtype = capture::scalar_type_of(type.dtype);
    at::Tensor numbers = dtype == at::kLong ? at::randint(7, type.shape()) : at::randn(type.shape(), dtype);
    if (!type.strides.empty())
      numbers = at::empty_strided(type.shape(), type.strides, numbers.options()).copy_(numbers);
    operands.back() = numbers;
  }
  return operands;
}

Tensors in_float64(Tensors tensors) {
  for (at::Tensor& t : tensors)
    if (t.defined() && t.is_floating_point())
      t = t.to(at::kDouble);
    else if (t.defined() && t.is_complex())
      t = t.to(at::kComplexDouble);
  return tensors;
}

// Types of @ are float32, bfloat16, and float64 for what is exact.
TEST_CASE(
    "kernels of rows: norms, rotary embedding and gradients of embeddings, as near to float64 as LibTorch's ops") {
  at::manual_seed(1);
  const std::string x = "  %x = input name=x : @[4, 6, 40]\n", g = "  %g = input name=g : @[4, 6, 40]\n",
                    w = "  %w = input name=w : @[40]\n", r = "  %r = input name=r : WIDE[4, 6, 1]\n",
                    c = "  %c = input name=c : WIDE[6, 20]\n  %s = input name=s : WIDE[6, 20]\n";
  const struct {
    std::string inputs, op, result;
  } cases[] = {
      {x + w, "%y, %n = rms_norm %x, %w dims=1 eps=1e-05", "@[4, 6, 40], WIDE[4, 6, 1]"},
      {x, "%y, %n = rms_norm %x, none dims=1 eps=1e-05", "@[4, 6, 40], WIDE[4, 6, 1]"},
      {x + w, "%y, %n = rms_norm %x, %w cast_first=true dims=1 eps=1e-05", "@[4, 6, 40], WIDE[4, 6, 1]"},
      {g + x + w + r, "%y, %n = rms_norm_backward %g, %x, %w, %r, none dims=1", "@[4, 6, 40], @[40]"},
      {g + x + r + "  %o = input name=o : WIDE[4, 6, 40]\n", "%y, %n = rms_norm_backward %g, %x, none, %r, %o dims=1",
       "@[4, 6, 40], token"},
      {g + x + w + r, "%y, %n = rms_norm_backward %g, %x, %w, %r, none dims=1 only=x", "@[4, 6, 40], token"},
      {g + x + w + r, "%y, %n = rms_norm_backward %g, %x, %w, %r, none dims=1 only=w", "token, @[40]"},
      {x + c, "%y = rope %x, %c, %s", "@[4, 6, 40]"},
      {x + c, "%y = rope_inverse %x, %c, %s", "@[4, 6, 40]"},
      {x + c, "%y = rope %x, %c, %s halves=true", "@[4, 6, 40]"},
      {x + c, "%y = rope_inverse %x, %c, %s halves=true", "@[4, 6, 40]"},
      {x + "  %c = input name=c : WIDE[40]\n  %s = input name=s : WIDE[4, 6, 40]\n", "%y = rope %x, %c, %s halves=true",
       "@[4, 6, 40]"},
      {x + "  %c = input name=c : WIDE[40]\n  %s = input name=s : WIDE[4, 6, 40]\n",
       "%y = rope_inverse %x, %c, %s halves=true sliced=true", "@[4, 6, 40]"},
      {x + "  %c = input name=c : WIDE[6, 1]\n  %s = input name=s : WIDE[]\n", "%y = rope %x, %c, %s", "@[4, 6, 40]"},
      {g + "  %i = input name=i : i64[4, 6]\n",
       "%y = embedding_backward %g, %i num_weights=9 padding_idx=-1 scale_grad_by_freq=false", "@[9, 40]"},
      {g + "  %i = input name=i : i64[4, 6]\n",
       "%y = embedding_backward %g, %i num_weights=7 padding_idx=2 scale_grad_by_freq=false", "@[7, 40]"},
  };
  for (const auto& one : cases)
    for (const std::string dtype : {"f32", "bf16"}) {
      CAPTURE(one.op);
      CAPTURE(dtype);
      const auto graph_of = [&](const std::string& as, const std::string& wide) {
        std::string text = concat("graph mesh [dp_shard=1] view local\n", one.inputs, "fwd:\n  ", one.op,
                                  as == "f64" ? "" : " row_kernel=sfsdp.rows", " : ", one.result, "\n  return ",
                                  one.result.starts_with("token") ? "%n" : "%y", "\n");
        for (size_t at = text.find("WIDE"); at != std::string::npos; at = text.find("WIDE")) text.replace(at, 4, wide);
        return ir::parse_or_throw(with_dtype(text, as));
      };
      const ir::Graph graph = graph_of(dtype, "f32"), wide = graph_of("f64", "f64");
      const ir::Op &op = *graph.outputs[0]->producer(), &exact_op = *wide.outputs[0]->producer();
      const Tensors operands = operands_for(op);
      const auto own_call = make_own_call(op, nullptr, {});
      REQUIRE(own_call);
      const Tensors own = copied(own_call->run(operands, {}));
      const Tensors aten = copied(CanonicalCall(op, {}, Rng::Counter).run(operands, {}, {}));
      const Tensors exact = copied(CanonicalCall(exact_op, {}, Rng::Counter).run(in_float64(operands), {}, {}));
      check_results(own, op);
      for (size_t i = 0; i < own.size(); ++i) {
        CAPTURE(i);
        if (own[i].defined()) CHECK(error_of(own[i], exact[i]) <= 1.05 * error_of(aten[i], exact[i]) + 4e-8);
      }
    }
}

TEST_CASE("kernels of rows: rotary embedding by complex numbers") {
  at::manual_seed(2);
  for (const char* opcode : {"rope", "rope_inverse"}) {
    CAPTURE(opcode);
    const ir::Graph graph = ir::parse_or_throw(
        concat("graph mesh [dp_shard=1] view local\n  %x = input name=x : bf16[4, 6, 3, 40]\n  %c = input name=c : "
               "c64[6, 1, 20]\n",
               "fwd:\n  %y = ", opcode, " %x, %c row_kernel=sfsdp.rows : bf16[4, 6, 3, 40]\n  return %y\n"));
    const ir::Op& op = *graph.find_value("y")->producer();
    const Tensors operands = operands_for(op);
    const at::Tensor own = make_own_call(op, nullptr, {})->run(operands, {})[0];
    const at::Tensor aten = CanonicalCall(op, {}, Rng::Counter).run(operands, {}, {})[0];
    at::Tensor angles = operands[1].to(at::kComplexDouble);
    if (op.is("rope_inverse")) angles = angles.conj();
    const at::Tensor exact =
        at::view_as_real(at::view_as_complex(operands[0].to(at::kDouble).view({4, 6, 3, 20, 2})) * angles)
            .view(own.sizes());
    CHECK(error_of(own, exact) <= 1.05 * error_of(aten, exact));
  }
}

TEST_CASE("kernels of rows: a batch without rows has gradients of zeros") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[0, 8]
  %w = input name=w : f32[8]
  %r = input name=r : f32[0, 1]
  %i = input name=i : i64[0]
  %c = input name=c : f32[4]
fwd:
  %y, %n = rms_norm %x, %w dims=1 eps=1e-05 row_kernel=sfsdp.rows : f32[0, 8], f32[0, 1]
  %t = rope %x, %c, %c row_kernel=sfsdp.rows : f32[0, 8]
bwd:
  %dx, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 row_kernel=sfsdp.rows : f32[0, 8], f32[8]
  %de = embedding_backward %x, %i num_weights=5 padding_idx=-1 row_kernel=sfsdp.rows scale_grad_by_freq=false : f32[5, 8]
  return %y, %t, %dx, %dw, %de
)");
  for (const char* name : {"y", "t", "dx", "de"}) {
    CAPTURE(name);
    const ir::Op& op = *graph.find_value(name)->producer();
    const auto call = make_own_call(op, nullptr, {});
    for (size_t i = 0; i < op.results().size(); ++i)
      call->write_to(i, at::full(op.result(static_cast<int>(i))->type().shape(), 7.0F));
    const Tensors results = copied(call->run(operands_for(op), {}));
    check_results(results, op);
    for (const at::Tensor& result : results) CHECK((result == 0).all().item<bool>());
  }
}

TEST_CASE("kernels of rows: an id that is no row of the embedding is an IndexError") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %g = input name=g : f32[3, 8]
  %i = input name=i : i64[3]
fwd:
  %y = embedding_backward %g, %i num_weights=5 padding_idx=-1 row_kernel=sfsdp.rows scale_grad_by_freq=false : f32[5, 8]
  return %y
)");
  const auto call = make_own_call(*graph.find_value("y")->producer(), nullptr, {});
  for (const int64_t wrong : {-1, 5})
    CHECK_THROWS_WITH_AS(call->run(Tensors{at::ones({3, 8}), at::full({3}, wrong, at::kLong)}, {}),
                         doctest::Contains("out of bounds"), c10::IndexError);
}

// The bits of the product and the cast one after the other: the same rows, rounded to bfloat16.
TEST_CASE("kernels of rows: gradients of weights cast to float32 as they are made") {
  at::manual_seed(3);
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %g = input name=g : bf16[2, 16, 3000]
  %x = input name=x : bf16[2, 16, 700]
  %e = input name=e : bf16[50, 33]
  %i = input name=i : i64[50]
bwd:
  %dw = linear_dw %g, %x kernel=0 : bf16[3000, 700]
  %wide = cast %dw kernel=0 row_kernel=sfsdp.rows : f32[3000, 700]
  %de = embedding_backward %e, %i kernel=1 num_weights=9 padding_idx=-1 scale_grad_by_freq=false : bf16[9, 33]
  %wider = cast %de kernel=1 row_kernel=sfsdp.rows : f32[9, 33]
  return %wide, %wider
)");
  const auto both = [&](const char* name) {
    const ir::Op &cast = *graph.find_value(name)->producer(), &made = *cast.operands[0]->producer();
    const Tensors operands = operands_for(made);
    CHECK(operands_of_call(cast, &made) == std::vector<const ir::Value*>(made.operands.begin(), made.operands.end()));
    const auto call = make_own_call(cast, &made, {});
    const at::Tensor place = at::full(cast.result()->type().shape(), 7.0);
    REQUIRE(call->write_to(0, place));
    const at::Tensor own = call->run(operands, {})[0];
    CHECK(own.is_same(place));
    const at::Tensor narrow = CanonicalCall(made, {}, Rng::Counter).run(operands, {}, {})[0];
    return std::tuple(own, narrow, operands);
  };
  const auto [wide, narrow, factors] = both("wide");
  const at::Tensor exact =
      at::mm(factors[0].view({32, 3000}).t().to(at::kDouble), factors[1].view({32, 700}).to(at::kDouble));
  CHECK(at::equal(wide, wide.to(at::kBFloat16).to(at::kFloat)));
  CHECK(error_of(wide, exact) <= 1.001 * error_of(narrow, exact));
  // Sums of rows are not rounded to bfloat16 in between.
  const auto [sums, rounded, rows] = both("wider");
  const at::Tensor expected = at::embedding_dense_backward(rows[0].to(at::kDouble), rows[1], 9, -1, false);
  CHECK(error_of(sums, expected) < 1e-6);
  CHECK(error_of(rounded, expected) > 1e-4);
}

TEST_CASE("kernels of rows: Adam and AdamW as LibTorch's, segments and all, clipped on the way") {
  at::manual_seed(4);
  for (const char* opcode : {"adamw", "adam"}) {
    CAPTURE(opcode);
    const auto text = [&](const std::string& dtype) {
      std::string t;
      for (const char* name : {"p", "m", "v", "g"})
        t += concat("  %", name, " = input name=", name, " : ", dtype, "[100]\n");
      return concat(
          "graph mesh [dp_shard=1] view local\n", t, "  %n = input name=n : f32[]\n  %b = input name=b : f32[]\n",
          "  %c = input name=c : f32[]\nclip:\n  %h = scale %g, %c kernel=0 : ", dtype,
          "[100]\nopt:\n  %q, %o, %u = ", opcode,
          " %p, %m, %v, %h, %n, %b begins=[0, 37] beta1=0.9 beta2=0.95 donates=[0, 1, 2] eps=1e-08 ",
          "kernel=0 lr_factor=[1.0, 0.5]", dtype == "f32" ? " row_kernel=sfsdp.rows" : "",
          " weight_decay=[0.1, 0.0] : ", dtype, "[100], ", dtype, "[100], ", dtype, "[100]\n  return %q, %o, %u\n");
    };
    const ir::Graph graph = ir::parse_or_throw(text("f32")), wide = ir::parse_or_throw(text("f64"));
    const ir::Op &op = *graph.find_value("q")->producer(), &exact_op = *wide.find_value("q")->producer();
    const ir::Op& clip = *graph.find_value("h")->producer();
    const StepScalars scalars = {.lr = 1e-2};
    const at::Tensor p = at::randn({100}), m = at::randn({100}).mul(0.1), v = at::rand({100}), g = at::randn({100}),
                     count = at::full({}, 3.0F), good = at::full({}, 0.0F), factor = at::full({}, 0.3F);
    const auto clone = [](const Tensors& tensors) {
      Tensors copies;
      for (const at::Tensor& t : tensors) copies.push_back(t.clone());
      return copies;
    };
    const Tensors unclipped = clone({p, m, v, g.mul(0.3F), count, good});
    Tensors aten_in = clone(unclipped), own_in = clone({p, m, v, g, count, good, factor});
    Tensors exact_in = in_float64(clone({p, m, v, g, count, good}));
    exact_in[3].mul_(factor.to(at::kDouble));
    exact_in[4] = count, exact_in[5] = good;
    const Tensors aten = OpCall(op, graph, {}, Rng::Counter).run(aten_in, scalars, {});
    const Tensors exact = OpCall(exact_op, wide, {}, Rng::Counter).run(exact_in, scalars, {});
    const auto call = make_own_call(op, &clip, {});
    const Tensors own = copied(call->run(own_in, scalars));
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(own[i].is_same(own_in[i]));  // in their own memory
      CHECK(error_of(own[i], exact[i]) <= 1.2 * error_of(aten[i], exact[i]) + 2e-8);
      CHECK(error_of(own[i], exact[i]) < 1e-7);
    }
    CHECK_FALSE(at::equal(own[0], p));
    // The same without clipping; and where the norm is no number nothing is written.
    Tensors alone = clone(unclipped);
    make_own_call(op, nullptr, {})->run(alone, scalars);
    for (size_t i = 0; i < 3; ++i) CHECK(error_of(alone[i], exact[i]) < 1e-7);
    Tensors bad = clone({p, m, v, g, count, at::full({}, 1.0F), factor});
    call->run(bad, scalars);
    CHECK((at::equal(bad[0], p) && at::equal(bad[1], m) && at::equal(bad[2], v)));
  }
}

}  // namespace rows_call_test
}  // namespace sfsdp::exec
