// SPDX-License-Identifier: BSD-3-Clause
// Every access map of opset.def and atenset.def against LibTorch's kernels: an element of an operand is changed, and no
// element of a result may change but those that the map admits. What a map admits must be seen, in one draw or another.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/testing/access_proof_torch.h"
#include "sfsdp/testing/aten_calls_torch.h"
#include "sfsdp/testing/modules_torch.h"

namespace sfsdp::capture {
namespace access_test {

using at::Tensor;
using Proof = testing::AccessProof;

// Floating numbers in (0.05, 0.95), which losses take as probabilities; 0 and 1 as indexes.
Tensor drawn(const ir::Type& type) {
  const Tensor t = at::empty(type.shape(), scalar_type_of(type.dtype));
  if (t.is_complex()) return at::randn(type.shape(), scalar_type_of(type.dtype));
  return t.is_floating_point() ? t.uniform_(0.05, 0.95) : t.random_(0, 2);
}

void expect_unseen(const Proof& proof, const std::map<std::string, const char*>& explained) {
  for (const std::string& what : proof.unseen())
    CHECK_MESSAGE(explained.contains(what), what, " is admitted, and no call has shown it");
  for (const auto& [what, why] : explained) CHECK_MESSAGE(proof.unseen().contains(what), what, " was seen: ", why);
}

// Why what a map admits is not seen.
constexpr const char* kGroups = "only groups of channels move them, which are drawn too seldom";
constexpr const char* kMeans = "modules take means, without padding and weights";
constexpr const char* kEval = "read in eval mode alone";
constexpr const char* kTargets = "which classes are targets changes nothing where the margin holds";
constexpr const char* kDiffer = "what modules compare differs in many elements";
// Why what may be cut is not.
constexpr const char* kDraws = "it draws numbers for the whole";
constexpr const char* kUnread = "an operand that is not read says how large the result is";
constexpr const char* kSmall = "two axes have no dimension of modules' samples to cut";

Proof prove_calls() {
  Proof proof;
  const std::vector<testing::Call> calls = testing::aten_calls();
  for (size_t i = 0; i < calls.size(); ++i)
    for (uint64_t round = 0; round < 40; ++round) {
      Tracer tracer;
      testing::Caller caller(1000 * i + round, tracer);
      try {
        tracer.run([&] { calls[i](caller); });
      } catch (const c10::Error&) {  // LibTorch refuses the dtype; what was traced before counts
      } catch (const UserError&) {
      }
      at::manual_seed(round);
      proof.walk(tracer.graph, [&](const ir::Op& op) {
        return op.is("constant") ? tracer.constants[static_cast<size_t>(op.attr<int64_t>("index"))]
                                 : drawn(op.result()->type());
      });
    }
  return proof;
}

Proof prove_modules() {
  Proof proof;
  for (const testing::ModuleRow& row : testing::module_rows()) {
    CAPTURE(row.name);
    try {
      testing::CapturedModule captured = testing::capture_module(row);
      size_t next = 0;
      proof.walk(captured.step.graph, [&](const ir::Op& op) {
        if (op.is("constant")) return captured.step.constants[static_cast<size_t>(op.attr<int64_t>("index"))];
        if (op.is("input")) return captured.batch[next++].contiguous();
        const auto state = std::ranges::find(captured.state, op.attr<std::string>("name"), &StateTensor::name);
        SFSDP_CHECK(state != captured.state.end(), "no state for ", ir::print(op));
        return state->value;
      });
    } catch (const UserError&) {  // refused by capture
    }
  }
  return proof;
}

// Each made once, by whichever test case asks first.
const Proof& proof_of_calls() {
  static const Proof proof = prove_calls();
  return proof;
}
const Proof& proof_of_modules() {
  static const Proof proof = prove_modules();
  return proof;
}

TEST_CASE("access maps of ops that have a rule hold for LibTorch's kernels, and admit no more than what is seen") {
  const Proof& proof = proof_of_calls();
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof,
                {{"aten._grouped_mm 0 -> 0, !m", "a row makes its own row, but which group it is of says its place"}});
  for (const std::string& wrong : proof.cuts().wrong()) FAIL_CHECK(wrong);
}

TEST_CASE("access maps of what modules of torch::nn are captured as hold, and admit no more than what is seen") {
  const Proof& proof = proof_of_modules();
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof, {{"aten._embedding_bag 0 -> 3", kMeans},
                        {"aten._embedding_bag 1 -> 2", kMeans},
                        {"aten._embedding_bag 1 -> 3", kMeans},
                        {"aten._embedding_bag_backward 2 -> 0", kMeans},
                        {"aten._embedding_bag_backward 4 -> 0", kMeans},
                        {"aten._embedding_bag_backward 5 -> 0", kMeans},
                        {"aten._native_batch_norm_legit_functional 3 -> 0", kEval},
                        {"aten._native_batch_norm_legit_functional 4 -> 0", kEval},
                        {"aten.native_batch_norm_backward 3 -> 0", kEval},
                        {"aten.native_batch_norm_backward 3 -> 1", kEval},
                        {"aten.native_batch_norm_backward 4 -> 0", kEval},
                        {"aten.native_batch_norm_backward 4 -> 1", kEval},
                        {"aten.rrelu_with_noise_backward 1 -> 0", kEval},
                        {"aten.convolution 1 -> 0, @n", kGroups},
                        {"aten.convolution_backward 0 -> 1, @n", kGroups},
                        {"aten.convolution_backward 1 -> 1, @c", kGroups},
                        {"aten.convolution_backward 2 -> 0, @c", kGroups},
                        {"aten.all 0 -> 0", kDiffer},
                        {"aten.eq.Tensor 0 -> 0", kDiffer},
                        {"aten.eq.Tensor 1 -> 0", kDiffer},
                        {"aten.multilabel_margin_loss_backward 3 -> 0", kTargets},
                        {"aten.multilabel_margin_loss_backward 3 -> 0, !c", kTargets},
                        {"aten.nll_loss_forward 1 -> 1", "no target is ignored"}});
  for (const std::string& wrong : proof.cuts().wrong()) FAIL_CHECK(wrong);
}

