// SPDX-License-Identifier: BSD-3-Clause
// Every access map of opset.def and atenset.def against LibTorch's kernels: an element of an operand is changed, and no
// element of a result may change but those that the map admits. What a map admits must be seen, in one draw or another.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/testing/aten_calls_torch.h"
#include "sfsdp/testing/modules_torch.h"

namespace sfsdp::capture {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Run = std::function<Tensors(const Tensors& operands)>;

Tensors clones(const Tensors& tensors) {
  Tensors all;
  for (const Tensor& t : tensors) all.push_back(t.defined() ? t.clone() : t);
  return all;
}

// One op of LibTorch's, or of sfsdp's own with a kernel, drawing the same numbers in every run.
Tensors run_op(const ir::Op& op, const Tensors& operands) {
  at::manual_seed(7);
  if (ir::is_aten(op.opcode)) return exec::AtenCall(op).run(operands);
  if (op.is("accumulate")) return {operands[0].clone()};
  const exec::Kernel kernel = exec::find_kernel(op.opcode);
  SFSDP_CHECK(kernel, "no kernel for ", op.opcode);
  return kernel({op, operands, exec::StepScalars{.lr = 0.1, .step = 3}});
}

// A graph whose inputs are the operands of a canonical op, and its outputs the results; in LibTorch's ops.
ir::Graph decomposed(const ir::Op& op) {
  ir::Graph graph;
  std::vector<ir::Value*> operands;
  for (const ir::Value* operand : op.operands) {
    if (!operand) {
      operands.push_back(nullptr);
      continue;
    }
    const std::string name = concat("in", operands.size());  // an operand may stand there twice
    ir::Op* input = graph.add("input", {}, {{name, operand->type()}});
    input->attrs["name"] = name;
    input->section = ir::Section::Init;
    operands.push_back(input->result());
  }
  if (op.is("cross_entropy_backward")) {  // reads what its forward op leaves
    ir::Op* forward =
        graph.add("cross_entropy", {operands[1], operands[2]},
                  {{"loss", operands[0]->type()}, {"count", operands[3]->type()}, {"lse", operands[4]->type()}});
    forward->attrs = op.attrs;
    operands[4] = forward->result(2);
  }
  std::vector<ir::Graph::NewResult> results;
  for (const auto& result : op.results()) results.push_back({result->name(), result->type()});
  ir::Op* copy = graph.add(op.opcode, operands, std::move(results));
  copy->attrs = op.attrs;
  copy->operand_lists = op.operand_lists;
  for (const auto& result : copy->results())
    if (result->type().kind == ir::Type::Kind::Tensor) graph.outputs.push_back(result.get());
  return passes::decomposed(graph);
}

// One op, or what a canonical op stands for. Results that are none are undefined.
Tensors run_any(const ir::Op& op, const Tensors& operands) {
  if (ir::is_aten(op.opcode) || op.is("accumulate") || exec::find_kernel(op.opcode)) return run_op(op, operands);
  const ir::Graph graph = decomposed(op);
  std::unordered_map<const ir::Value*, Tensor> values;
  size_t next = 0;
  for (const auto& each : graph.ops()) {
    Tensors in;
    for (const ir::Value* operand : each->operands) in.push_back(operand ? values.at(operand) : Tensor());
    while (each->is("input") && !operands[next].defined()) ++next;
    const Tensors made = each->is("input") ? Tensors{operands[next++]} : run_op(*each, in);
    for (size_t r = 0; r < made.size(); ++r) values[each->results()[r].get()] = made[r];
  }
  Tensors results;
  size_t output = 0;
  for (const auto& result : op.results())
    results.push_back(result->type().kind == ir::Type::Kind::Tensor ? values.at(graph.outputs[output++]) : Tensor());
  return results;
}

std::vector<int64_t> indexes_of(int64_t number, at::IntArrayRef sizes) {
  std::vector<int64_t> at(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; number /= sizes[d]) at[d] = number % sizes[d];
  return at;
}

// What is claimed and what was seen, over many calls.
class Proof {
 public:
  Proof() = default;
  // Compares with this map, whatever the row says.
  explicit Proof(const ir::AccessMap& map) : other_(&map) {}

