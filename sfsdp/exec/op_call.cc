// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/op_call.h"

#include <ATen/ATen.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {

std::string axis_key(const ir::Attr& axis) {
  if (const auto* one = std::get_if<std::string>(&axis)) return *one;
  return join(std::get<std::vector<std::string>>(axis), ",");
}

namespace {

// dtype, sizes and strides; those of dimensions of size 1 do not count, nor any where there are no elements.
bool is_of(const at::Tensor& tensor, const ir::Type& type) {
  if (type.kind == ir::Type::Kind::Token || !tensor.defined())
    return type.kind == ir::Type::Kind::Token && !tensor.defined();
  if (tensor.scalar_type() != capture::scalar_type_of(type.dtype) || tensor.dim() != std::ssize(type.dims))
    return false;
  int64_t contiguous = 1;
  bool same_strides = true;
  for (size_t d = type.dims.size(); d-- > 0;) {
    const int64_t size = type.dims[d].size, dim = static_cast<int64_t>(d);
    if (tensor.size(dim) != size) return false;
    same_strides &= size <= 1 || tensor.stride(dim) == (type.strides.empty() ? contiguous : type.strides[d]);
    contiguous *= size;
  }
  return same_strides || tensor.numel() == 0;
}

}  // namespace

void check_results(std::span<const at::Tensor> results, const ir::Op& op) {
  SFSDP_CHECK(results.size() == op.results().size(), op.opcode, " gave ", results.size(), " results");
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Type& type = op.result(static_cast<int>(i))->type();
    SFSDP_CHECK(is_of(results[i], type), ir::opcode_at(op), " gave result ", i, " of ", capture::type_of(results[i]),
                "\n  expected ", type, ", as the graph has it");
  }
}

OpCall::OpCall(const ir::Op& op, const ir::Graph& graph, const Groups& groups, Rng rng)
    : op_(&op), by_counter_(rng == Rng::Counter && draws_random(op)) {
  if (op.opcode.starts_with("aten.")) {
    aten_.emplace(op);
    return;
  }
  kernel_ = find_kernel(op.opcode);
  SFSDP_CHECK(kernel_, "no kernel for ", op.opcode);
  if (const auto axes = ir::axes_of(op)) {
    const auto group = groups.find(axis_key(*axes));
    if (group == groups.end())
      SFSDP_CHECK(ir::axis_size(graph, *axes) == 1, "no communicator for ", axis_key(*axes));
    else if (group->second->size() > 1)
      group_.emplace(op, group->second);
  }
}

// Pointwise ops and products write where they are told to. Others, such as mse_loss, first make the result as large as they need it.
bool OpCall::can_write() {
  const ir::OpRow* row = ir::find_row(op_->opcode);
  return aten_ && !by_counter_ && row &&
         (row->cost == ir::CostClass::Pointwise || row->cost == ir::CostClass::Product) && aten_->find_out_variant();
}

std::vector<at::Tensor> OpCall::run(std::span<const at::Tensor> operands, const StepScalars& scalars,
                                    DataPosition position) const {
  if (by_counter_) return {draw_by_counter(operands, scalars, position)};
  if (aten_) return aten_->run(operands);
  return kernel_({*op_, operands, scalars, group()});
}

at::Tensor OpCall::draw_by_counter(std::span<const at::Tensor> operands, const StepScalars& scalars,
                                   DataPosition position) const {
  const std::vector<int64_t> shape = op_->result()->type().shape();
  RandomStream stream;
  stream.key = hash_path(op_->module_path) ^ (scalars.seed * 0x9E3779B97F4A7C15ull) ^
               (static_cast<uint64_t>(scalars.step) * 0xC2B2AE3D27D4EB4Full);
  stream.stream = static_cast<uint64_t>(op_->attr<int64_t>("stream"));
  stream.outer = op_->attr_or<int64_t>("outer", 1);
  // Rows are samples: sample (micro_batch · ranks + rank) · rows of the global batch stands first.
  if (!op_->has_attr("replicated"))
    stream.first_element =
        (scalars.micro_batch * position.size + position.rank) * (c10::multiply_integers(shape) / stream.outer);
  const at::Tensor drawn = draw(*op_, {operands.begin(), operands.end()}, shape, stream);
  const std::vector<int64_t>& strides = op_->result()->type().strides;
  return strides.empty() ? drawn : at::empty_strided(shape, strides, drawn.options()).copy_(drawn);
}

}  // namespace sfsdp::exec