// What ops written as text read.
constexpr const char* kOperands = R"(graph mesh [a=1] view local
  %x = param name=x : f32[6, 4]
  %y = param name=y : f32[6, 4]
  %z = param name=z : f32[2, 3, 4]
  %zz = param name=zz : f32[2, 3, 4]
  %w = param name=w : f32[4]
  %w6 = param name=w6 : f32[6]
  %g6 = param name=g6 : f32[2, 3, 6]
  %m = param name=m : f32[6, 4]
  %n = param name=n : f32[4, 6]
  %b = param name=b : f32[2, 4, 6]
  %h = param name=h : f32[3, 2]
  %h4 = param name=h4 : f32[3, 4]
  %r = param name=r : f32[6, 1]
  %s = param name=s : f32[]
  %s2 = param name=s2 : f32[]
  %v = param name=v : f64[3]
  %i = param name=i : i64[6]
  %i2 = param name=i2 : i64[2, 3]
  %c = param name=c : f32[]
  %e = param name=e : f32[6]
  %q = param name=q : f32[2, 4, 3, 8]
  %k = param name=k : f32[2, 2, 5, 8]
  %vv = param name=vv : f32[2, 2, 5, 8]
  %mask3 = param name=mask3 : f32[3, 3]
  %o = param name=o : f32[2, 4, 3, 8]
  %lse = param name=lse : f32[2, 4, 3]
  %pp = param name=pp : f32[6, 6]
  %gl = param name=gl : f32[2, 3, 2]
  %gr = param name=gr : f32[2, 3, 4]
  %d = param name=d : i64[2]
  %zero = param name=zero : f32[]
