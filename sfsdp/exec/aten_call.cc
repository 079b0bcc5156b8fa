// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/aten_call.h"

#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"

namespace sfsdp::exec {
namespace {

bool elements_optional(const c10::Argument& argument) {
  auto list = argument.real_type()->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

// "aten::add" -> its overloads.
const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static const auto* all = [] {
    auto* found = new std::map<std::string, std::vector<c10::OperatorName>, std::less<>>;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) (*found)[op.name].push_back(op);
    return found;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = all->find(name);
  return found == all->end() ? none : found->second;
}

// The overload that takes the same arguments and then a tensor for each result.
std::optional<c10::OperatorHandle> out_variant_of(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  const size_t arguments = schema.arguments().size(), results = schema.returns().size();
  for (const c10::OperatorName& name : overloads_of(handle.operator_name().name)) {
    const auto candidate = c10::Dispatcher::singleton().findSchema(name);
    if (!candidate) continue;
    const std::vector<c10::Argument>& taken = candidate->schema().arguments();
    if (taken.size() != arguments + results) continue;
    bool same = true;
    for (size_t i = 0; same && i < taken.size(); ++i) {
      const bool written = taken[i].alias_info() && taken[i].alias_info()->isWrite();
      same = i < arguments ? !written && taken[i].name() == schema.arguments()[i].name() &&
                                 *taken[i].type() == *schema.arguments()[i].type()
                           : written;
    }
    if (same) return candidate;
  }
  return std::nullopt;
}

}  // namespace

c10::OperatorHandle find_op(const std::string& opcode) {
  const size_t first = opcode.find('.'), second = opcode.find('.', first + 1);
  const bool overloaded = second != std::string::npos;
  const c10::OperatorName name(
      opcode.substr(0, first) + "::" + opcode.substr(first + 1, overloaded ? second - first - 1 : std::string::npos),
      overloaded ? opcode.substr(second + 1) : "");
  auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle)
    throw UserError(concat(opcode, ": this LibTorch has no such op",
                           "\n  expected the LibTorch version that the graph was captured with"));
  return *handle;
}

AtenCall::AtenCall(const ir::Op& op) : where_(ir::opcode_at(op)), handle_(find_op(op.opcode.str())) {
  const auto& schema = handle_.schema();
  int next = 0;
  size_t next_list = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    Argument out;
    if (capture::takes_tensor(argument)) {
      const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
      out.kind = optional ? Argument::Kind::OptionalTensor : Argument::Kind::Tensor;
      out.first = next++;
      out.count = 1;
    } else if (capture::takes_tensor_list(argument)) {
      SFSDP_CHECK(next_list < op.operand_lists.size(), op.opcode, " lacks the list ", argument.name());
      out.kind = elements_optional(argument) ? Argument::Kind::OptionalTensorList : Argument::Kind::TensorList;
      out.first = op.operand_lists[next_list].first;
      out.count = op.operand_lists[next_list++].count;
      next = out.first + out.count;
    } else if (auto attr = op.attrs.find(argument.name()); attr != op.attrs.end()) {
      out.constant = capture::ivalue_of(attr->second, argument);
    } else if (argument.default_value()) {
      out.constant = *argument.default_value();
    } else if (argument.name() == "device" || argument.type()->kind() == c10::TypeKind::OptionalType) {
      out.constant = {};  // None; a factory without a device makes a CPU tensor
    } else {
      SFSDP_CHECK(false, op.opcode, " lacks the argument ", argument.name());
    }
    arguments_.push_back(std::move(out));
  }
  SFSDP_CHECK(next == static_cast<int>(op.operands.size()), op.opcode, " has ", op.operands.size(),
              " operands, its schema takes ", next);
}

void AtenCall::push(std::span<const at::Tensor> operands, torch::jit::Stack& stack) const {
  stack.reserve(arguments_.size() + 1);
  const auto at_index = [&](int i) -> const at::Tensor& { return operands[static_cast<size_t>(i)]; };
  const auto optional = [&](int i) { return at_index(i).defined() ? std::optional(at_index(i)) : std::nullopt; };
  for (const Argument& argument : arguments_) {
    switch (argument.kind) {
      case Argument::Kind::Constant: stack.push_back(argument.constant); break;
      case Argument::Kind::Tensor: stack.emplace_back(at_index(argument.first)); break;
      case Argument::Kind::OptionalTensor: stack.emplace_back(optional(argument.first)); break;
      case Argument::Kind::TensorList: {
        c10::List<at::Tensor> list;
        for (int i = 0; i < argument.count; ++i) list.push_back(at_index(argument.first + i));
        stack.emplace_back(std::move(list));
        break;
      }
      case Argument::Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int i = 0; i < argument.count; ++i) list.push_back(optional(argument.first + i));
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

void AtenCall::call(const c10::OperatorHandle& handle, torch::jit::Stack& stack,
                    std::span<const at::Tensor> operands) const {
  try {
    handle.callBoxed(stack);
  } catch (const c10::Error& error) {
    std::string got;
    for (const at::Tensor& t : operands)
      if (t.defined()) got += concat(got.empty() ? " on " : ", ", capture::type_of(t));
    throw UserError(concat(where_, got, ": ", error.what_without_backtrace(),
                           "\n  expected data that this op takes, such as ids below the number of classes or rows; the"
                           " same batch on the module without sfsdp shows more"));
  }
}

std::vector<at::Tensor> AtenCall::run(std::span<const at::Tensor> operands) const {
  torch::jit::Stack stack;
  push(operands, stack);
  call(handle_, stack, operands);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) capture::collect(value, results);
  return results;
}

bool AtenCall::find_out_variant() {
  if (!out_handle_) out_handle_ = out_variant_of(handle_);
  return out_handle_.has_value();
}

void AtenCall::run_into(std::span<const at::Tensor> operands, std::span<const at::Tensor> results) {
  stack_.clear();
  push(operands, stack_);
  for (const at::Tensor& result : results) stack_.emplace_back(result);
  call(*out_handle_, stack_, operands);
  stack_.clear();
}

}  // namespace sfsdp::exec