  // Changes elements of each operand, a few times each.
  void prove(const ir::Op& op, const Tensors& operands, const Run& run) {
    map_ = other_ ? other_ : ir::map_of(op.opcode.row());
    if (op.is("aten.empty_like", "aten.empty.memory_format", "aten.new_empty", "aten.new_empty_strided")) return;
    if (!map_ || ++calls_[op.opcode] > kMostCalls) return;
    Tensors before;
    try {
      before = run(clones(operands));
    } catch (const UserError&) {  // operands drawn at random that the kernel refuses
      --calls_[op.opcode];
      return;
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      if (!operands[k].defined()) continue;
      claim(op, k, before);
      for (int i = 0; i < kMostElements && operands[k].numel() > 0; ++i) {
        const int64_t element = below(operands[k].numel());
        for (int kind = 0; kind < 4; ++kind) change(op, operands, k, element, kind, before, run);
      }
    }
  }

  const std::map<std::string, int>& calls() const { return calls_; }
  const std::set<std::string>& wrong() const { return wrong_; }
  // What maps admit and no call has shown.
  std::set<std::string> unseen() const {
    std::set<std::string> left;
    for (const auto& [what, seen] : claims_)
      if (!seen) left.insert(what);
    return left;
  }

 private:
  static constexpr int kMostCalls = 60, kMostElements = 4;

  int64_t below(int64_t end) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end)); }

  // Those of a list are one: the first of them need not move.
  static std::string name(const ir::Op& op, size_t k, size_t r) {
    const ir::OpRow* row = op.opcode.row();
    return concat(op.opcode, ' ', row->max_operands == ir::kAny ? "*" : std::to_string(k), " -> ",
                  row->results == ir::kAny ? "*" : std::to_string(r));
  }
  static std::string name(const ir::Op& op, size_t k, size_t r, const ir::FactorUse& use) {
    return concat(name(op, k, r), ", ", use.mark, use.factor);
  }

  void claim(const ir::Op& op, size_t k, const Tensors& results) {
    for (size_t r = 0; r < results.size(); ++r) {
      if (!results[r].defined() || results[r].numel() == 0) continue;
      const bool is_scalar = op.operands[k]->type().dims.empty();
      const auto uses = ir::factors_of(op, *map_, k, r);
      if (!uses.empty() || (is_scalar && ir::may_reach(op, *map_, k, {}, r, std::vector<int64_t>(results[r].dim()))))
        claims_.try_emplace(name(op, k, r), false);
      for (const ir::FactorUse& use : uses)
        if (use.mark != ' ' && use.in_result && use.size > 1) claims_.try_emplace(name(op, k, r, use), false);
    }
  }

  // Another value of the same kind, where it lies: of indexes one that is in range, as others of the tensor are.
  bool set(const Tensor& tensor, const std::vector<int64_t>& at, int kind) {
    Tensor element = tensor;
    for (const int64_t index : at) element = element.select(0, index);
    if (tensor.is_floating_point() || tensor.is_complex()) {
      if (kind == 0)
        element.fill_(std::numeric_limits<double>::quiet_NaN());
      else if (kind == 1)
        element.fill_(static_cast<double>(below(1000)) / 500.0 - 1.0);
      else if (kind == 2)
        element.add_(2);
      else
        element.fill_(1);
      return true;
    }
    if (tensor.scalar_type() == at::kBool) {
      element.logical_not_();
      return kind == 0;
    }
    const int64_t low = tensor.min().item<int64_t>(), high = tensor.max().item<int64_t>();
    if (low == high) return false;
    element.fill_(low + below(high - low + 1));
    return true;
  }

  void change(const ir::Op& op, const Tensors& operands, size_t k, int64_t element, int kind, const Tensors& before,
              const Run& run) {
    const std::vector<int64_t> from = indexes_of(element, operands[k].sizes());
    Tensors changed = clones(operands);
    if (!set(changed[k], from, kind)) return;
    Tensors after;
    try {
      after = run(changed);
    } catch (const UserError&) {
      return;
    }
    for (size_t r = 0; r < before.size(); ++r)
      if (before[r].defined() && after[r].defined()) compare(op, k, from, r, before[r], after[r]);
  }

  void compare(const ir::Op& op, size_t k, const std::vector<int64_t>& from, size_t r, const Tensor& before,
               const Tensor& after) {
    const Tensor differs = before.ne(after).logical_and(before.eq(before).logical_or(after.eq(after)));
    const Tensor where = differs.contiguous().view({-1}).nonzero().view({-1});
    const auto uses = where.numel() > 0 ? ir::factors_of(op, *map_, k, r) : std::vector<ir::FactorUse>();
    for (int64_t i = 0; i < where.numel(); ++i) {
      const auto to = indexes_of(where[i].item<int64_t>(), before.sizes());
      if (!ir::may_reach(op, *map_, k, from, r, to)) {
        wrong_.insert(concat(name(op, k, r), ", as in ", ir::print(op)));
        return;
      }
      if (const auto claimed = claims_.find(name(op, k, r)); claimed != claims_.end()) claimed->second = true;
      for (size_t u = 0; u < uses.size(); ++u)
        if (uses[u].mark != ' ' && uses[u].in_result && uses[u].size > 1)
          if (!ir::may_reach(op, *map_, k, from, r, to, static_cast<int>(u))) claims_[name(op, k, r, uses[u])] = true;
    }
  }

  const ir::AccessMap* other_ = nullptr;
  const ir::AccessMap* map_ = nullptr;  // of the op at hand
  std::mt19937_64 engine_{11};
  std::map<std::string, int> calls_;
  std::map<std::string, bool> claims_;
  std::set<std::string> wrong_;
};

