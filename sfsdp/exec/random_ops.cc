// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/random_ops.h"

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

using Fill = void (*)(const ir::Op&, const at::Tensor& out, const std::vector<at::Tensor>& operands,
                      const RandomStream& stream);

void uniform(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_uniform(out, ir::number_of(op, "from", 0), ir::number_of(op, "to", 1), stream);
}
void normal(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_normal(out, ir::number_of(op, "mean", 0), ir::number_of(op, "std", 1), stream);
}
void bernoulli(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_bernoulli(out, ir::number_of(op, "p", 0.5), stream);
}
void bernoulli_of(const ir::Op&, const at::Tensor& out, const std::vector<at::Tensor>& operands,
                  const RandomStream& stream) {
  fill_uniform(out, 0, 1, stream);
  out.copy_(out.lt(operands[0]));
}

const std::map<std::string, Fill>& fills() {
  static const std::map<std::string, Fill> fills = {
      {"aten.rand", uniform},           {"aten.rand_like", uniform},    {"aten.randn", normal},
      {"aten.randn_like", normal},      {"aten.uniform", uniform},      {"aten.normal_functional", normal},
      {"aten.bernoulli", bernoulli_of}, {"aten.bernoulli.p", bernoulli}};
  return fills;
}

}  // namespace

bool draws_random(const ir::Op& op) { return fills().contains(op.opcode); }

void check_drawable(const ir::Op& op) {
  if (!ir::is_aten(op.opcode) || !ir::is_random(op) || draws_random(op)) return;
  throw UserError(concat(op.opcode, op.module_path.empty() ? "" : " at ", op.module_path,
                         " draws random numbers in the order of calls, which differ from mesh to mesh",
                         "\n  expected rand, randn, uniform_, normal_, bernoulli or dropout; write it with one of them"
                         " (RReLU: torch::where(x < 0, x * torch::empty_like(x).uniform_(lower, upper), x)), or pass"
                         " the numbers in the batch"));
}

void number_random_ops(ir::Graph& graph) {
  std::map<std::string, int64_t> next;
  for (const auto& op : graph.ops()) {
    check_drawable(*op);
    if (draws_random(*op)) op->attrs["stream"] = next[op->module_path]++;
  }
}

at::Tensor draw(const ir::Op& op, const std::vector<at::Tensor>& operands, at::IntArrayRef shape,
                const RandomStream& stream) {
  at::Tensor out = at::empty(shape, at::TensorOptions(capture::scalar_type_of(op.result()->type().dtype)));
  fills().at(op.opcode)(op, out, operands, stream);
  return out;
}

}  // namespace sfsdp::exec