fwd:
)";
// Aten ops that no trace above holds in this form.
constexpr const char* kAtenOps[] = {
    "%o1 = aten.dropout %x p=0.5 train=true : f32[6, 4]",
    "%o1, %o2 = aten.native_dropout %x p=0.5 train=true : f32[6, 4], b1[6, 4]",
    "%o1 = aten.lift_fresh %x : f32[6, 4]",
    "%o1 = aten.cauchy %x : f32[6, 4]",
    "%o1 = aten.exponential %x : f32[6, 4]",
    "%o1 = aten.geometric %x p=0.5 : f32[6, 4]",
    "%o1 = aten.log_normal %x : f32[6, 4]",
    "%o1 = aten.random %x : f32[6, 4]",
    "%o1 = aten.randint high=5 size=[6, 4] : i64[6, 4]",
    "%o1 = aten.randperm n=6 : i64[6]",
    "%o1 = aten.normal.Tensor_Tensor %x, %y : f32[6, 4]",
    "%o1 = aten.bernoulli.Tensor %x, %y : f32[6, 4]",
    "%o1 = aten.index.Tensor %x, [%i] : f32[6, 4]",
    "%o1 = aten.argmin %x dim=1 keepdim=false : i64[6]",
    "%o1 = aten.clamp_min.Tensor %x, %y : f32[6, 4]",
    "%o1 = aten.linalg_vector_norm %x dim=[1] keepdim=true ord=2.0 : f32[6, 1]",
    "%o1, %o2, %o3 = aten.unsafe_split.Tensor %x dim=0 split_size=2 : f32[2, 4], f32[2, 4], f32[2, 4]",
    "%o1 = aten.mse_loss %x, %y reduction=0 : f32[6, 4]",
    "%o1 = aten.huber_loss %x, %y delta=0.5 reduction=0 : f32[6, 4]",
    "%o1 = aten.smooth_l1_loss %x, %y beta=0.5 reduction=0 : f32[6, 4]",
    "%o1 = aten.soft_margin_loss %x, %y reduction=0 : f32[6, 4]",
    "%o1 = aten.binary_cross_entropy %x, %y, none reduction=0 : f32[6, 4]",
    "%o1 = aten.binary_cross_entropy_with_logits %x, %y, none, none reduction=0 : f32[6, 4]",
    "%o1 = aten.multi_margin_loss %x, %i, none margin=1.0 p=1 reduction=0 : f32[6]",
};

// Each op of these by itself, with several draws of what it reads.
Proof prove_texts(std::span<const char* const> ops) {
  Proof proof;
  for (const char* op : ops)
    for (uint64_t round = 0; round < 20; ++round) {
      CAPTURE(op);
      const ir::Graph graph = ir::parse_or_throw(concat(kOperands, "  ", op, '\n'), "test.ir");
      at::manual_seed(round);
      proof.walk(graph, [](const ir::Op& root) {
        return root.attr<std::string>("name") == "zero" ? at::zeros({}) : drawn(root.result()->type());
      });
    }
  return proof;
}

const Proof& proof_of_texts() {
  static const Proof proof = prove_texts(kAtenOps);
  return proof;
}

TEST_CASE("access maps: a call of every name in atenset.def that has one was proved") {
  const Proof& proof = proof_of_texts();
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  for (const std::string& wrong : proof.cuts().wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof, {});
  constexpr const char* kUnwritten = "its elements are whatever the memory held";
  const std::map<std::string_view, const char*> apart = {{"aten.empty_like", kUnwritten},
                                                         {"aten.new_empty", kUnwritten},
                                                         {"aten.new_empty_strided", kUnwritten},
                                                         {"aten.empty.memory_format", kUnwritten},
                                                         {"aten._fused_dropout", "LibTorch has it for CUDA alone"}};
  for (const ir::OpRow& row : ir::opset()) {
    if (!ir::is_aten(row.name) || !ir::map_of(&row)) continue;
    const std::string name(row.name);
    const bool called = proof.rows().contains(name) || proof_of_calls().rows().contains(name) ||
                        proof_of_modules().rows().contains(name);
    CHECK_MESSAGE(called != apart.contains(name), name, called ? " was called" : " was not called");
  }
}