// What each value of a graph is, op by op, from what it is given; each op is proved on the way.
void walk(const ir::Graph& graph, const std::function<Tensor(const ir::Op&)>& given, Proof& proof) {
  std::unordered_map<const ir::Value*, Tensor> values;
  for (const auto& each : graph.ops()) {
    const ir::Op& op = *each;
    Tensors results;
    if (op.is("input", "param", "state", "constant")) {
      results = {given(op)};
    } else {
      Tensors operands;
      for (const ir::Value* operand : op.operands) operands.push_back(operand ? values[operand] : Tensor());
      const bool known =
          std::ranges::all_of(op.operands, [&](const ir::Value* v) { return !v || values[v].defined(); });
      if (!known) continue;  // a kernel has refused what was drawn at random
      const Run run = [&](const Tensors& in) { return run_any(op, in); };
      proof.prove(op, operands, run);
      try {
        results = run(operands);
      } catch (const UserError&) {
        continue;
      }
    }
    for (size_t r = 0; r < results.size(); ++r) values[op.results()[r].get()] = results[r];
  }
}

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

TEST_CASE("access maps of ops that have a rule hold for LibTorch's kernels, and admit no more than what is seen") {
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
      walk(
          tracer.graph,
          [&](const ir::Op& op) {
            return op.is("constant") ? tracer.constants[static_cast<size_t>(op.attr<int64_t>("index"))]
                                     : drawn(op.result()->type());
          },
          proof);
    }
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof, {{"aten.convolution_backward 0 -> 1, @n", kGroups}});
}

TEST_CASE("access maps of what modules of torch::nn are captured as hold, and admit no more than what is seen") {
  Proof proof;
  for (const testing::ModuleRow& row : testing::module_rows()) {
    CAPTURE(row.name);
    try {
      testing::CapturedModule captured = testing::capture_module(row);
      size_t next = 0;
      walk(
          captured.step.graph,
          [&](const ir::Op& op) {
            if (op.is("constant")) return captured.step.constants[static_cast<size_t>(op.attr<int64_t>("index"))];
            if (op.is("input")) return captured.batch[next++].contiguous();
            const auto state = std::ranges::find(captured.state, op.attr<std::string>("name"), &StateTensor::name);
            SFSDP_CHECK(state != captured.state.end(), "no state for ", ir::print(op));
            return state->value;
          },
          proof);
    } catch (const UserError&) {  // refused by capture
    }
  }
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
}

// What the own ops' rows stand for, each in all its forms. Operands are those above.
constexpr const char* kOwnHead = R"(graph mesh [] view local
  %x = param name=x : f32[6, 4]
  %y = param name=y : f32[6, 4]
  %z = param name=z : f32[2, 3, 4]
  %zz = param name=zz : f32[2, 3, 4]
  %w = param name=w : f32[4]
  %w5 = param name=w5 : f32[5]
  %g5 = param name=g5 : f32[2, 3, 5]
  %m = param name=m : f32[5, 4]
  %n = param name=n : f32[4, 5]
  %b = param name=b : f32[2, 4, 5]
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
  %gl = param name=gl : f32[2, 3, 2]
  %gr = param name=gr : f32[2, 3, 3]
  %zero = param name=zero : f32[]
