// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/initialise.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/common_runs.h"

namespace sfsdp::step {
namespace {

using ir::Op;
using ir::Value;

constexpr std::array kFactories = {"aten.empty.memory_format", "aten.zeros", "aten.ones", "aten.full"};
// Elements that are made at a time, so that what is computed on the way takes little.
constexpr int64_t kBlock = int64_t{1} << 20;

template <size_t N>
bool is_one_of(const Op& op, const std::array<const char*, N>& names) {
  return std::ranges::any_of(names, [&](const char* name) { return op.is(name); });
}

// The ops that `value` depends on, in order.
std::vector<const Op*> slice(const ir::Graph& graph, const Value* value) {
  std::set<const Op*> needed;
  std::function<void(const Op*)> visit = [&](const Op* op) {
    if (!needed.insert(op).second) return;
    for (const Value* operand : op->operands)
      if (operand) visit(operand->producer());
  };
  visit(value->producer());
  std::vector<const Op*> ops;
  for (const auto& op : graph.ops())
    if (needed.contains(op.get())) ops.push_back(op.get());
  return ops;
}

// Whether each element of the result is made of the same element of the operands alone, at whatever size it runs.
bool is_elementwise(const Op& op) {
  if (op.results().size() != 1 || ir::aliased_operand(op) >= 0 || op.has_attr("size")) return false;
  const ir::OpAccess access(op);
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const ir::Reads reads = op.operands[i] ? access.reads(i).reads : ir::Reads::Nothing;
    if (reads != ir::Reads::Nothing && reads != ir::Reads::Element) return false;
  }
  return access.is_by_place();
}

bool is_elementwise(const std::vector<const Op*>& ops, const Value* value) {
  return std::ranges::all_of(ops, [&](const Op* op) {
    if (op->is("scalar")) return true;
    const ir::Type& type = op->result()->type();
    return (is_one_of(*op, kFactories) || exec::draws_random(*op) || is_elementwise(*op)) &&
           type.shape() == value->type().shape() && type.strides.empty();
  });
}

// Runs one op, a factory at the shape of the wanted part instead of its own.
at::Tensor run_factory(const Op& op, const std::vector<int64_t>& shape) {
  ir::Graph scratch;
  Op* local = scratch.add(op.opcode, {}, {{"", op.result()->type()}});
  local->attrs = op.attrs;
  local->attrs["size"] = shape;
  return exec::AtenCall(*local).run({})[0];
}

at::Tensor run(const capture::StateTensor& tensor, uint64_t seed, const std::vector<const Op*>& ops,
               const std::vector<int64_t>* shape, int64_t first_element) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::unordered_map<const Value*, at::Tensor> values;
  exec::RandomStream stream;
  stream.key = hash_path(tensor.name) ^ (seed * 0x9E3779B97F4A7C15ull);
  stream.first_element = first_element;
  for (const Op* op : ops) {
    std::vector<at::Tensor> operands;
    for (const Value* operand : op->operands) operands.push_back(operand ? values.at(operand) : at::Tensor());
    std::vector<at::Tensor> results;
    exec::check_drawable(*op);
    if (exec::draws_random(*op)) {
      results = {exec::draw(*op, operands, shape ? *shape : op->result()->type().shape(), stream)};
      ++stream.stream;
    } else if (op->is("constant")) {
      results = {tensor.recipe.program->constants[static_cast<size_t>(op->attr<int64_t>("index"))]};
    } else if (shape && is_one_of(*op, kFactories)) {
      results = {run_factory(*op, *shape)};
    } else if (op->opcode.starts_with("aten.")) {
      results = exec::AtenCall(*op).run(operands);
    } else {
      results = exec::find_kernel(op->opcode)({*op, operands, {}, nullptr});
    }
    for (size_t i = 0; i < results.size(); ++i) values[op->result(static_cast<int>(i))] = results[i];
  }
  return values.at(tensor.recipe.value);
}

}  // namespace

bool needs_whole_tensor(const capture::StateTensor& tensor) {
  return tensor.recipe.program &&
         !is_elementwise(slice(tensor.recipe.program->graph, tensor.recipe.value), tensor.recipe.value);
}

namespace {

// Elements [first, first + count), each made by itself.
at::Tensor make_elements(const capture::StateTensor& tensor, uint64_t seed, const std::vector<const Op*>& ops,
                         int64_t first, int64_t count) {
  at::Tensor out;
  for (int64_t begin = 0; begin == 0 || begin < count; begin += kBlock) {
    const std::vector<int64_t> shape = {std::min(kBlock, count - begin)};
    const at::Tensor block = run(tensor, seed, ops, &shape, first + begin);
    if (shape[0] == count) return block;
    if (!out.defined()) out = at::empty({count}, block.options());
    out.narrow(0, begin, shape[0]).copy_(block);
  }
  return out;
}

}  // namespace

at::Tensor initialise_range(const capture::StateTensor& tensor, uint64_t seed, int64_t first, int64_t count) {
  if (tensor.value.defined()) return tensor.value.view({-1}).narrow(0, first, count);
  const auto ops = slice(tensor.recipe.program->graph, tensor.recipe.value);
  if (is_elementwise(ops, tensor.recipe.value)) return make_elements(tensor, seed, ops, first, count);
  const at::Tensor all = run(tensor, seed, ops, nullptr, 0).reshape({-1});
  return count == all.numel() ? all : all.narrow(0, first, count).clone();
}

// A box of several runs is filled run by run: the recipe is looked up once, as a box of columns has a run in every row.
at::Tensor initialise_box(const capture::StateTensor& tensor, uint64_t seed, const plan::Box& box) {
  plan::CommonRuns runs(box, plan::whole_beside(box, tensor.shape));
  std::optional<plan::BoxRun> run = runs.next();
  if (!run) return initialise_range(tensor, seed, 0, 0);
  if (run->count == box.flat.length) return initialise_range(tensor, seed, run->second, run->count);
  at::Tensor whole;  // where parts are not made by themselves
  if (tensor.value.defined() || needs_whole_tensor(tensor))
    whole = initialise_range(tensor, seed, 0, c10::multiply_integers(tensor.shape));
  const auto ops =
      whole.defined() ? std::vector<const Op*>() : slice(tensor.recipe.program->graph, tensor.recipe.value);
  at::Tensor out;
  for (; run; run = runs.next()) {
    const at::Tensor part = whole.defined() ? whole.narrow(0, run->second, run->count)
                                            : make_elements(tensor, seed, ops, run->second, run->count);
    if (!out.defined()) out = at::empty({box.flat.length}, part.options());
    out.narrow(0, run->first - box.flat.offset, run->count).copy_(part);
  }
  return out;
}

}  // namespace sfsdp::step