// What the own ops' rows stand for, each in all its forms.
constexpr const char* kOwnOps[] = {
    "%o1 = linear %z, %m, %w6 : f32[2, 3, 6]",
    "%o1 = linear_dx %g6, %m : f32[2, 3, 4]",
    "%o1 = linear_dw %g6, %z : f32[6, 4]",
    "%o1, %o2 = joined_linear %z, %m widths=[2, 4] : f32[2, 3, 2], f32[2, 3, 4]",
    "%o1 = joined_linear_dx %gl, %gr, %m order=[0, 1] : f32[2, 3, 4]",
    "%o1, %o2 = joined_linear_dw %gl, %gr, %z : f32[2, 4], f32[4, 4]",
    "%o1 = matmul %z, %n, %w6 : f32[2, 3, 6]",
    "%o1 = matmul %z, %b : f32[2, 3, 6]",
    "%o1 = matmul %x, %n : f32[6, 6]",
    "%o1 = embedding %m, %i2 : f32[2, 3, 4]",
    "%o1 = embedding_backward %zz, %i2 num_weights=6 padding_idx=-1 scale_grad_by_freq=false : f32[6, 4]",
    "%o1, %o2, %o3 = layer_norm %z, %w, %w eps=0.5 normalized_shape=[4] : f32[2, 3, 4], f32[2, 3, 1], f32[2, 3, 1]",
    "%o1, %o2, %o3 = layer_norm_backward %x, %y, %r, %r, %w, %w normalized_shape=[4] output_mask=[true, true, true] : "
    "f32[6, 4], f32[4], f32[4]",
    "%o1, %o2 = rms_norm %z, %w dims=1 eps=0.5 : f32[2, 3, 4], f32[2, 3, 1]",
    "%o1, %o2 = rms_norm %z, none dims=2 eps=0.5 : f32[2, 3, 4], f32[2, 1, 1]",
    "%o1, %o2 = rms_norm_backward %x, %y, %w, %r, %x dims=1 : f32[6, 4], f32[4]",
    "%o1 = rope %z, %h, %h : f32[2, 3, 4]",
    "%o1 = rope_inverse %z, %h, %h : f32[2, 3, 4]",
    "%o1 = rope %z, %h4, %h4 halves=true : f32[2, 3, 4]",
    "%o1 = rope_inverse %z, %h4, %h4 halves=true : f32[2, 3, 4]",
    "%o1, %o2 = sdpa %q, %k, %vv, none : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%o1, %o2 = sdpa %q, %k, %vv, none is_causal=true : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%o1, %o2, %o3 = sdpa_backward %o, %q, %k, %vv, %q, %lse, none dropout_p=0.0 is_causal=true : "
    "f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}",
    "%o1, %o2 = sdpa %q, %q, %q, %mask3 : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%o1, %o2, %o3 = sdpa_backward %o, %q, %k, %vv, %q, %lse, none dropout_p=0.0 is_causal=false : "
    "f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}",
    "%o1, %o2 = sdpa %q, %q, %q, %i2 documents=true is_causal=true : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, "
    "1, 4}",
    "%o1, %o2, %o3 = sdpa_backward %o, %q, %q, %q, %q, %lse, %i2 documents=true dropout_p=0.0 is_causal=true : "
    "f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3, 8]{96, 8, 32, 1}",
    "%o1, %o2 = sdpa %q, %q, %q, none axis=a is_causal=true : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%o1, %o2, %o3 = sdpa_backward %o, %q, %q, %q, %q, %lse, %i2 axis=a documents=true dropout_p=0.0 is_causal=true : "
    "f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3, 8]{96, 8, 32, 1}",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=1 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=2 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=0 : f32[6], f32[], f32[6]",
    "%o1 = cross_entropy_backward %s, %x, %i, %c, %e ignore_index=-100 reduction=1 : f32[6, 4]",
    "%o1 = cross_entropy_backward %e, %x, %i, %c, %e ignore_index=-100 reduction=0 : f32[6, 4]",
    "%o1 = cross_entropy_parts %x, %i axis=a ignore_index=-100 : f32[3, 6]",
    "%o1, %o2, %o3 = cross_entropy_of_parts %pp, %i ignore_index=1 reduction=1 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy_of_parts %pp, %i ignore_index=1 reduction=2 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy_of_parts %pp, %i ignore_index=1 reduction=0 : f32[6], f32[], f32[6]",
    "%o1 = full value=1.0 : f32[6, 4]",
    "%o1 = cast %x : bf16[6, 4]",
    "%o1 = pad %x dim=0 size=8 : f32[8, 4]",
    "%o1 = narrow %x dim=0 length=3 start=2 : f32[3, 4]",
    "%own = own_part %x axis=a dim=0 : f32[6, 4]\n  %o1 = add_parts [%own] axis=a : f32[6, 4]",
    "%o1 = as_summand %x axis=a : f32[6, 4]",
    "%ends = full value=3 : i32[2]\n  %o1 = own_rows %x, %ends axis=a dim=0 : f32[6, 4] rows0(a)",
    "%ends = full value=3 : i32[2]\n  %o1 = spread_rows %x, %ends axis=a dim=0 : f32[6, 4]",
    "%o1, %o2 = sdpa_merge %q, %lse, %o, %lse : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%ends = full value=3 : i32[2]\n  %o1 = own_ends %ends axis=a : i32[2]",
    "%o1 = reorder %x dim=0 order=[2, 0, 1] : f32[6, 4]",
    "%o1 = pack [%x, %w] offsets=[0, 24] : f32[28]",
    "%o1 = unpack %x offset=4 ranks=2 : f32[2, 4]",
    "%o1 = gradient %x param=x : f32[6, 4]",
    "%o1 = accumulate %x : f32[6, 4]",
    "%o1 = add_into %x, %y : f32[6, 4]",
    "%o1 = store %x, %y donates=[0] : f32[6, 4]",
    "%o1, %o2 = dropout %x keep=0.5 stream=0 : f32[6, 4], i64[2]",
    "%o1 = dropout_backward %y, %d keep=0.5 : f32[6, 4]",
    "%start = all_gather.start %x axis=a dim=0 : async f32[6, 4]\n  %o1 = wait %start : f32[6, 4]",
    "%o1 = scale %x, %s : f32[6, 4]",
    "%o1 = div %x, %s : f32[6, 4]",
    "%o1 = mul_scalar %x value=2.0 : f32[6, 4]",
    "%o1 = sum_squares [%x, %w] : f64[2]",
    "%o1 = grad_norm %v, %s : f64[]",
    "%o1 = clip_coefficient %s, %s2 max_norm=0.1 : f32[]",
    "%o1 = non_finite %s : f32[]",
    "%o1 = step_count %s, %zero : f32[]",
    "%o1, %o2, %o3 = adamw %x, %y, %x, %x, %s, %zero beta1=0.9 beta2=0.95 eps=1e-08 weight_decay=0.1 : "
    "f32[6, 4], f32[6, 4], f32[6, 4]",
    "%o1, %o2, %o3 = adam %x, %y, %x, %y, %s, %zero beta1=0.9 beta2=0.95 eps=1e-08 weight_decay=0.1 : "
    "f32[6, 4], f32[6, 4], f32[6, 4]",
    "%o1, %o2 = sgd %x, %y, %x, %zero momentum=0.9 weight_decay=0.1 : f32[6, 4], f32[6, 4]",
    "%o1 = sgd %x, none, %y, %zero momentum=0.0 weight_decay=0.1 : f32[6, 4]",
};

