// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/tensor_type.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::capture {
namespace {

using c10::ScalarType;

// By ir::DType, in its order.
constexpr ScalarType kScalarTypes[] = {ScalarType::Double,       ScalarType::Float,         ScalarType::BFloat16,
                                       ScalarType::Half,         ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2,
                                       ScalarType::ComplexFloat, ScalarType::Long,          ScalarType::Int,
                                       ScalarType::Short,        ScalarType::Char,          ScalarType::Byte,
                                       ScalarType::Bool};
static_assert(std::size(kScalarTypes) == static_cast<size_t>(ir::DType::b1) + 1);

// The type with `?` taken off.
const c10::Type& required_type(const c10::Argument& argument) {
  const c10::Type& type = *argument.real_type();
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

}  // namespace

ir::DType dtype_of(c10::ScalarType type) {
  if (const auto* found = std::ranges::find(kScalarTypes, type); found != std::end(kScalarTypes))
    return static_cast<ir::DType>(found - kScalarTypes);
  throw UserError(concat("tensor of dtype ", c10::toString(type),
                         " in the captured step\n  expected a floating, integer, bool or complex64 dtype; cast it"));
}

c10::ScalarType scalar_type_of(ir::DType dtype) { return kScalarTypes[static_cast<size_t>(dtype)]; }

ir::Type contiguous_type_of(const at::Tensor& tensor) {
  return ir::Type::tensor(dtype_of(tensor.scalar_type()), tensor.sizes().vec());
}

ir::Type type_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    ir::Type none;
    none.kind = ir::Type::Kind::Token;
    return none;
  }
  ir::Type type = contiguous_type_of(tensor);
  if (!tensor.is_contiguous()) type.strides = tensor.strides().vec();
  return type;
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect(element, out);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) collect(element, out);
  } else {
    out.emplace_back();
  }
}

bool takes_tensor(const c10::Argument& argument) { return required_type(argument).kind() == c10::TypeKind::TensorType; }

bool takes_tensor_list(const c10::Argument& argument) {
  const auto* list = required_type(argument).castRaw<c10::ListType>();
  if (!list) return false;
  const c10::Type& element = *list->getElementType();
  const auto* optional = element.castRaw<c10::OptionalType>();
  return (optional ? *optional->getElementType() : element).kind() == c10::TypeKind::TensorType;
}

ir::Attr attr_of(const c10::IValue& value, const c10::Argument& argument, const std::function<std::string()>& where) {
  if (value.isNone()) return std::monostate{};
  if (required_type(argument).kind() == c10::TypeKind::ScalarTypeType && value.isInt())
    return dtype_of(static_cast<c10::ScalarType>(value.toInt()));
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    auto list = value.toBoolList();
    return std::vector<bool>(list.begin(), list.end());
  }
  if (value.isList() && value.toListRef().empty()) return std::vector<int64_t>{};
  throw UserError(concat("argument '", argument.name(), "' of ", where(), " is a ", value.tagKind(),
                         "\n  expected numbers, booleans or strings: other kinds cannot be captured"));
}

c10::IValue ivalue_of(const ir::Attr& attr, const c10::Argument& argument) {
  const c10::TypeKind kind = required_type(argument).kind();
  return std::visit(
      [&](const auto& v) -> c10::IValue {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return {};
        else if constexpr (std::is_same_v<T, ir::DType>)
          return static_cast<int64_t>(scalar_type_of(v));
        else if constexpr (std::is_same_v<T, int64_t>) {
          if (kind == c10::TypeKind::FloatType) return static_cast<double>(v);
          return v;
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
          c10::List<bool> list;
          for (bool b : v) list.push_back(b);
          return list;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          SFSDP_CHECK(false, "string list for argument ", argument.name());
          return {};
        } else
          return c10::IValue(v);
      },
      attr);
}

}  // namespace sfsdp::capture