fwd:
)";
constexpr const char* kOwnOps[] = {
    "%o1 = linear %z, %m, %w5 : f32[2, 3, 5]",
    "%o1 = linear_dx %g5, %m : f32[2, 3, 4]",
    "%o1 = linear_dw %g5, %z : f32[5, 4]",
    "%o1, %o2 = joined_linear %z, %m widths=[2, 3] : f32[2, 3, 2], f32[2, 3, 3]",
    "%o1 = joined_linear_dx %gl, %gr, %m order=[0, 1] : f32[2, 3, 4]",
    "%o1, %o2 = joined_linear_dw %gl, %gr, %z : f32[2, 4], f32[3, 4]",
    "%o1 = matmul %z, %n, %w5 : f32[2, 3, 5]",
    "%o1 = matmul %z, %b : f32[2, 3, 5]",
    "%o1 = matmul %x, %n : f32[6, 5]",
    "%o1 = embedding %m, %i2 : f32[2, 3, 4]",
    "%o1 = embedding_backward %zz, %i2 num_weights=5 padding_idx=-1 scale_grad_by_freq=false : f32[5, 4]",
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
    "%o1, %o2 = sdpa %q, %q, %q, %mask3 : f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 4, 3]{12, 1, 4}",
    "%o1, %o2, %o3 = sdpa_backward %o, %q, %k, %vv, %q, %lse, none dropout_p=0.0 is_causal=false : "
    "f32[2, 4, 3, 8]{96, 8, 32, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}, f32[2, 2, 5, 8]{80, 8, 16, 1}",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=1 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=2 : f32[], f32[], f32[6]",
    "%o1, %o2, %o3 = cross_entropy %x, %i ignore_index=-100 reduction=0 : f32[6], f32[], f32[6]",
    "%o1 = cross_entropy_backward %s, %x, %i, %c, %e ignore_index=-100 reduction=1 : f32[6, 4]",
    "%o1 = cross_entropy_backward %e, %x, %i, %c, %e ignore_index=-100 reduction=0 : f32[6, 4]",
    "%o1 = full value=1.0 : f32[6, 4]",
    "%o1 = cast %x : bf16[6, 4]",
    "%o1 = pad %x dim=0 size=8 : f32[8, 4]",
    "%o1 = narrow %x dim=0 length=3 start=2 : f32[3, 4]",
    "%o1 = pack [%x, %w] offsets=[0, 24] : f32[28]",
    "%o1 = unpack %x offset=4 ranks=2 : f32[2, 4]",
    "%o1 = gradient %x param=x : f32[6, 4]",
    "%o1 = accumulate %x : f32[6, 4]",
    "%o1 = add_into %x, %y : f32[6, 4]",
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

TEST_CASE("access maps of own ops hold for what they stand for, and admit no more than what is seen") {
  Proof proof;
  for (const char* op : kOwnOps)
    for (uint64_t round = 0; round < 20; ++round) {
      CAPTURE(op);
      const ir::Graph graph = ir::parse_or_throw(concat(kOwnHead, "  ", op, '\n'), "test.ir");
      at::manual_seed(round);
      walk(
          graph,
          [](const ir::Op& root) {
            if (root.attr<std::string>("name") == "zero") return at::zeros({});
            return drawn(root.result()->type());
          },
          proof);
    }
  for (const std::string& wrong : proof.wrong()) FAIL_CHECK(wrong);
  expect_unseen(proof, {{"cross_entropy_backward 4 -> 0", "eager leaves all probabilities in its place"},
                        {"cross_entropy 1 -> 1", "no target is ignored"},
                        {"pad 0 -> 0, ~d", "its zeros come at the end"}});
  // A wait is of a collective; dropout's mask is drawn by number, of which decompose makes another op's operand; store copies
  // over the operand that it is called with.
  const std::set<std::string_view> apart = {"wait", "dropout", "dropout_backward", "store"};
  for (const ir::OpRow& row : ir::opset())
    if (!ir::is_aten(row.name) && ir::map_of(&row) && !apart.contains(row.name))
      CHECK_MESSAGE(proof.calls().contains(std::string(row.name)), row.name, " was not called");
}

// What is wrong with a map of one op: what it does not admit, and what it admits in vain.
std::string wrong_of(const char* map_text, const char* op) {
  const ir::AccessMap map = ir::parse_access_map(map_text);
  Proof proof(map);
  const ir::Graph graph = ir::parse_or_throw(concat(kOwnHead, "  ", op, '\n'), "test.ir");
  for (uint64_t round = 0; round < 20; ++round) {
    at::manual_seed(round);
    walk(
        graph, [](const ir::Op& root) { return drawn(root.result()->type()); }, proof);
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
  CHECK(wrong_of("m r +k, m +k n, n -> m r n", "%o1 = matmul %z, %b : f32[2, 3, 5]") == "");
  CHECK(wrong_of("... d, ... -> ... d", "%o1 = embedding %m, %i2 : f32[2, 3, 4]") == "reads more");
}

}  // namespace
}  // namespace sfsdp::capture