const Proof& proof_of_own_ops() {
  static const Proof proof = prove_texts(kOwnOps);
  return proof;
}

TEST_CASE("access maps of own ops hold for what they stand for, and admit no more than what is seen") {
  const Proof& proof = proof_of_own_ops();
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  for (const std::string& wrong : proof.cuts().wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof, {{"cross_entropy_backward 4 -> 0", "eager leaves all probabilities in its place"},
                        {"cross_entropy 1 -> 1", "no target is ignored"},
                        {"own_part 0 -> 0, ~d", "one rank's part is all of it"},
                        {"own_rows 0 -> 0, ~d", "one rank's rows stand where they stood"},
                        {"own_rows 1 -> 0", "the ends are constants"},
                        {"spread_rows 0 -> 0, ~d", "one rank's rows stand where they stood"},
                        {"spread_rows 1 -> 0", "the ends are constants"},
                        {"own_ends 0 -> 0", "the ends are constants"},
                        {"dropout_backward 1 -> 0", "eager keeps the mask in the place of its counter"},
                        {"pad 0 -> 0, ~d", "its zeros come at the end"}});
  for (const ir::OpRow& row : ir::opset())
    if (!ir::is_aten(row.name) && ir::map_of(&row))
      CHECK_MESSAGE(proof.rows().contains(row.name), std::string(row.name), " was not called");
}

