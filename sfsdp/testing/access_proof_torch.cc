// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/access_proof_torch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/canonical/decompose.h"

namespace sfsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Kernel = CutProof::Kernel;

constexpr int kMostCalls = 60, kMostElements = 4, kMostCuts = 2;

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

Tensors clones(const Tensors& tensors) {
  Tensors all;
  for (const Tensor& t : tensors) all.push_back(t.defined() ? t.clone() : t);
  return all;
}

// _grouped_mm by its definition, for numbers that LibTorch's has no kernel of: each group's rows by its matrix, or what each group's
// rows add up to.
Tensors grouped_products(const Tensors& operands) {
  const Tensor &a = operands[0], &b = operands[1], ends = operands[2].to(at::kLong);
  const bool by_matrix = b.dim() == 3;
  Tensors products;
  int64_t begin = 0;
  for (int64_t group = 0; group < ends.numel(); ++group) {
    const int64_t end = ends[group].item<int64_t>(), rows = a.size(by_matrix ? 0 : 1);
    if (end < begin || end > rows || (group + 1 == ends.numel() && end != rows))
      throw UserError("groups that do not end one after the other");
    products.push_back(by_matrix ? at::mm(a.slice(0, begin, end), b[group])
                                 : at::mm(a.slice(1, begin, end), b.slice(0, begin, end)));
    begin = end;
  }
  return {by_matrix ? at::cat(products) : at::stack(products)};
}

// One op of LibTorch's, or of sfsdp's own with a kernel, drawing the same numbers in every run. Made once for all runs.
Kernel kernel_of_op(const ir::Op& op) {
  const auto drawing = [](auto run) {
    return [run = std::move(run)](const Tensors& operands) -> Tensors {
      at::manual_seed(7);
      return run(operands);
    };
  };
  if (op.is("aten._grouped_mm") && op.result()->type().dtype == ir::DType::f64) return grouped_products;
  if (ir::is_aten(op.opcode)) {
    const auto call = std::make_shared<exec::AtenCall>(op);
    return drawing([call](const Tensors& operands) { return call->run(operands); });
  }
  if (op.is("accumulate")) return [](const Tensors& operands) -> Tensors { return {operands[0].clone()}; };
  const exec::Kernel kernel = exec::find_kernel(op.opcode);
  SFSDP_CHECK(kernel, "no kernel for ", op.opcode);
  const bool counts = op.is("adam", "adamw");  // the fused kernels take a step of float32 beside any numbers
  return drawing([kernel, counts, &op](Tensors operands) -> Tensors {
    for (Tensor& operand : operands)
      if (counts && operand.defined() && operand.dim() == 0) operand = operand.to(at::kFloat);
    return kernel({op, operands, exec::StepScalars{.lr = 0.1, .step = 3}});
  });
}

// Not a token, nor the counter that dropout leaves: eager keeps the mask itself.
bool is_made_by_eager(const ir::Op& op, const ir::Value& result) {
  return result.type().kind == ir::Type::Kind::Tensor && !(op.is("dropout") && &result == op.results()[1].get());
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
  if (op.is("dropout_backward")) {
    ir::Op* forward = graph.add("dropout", {operands[0]}, {{"y", operands[0]->type()}, {"state", operands[1]->type()}});
    forward->attrs = op.attrs;
    forward->attrs["stream"] = int64_t{0};
    operands[1] = forward->result(1);
  }
  std::vector<ir::Graph::NewResult> results;
  for (const auto& result : op.results()) results.push_back({result->name(), result->type()});
  ir::Op* copy = graph.add(op.opcode, operands, std::move(results));
  copy->attrs = op.attrs;
  copy->operand_lists = op.operand_lists;
  for (const auto& result : copy->results())
    if (is_made_by_eager(*copy, *result)) graph.outputs.push_back(result.get());
  return passes::decomposed(graph);
}

// What a canonical op stands for. Results that are none are undefined.
class Decomposed {
 public:
  explicit Decomposed(const ir::Op& op) : graph_(decomposed(op)) {
    for (const auto& each : graph_.ops()) kernels_.push_back(each->is("input") ? Kernel() : kernel_of_op(*each));
    for (const auto& result : op.results()) is_made_.push_back(is_made_by_eager(op, *result));
  }

  Tensors run(const Tensors& operands) const {
    std::unordered_map<const ir::Value*, Tensor> values;
    size_t next = 0, number = 0;
    for (const auto& each : graph_.ops()) {
      Tensors in;
      for (const ir::Value* operand : each->operands) in.push_back(operand ? values.at(operand) : Tensor());
      while (each->is("input") && !operands[next].defined()) ++next;
      const Kernel& kernel = kernels_[number++];
      const Tensors made = kernel ? kernel(in) : Tensors{operands[next++]};
      for (size_t r = 0; r < made.size(); ++r) values[each->results()[r].get()] = made[r];
    }
    Tensors results;
    size_t output = 0;
    for (const bool is_made : is_made_) results.push_back(is_made ? values.at(graph_.outputs[output++]) : Tensor());
    return results;
  }