// Whether each row that ought to was cut, but for those that are named with a reason.
void expect_run(const std::map<std::string_view, const char*>& apart, const char* what,
                const std::function<std::optional<bool>(const ir::OpRow& row)>& was_run) {
  for (const ir::OpRow& row : ir::opset())
    if (const std::optional<bool> run = was_run(row); run || apart.contains(row.name))
      CHECK_MESSAGE(run.value_or(false) != apart.contains(row.name), std::string(row.name), ": ", what,
                    run.value_or(false) ? " was run" : " was not run");
}

// Operands by themselves in which an op is linear in all calls, as far as these show, and whose row does not say so.
const std::set<std::string> kUnclaimed = {"aten._log_softmax_backward_data 0",
                                          "aten._softmax_backward_data 0",
                                          "aten._trilinear 0",
                                          "aten._trilinear 1",
                                          "aten._trilinear 2",
                                          "aten.as_strided 0",
                                          "aten.avg_pool2d 0",
                                          "aten.avg_pool2d_backward 0",
                                          "aten.avg_pool3d 0",
                                          "aten.avg_pool3d_backward 0",
                                          "aten.convolution_backward 0",
                                          "aten.copy 1",
                                          "aten.cumsum 0",
                                          "aten.elu_backward 0",
                                          "aten.embedding 0",
                                          "aten.embedding_dense_backward 0",
                                          "aten.flip 0",
                                          "aten.gelu_backward 0",
                                          "aten.log_sigmoid_backward 0",
                                          "aten.mul.Scalar 0",
                                          "aten.native_batch_norm_backward 0",
                                          "aten.nll_loss2d_backward 0",
                                          "aten.nll_loss2d_backward 3",
                                          "aten.nll_loss_backward 0",
                                          "aten.nll_loss_backward 3",
                                          "aten.repeat 0",
                                          "aten.roll 0",
                                          "aten.sigmoid_backward 0",
                                          "aten.silu_backward 0",
                                          "aten.tanh_backward 0",
                                          "aten.threshold_backward 0",
                                          "aten.tril 0",
                                          "aten.triu 0",
                                          "aten.unsafe_split.Tensor 0",
                                          "aten.upsample_nearest1d 0",
                                          "aten.upsample_nearest1d_backward 0",
                                          "cross_entropy_backward 0",
                                          "rope 0",
                                          "rope_inverse 0",
                                          "sdpa_backward 0"};

TEST_CASE("access maps: each row that claims a cut was cut, over one axis and over two, and each sum torn") {
  testing::CutProof all;
  for (const Proof* proof : {&proof_of_calls(), &proof_of_modules(), &proof_of_own_ops(), &proof_of_texts()})
    all.join(proof->cuts());
  const auto counts = [&](const ir::OpRow& row) {
    const auto found = all.counts().find(std::string(row.name));
    return found == all.counts().end() ? testing::CutCounts() : found->second;
  };
  using Ran = std::optional<bool>;
  expect_run({}, "float64", [&](const ir::OpRow& row) {
    return counts(row).calls > 0 ? Ran(counts(row).calls > counts(row).no_kernel) : Ran();
  });
  expect_run({{"joined_linear_dw", "lists of operands and results that go together are not cut"},
              {"store", kUnread},
              {"aten.copy", kUnread},
              {"aten.nll_loss_backward", kUnread},
              {"aten.nll_loss2d_backward", kUnread},
              {"aten.avg_pool2d_backward", kUnread},
              {"aten._adaptive_avg_pool2d_backward", kUnread},
              {"aten.avg_pool3d_backward", kUnread},
              {"aten._adaptive_avg_pool3d_backward", kUnread},
              {"aten.max_pool2d_with_indices_backward", kUnread},
              {"aten.adaptive_max_pool2d_backward", kUnread},
              {"aten.fractional_max_pool2d_backward", kUnread},
              {"aten.max_pool3d_with_indices_backward", kUnread},
              {"aten.adaptive_max_pool3d_backward", kUnread},
              {"aten.reflection_pad1d_backward", kUnread},
              {"aten.replication_pad1d_backward", kUnread},
              {"aten.reflection_pad2d_backward", kUnread},
              {"aten.replication_pad2d_backward", kUnread},
              {"aten.reflection_pad3d_backward", kUnread},
              {"aten.replication_pad3d_backward", kUnread},
              {"aten.bernoulli", kDraws},
              {"aten.bernoulli.Tensor", kDraws},
              {"aten.dropout", kDraws},
              {"aten.native_dropout", kDraws},
              {"aten.normal.*", kDraws},
              {"aten._fused_dropout", kDraws},
              {"aten.multilabel_margin_loss_forward", kMeans}},
             "a cut",
             [&](const ir::OpRow& row) { return testing::claims_cut(row) ? Ran(counts(row).cuts > 0) : Ran(); });
  expect_run({}, "a sum of summands",
             [&](const ir::OpRow& row) { return testing::claims_linear(row) ? Ran(counts(row).torn > 0) : Ran(); });
  expect_run({{"aten.im2col", kSmall},
              {"aten.col2im", kSmall},
              {"aten.pixel_shuffle", kSmall},
              {"aten.pixel_unshuffle", kSmall}},
             "a cut over two axes", [&](const ir::OpRow& row) {
               return counts(row).cuts + counts(row).torn > 0 ? Ran(counts(row).of_two() > 0) : Ran();
             });
  testing::CutCounts sum;
  for (const auto& [row, of_row] : all.counts()) sum.add(of_row);
  MESSAGE(sum.cuts, " cuts over one axis, ", sum.torn, " sums of summands, ", sum.of_two(), " ways of two axes; ",
          sum.refused, " left out, as their parts would have gaps in memory");
  for (const int ways : sum.pairs) CHECK(ways > 50);
  for (const std::string& what : all.unclaimed()) CHECK_MESSAGE(kUnclaimed.contains(what), what, " could be claimed");
  for (const std::string& what : kUnclaimed) CHECK_MESSAGE(all.unclaimed().contains(what), what, " is not linear");
}

// 6 rows in blocks, each of which 2 or 3 ranks have a part of.
TEST_CASE(
    "ranges of a dimension that is cut in blocks: a rank's parts are those of the ranges, where these are whole "
    "blocks") {
  constexpr const char* kRanges[] = {
      "%o1, %o2, %o3 = aten.split.Tensor %r dim=0 split_size=2 : f32[2, 1], f32[2, 1], f32[2, 1]",
      "%o1, %o2 = aten.split_with_sizes %r dim=0 split_sizes=[2, 4] : f32[2, 1], f32[4, 1]",
      "%o1 = aten.slice.Tensor %r dim=0 end=6 start=2 : f32[4, 1]",
      "%o1 = narrow %r dim=0 length=4 start=2 : f32[4, 1]",
      "%o1 = aten.cat [%r, %r] dim=0 : f32[12, 1]",
      "%o1 = aten.slice_backward %r dim=0 end=9223372036854775807 input_sizes=[18, 1] start=12 step=1 : f32[18, 1]",
  };
  const Proof proof = prove_texts(kRanges);
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  for (const std::string& wrong : proof.cuts().wrong()) FAIL_CHECK(wrong);
  // Each op is cut in two of the rounds: in 3 blocks over 2 ranks; what is joined also in 1 block over 2 and 3 ranks, and in 2 over 3.
  const auto cuts = [&](const char* op) { return proof.cuts().counts().at(op).cuts; };
  for (const char* taken : {"aten.split.Tensor", "aten.split_with_sizes", "aten.slice.Tensor", "narrow"})
    CHECK_MESSAGE(cuts(taken) == 2, taken);
  CHECK(cuts("aten.cat") == 4 * 2);
  CHECK(cuts("aten.slice_backward") == 4 * 2);
}