 private:
  ir::Graph graph_;
  std::vector<Kernel> kernels_;
  std::vector<bool> is_made_;
};

Kernel kernel_of(const ir::Op& op) {
  const bool has_kernel = !ir::is_canonical(op) && exec::find_kernel(op.opcode);
  if (ir::is_aten(op.opcode) || op.is("accumulate") || has_kernel) return kernel_of_op(op);
  const auto made = std::make_shared<Decomposed>(op);
  return [made](const Tensors& operands) { return made->run(operands); };
}

std::vector<int64_t> indexes_of(int64_t number, at::IntArrayRef sizes) {
  std::vector<int64_t> at(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; number /= sizes[d]) at[d] = number % sizes[d];
  return at;
}

// Those of a list are one: the first of them need not move.
std::string name(const ir::Op& op, size_t k, size_t r) {
  const ir::OpRow* row = op.opcode.row();
  return concat(op.opcode, ' ', row->max_operands == ir::kAny ? "*" : std::to_string(k), " -> ",
                row->results == ir::kAny ? "*" : std::to_string(r));
}
std::string name(const ir::Op& op, size_t k, size_t r, const ir::FactorUse& use) {
  return concat(name(op, k, r), ", ", use.mark, use.factor);
}

}  // namespace

// Changes elements of each operand, a few times each.
void AccessProof::prove(const ir::Op& op, const Tensors& operands, const Run& run) {
  map_ = other_ ? other_ : ir::map_of(op.opcode.row());
  // What is not written is whatever the memory held.
  if (op.is("aten.empty_like", "aten.empty.memory_format", "aten.new_empty", "aten.new_empty_strided")) return;
  if (!map_ || ++calls_[op.opcode] > kMostCalls) return;
  Tensors before;
  try {
    before = run(clones(operands));
  } catch (const UserError&) {  // operands drawn at random that the kernel refuses
    --calls_[op.opcode];
    return;
  }
  rows_.insert(op.opcode.row()->name);
  if (!other_ && ++texts_[ir::print(op)] <= kMostCuts) cuts_.prove(op, operands, kernel_of);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!operands[k].defined()) continue;
    claim(op, k, before);
    for (int i = 0; i < kMostElements && operands[k].numel() > 0; ++i) {
      const int64_t element = below(operands[k].numel());
      for (int kind = 0; kind < 4; ++kind) change(op, operands, k, element, kind, before, run);
    }
  }
}

std::set<std::string> AccessProof::unseen() const {
  std::set<std::string> left;
  for (const auto& [what, seen] : claims_)
    if (!seen) left.insert(what);
  return left;
}

void AccessProof::claim(const ir::Op& op, size_t k, const Tensors& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    if (!results[r].defined() || results[r].numel() == 0) continue;
    const bool is_scalar = op.operands[k]->type().dims.empty();
    const auto uses = ir::factors_of(op, *map_)[r * op.operands.size() + k];
    if (!uses.empty() || (is_scalar && ir::may_reach(op, *map_, k, {}, r, std::vector<int64_t>(results[r].dim()))))
      claims_.try_emplace(name(op, k, r), false);
    for (const ir::FactorUse& use : uses)
      if (use.mark != ' ' && use.in_result && use.size > 1) claims_.try_emplace(name(op, k, r, use), false);
  }
}

// Another value of the same kind, where it lies: of indexes one that is in range, as others of the tensor are.
bool AccessProof::set(const Tensor& tensor, const std::vector<int64_t>& at, int kind) {
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

void AccessProof::change(const ir::Op& op, const Tensors& operands, size_t k, int64_t element, int kind,
                         const Tensors& before, const Run& run) {
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

void AccessProof::compare(const ir::Op& op, size_t k, const std::vector<int64_t>& from, size_t r, const Tensor& before,
                          const Tensor& after) {
  const Tensor differs = before.ne(after).logical_and(before.eq(before).logical_or(after.eq(after)));
  const Tensor where = differs.contiguous().view({-1}).nonzero().view({-1});
  const auto uses =
      where.numel() > 0 ? ir::factors_of(op, *map_)[r * op.operands.size() + k] : std::vector<ir::FactorUse>();
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

void AccessProof::walk(const ir::Graph& graph, const std::function<Tensor(const ir::Op&)>& given) {
  const OneThread one_thread;
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
      const Run run = kernel_of(op);
      prove(op, operands, run);
      try {
        results = run(operands);
      } catch (const UserError&) {
        continue;
      }
    }
    for (size_t r = 0; r < results.size(); ++r) values[op.results()[r].get()] = results[r];
  }
}

}  // namespace sfsdp::testing