// What is wrong with a map of one op: what it does not admit, and what it admits in vain.
std::string wrong_of(const char* map_text, const char* op) {
  const ir::AccessMap map = ir::parse_access_map(map_text);
  Proof proof(map);
  const ir::Graph graph = ir::parse_or_throw(concat(kOperands, "  ", op, '\n'), "test.ir");
  for (uint64_t round = 0; round < 20; ++round) {
    at::manual_seed(round);
    proof.walk(graph, [](const ir::Op& root) { return drawn(root.result()->type()); });
  }
  const auto unseen = proof.unseen();
  return concat(proof.wrong().empty() ? "" : "reads more",
                unseen.empty() ? "" : "; reads less: ", join({unseen.begin(), unseen.end()}, ", "));
}

TEST_CASE("access maps that are wrong do not pass: too few elements, too many") {
  const char* norm =
      "%o1, %o2, %o3 = aten.native_batch_norm %z, none, none, none, none eps=0.5 momentum=0.1 training=true : "
      "f32[2, 3, 4], f32[3], f32[3]";
  CHECK(wrong_of("!n c !s*, c, c, c, c -> n c s*; +n c +s* -> c, c", norm) == "");
  CHECK(wrong_of("n c !s*, c, c, c, c -> n c s*; +n c +s* -> c, c", norm) == "reads more");
  CHECK(wrong_of("!n c s*, c, c, c, c -> n c s*; +n c +s* -> c, c", norm) == "reads more");
  CHECK(wrong_of("!n !c !s*, c, c, c, c -> n c s*; +n c +s* -> c, c", norm) ==
        "; reads less: aten.native_batch_norm 0 -> 0, !c");
  const char* product = "%o1 = aten.cumprod %x dim=0 : f32[6, 4]";
  CHECK(wrong_of("... !d[dim] -> ... d", product) == "");
  CHECK(wrong_of("... -> ...", product) == "reads more");
  CHECK(wrong_of("!m !n -> m n", product) == "; reads less: aten.cumprod 0 -> 0, !n");
  const char* relu = "%o1 = aten.relu %x : f32[6, 4]";
  CHECK(wrong_of("... -> ...", relu) == "");
  CHECK(wrong_of("_ -> ...", relu) == "reads more");
  CHECK(wrong_of("m !n -> m n", relu) == "; reads less: aten.relu 0 -> 0, !n");
  CHECK(wrong_of("_, ... -> ...", "%o1 = aten.mul.Tensor %x, %y : f32[6, 4]") == "reads more");
  CHECK(wrong_of("..., ... -> ...", "%o1 = aten.copy %x, %y : f32[6, 4]") == "; reads less: aten.copy 0 -> 0");
  const char* rope = "%o1 = rope %z, %h, %h : f32[2, 3, 4]";
  CHECK(wrong_of("... (n !p=2), ... n, ... n -> ... (n p)", rope) == "");
  CHECK(wrong_of("... (!p=2 n), ... n, ... n -> ... (p n)", rope) == "reads more; reads less: rope 0 -> 0, !p");
  CHECK(wrong_of("... !d, ... @n, ... @n -> ... d", rope) == "");  // all pairs of a dimension: what is seen cannot tell
  const char* heads = "%o1, %o2 = sdpa %q, %k, %vv, none : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}";
  CHECK(wrong_of("b h s +d, b h +t +d, b h +t e -> b h s e; b h s +d, b h +t +d -> b h s", heads) == "reads more");
  CHECK(wrong_of("m r +k, m +k n, n -> m r n", "%o1 = matmul %z, %b : f32[2, 3, 6]") == "");
  const char* store = "%o1 = store %x, %y donates=[0] : f32[6, 4]";
  CHECK(wrong_of("_, ... -> ...", store) == "");
  CHECK(wrong_of("..., _ -> ...", store) == "reads more; reads less: store 0 -> 0");
  CHECK(wrong_of("_ -> ...; -> s", "%o1, %o2 = dropout %x keep=0.5 stream=0 : f32[6, 4], i64[2]") == "reads more");
  CHECK(wrong_of("... d, ... -> ... d", "%o1 = embedding %m, %i2 : f32[2, 3, 4]") == "reads more");
}

}  // namespace access_test
}  // namespace sfsdp::capture
