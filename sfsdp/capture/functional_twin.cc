// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/functional_twin.h"

#include <algorithm>
#include <string>

namespace sfsdp::capture {
namespace {

// In-place ops whose functional twin has a name or a signature of its own.
struct Twin {
  const char* name;
  const char* overload;
  const char* functional;
  const char* functional_overload;
};
constexpr Twin kTwins[] = {
    {"aten::bernoulli_", "float", "aten::bernoulli", "p"},  // its p has no default
    {"aten::normal_", "", "aten::normal_functional", ""},
    {"aten::native_batch_norm", "", "aten::_native_batch_norm_legit_functional", ""},
    {"aten::_native_batch_norm_legit", "", "aten::_native_batch_norm_legit_functional", ""},
    {"aten::rrelu_with_noise", "", "aten::rrelu_with_noise_functional", ""},
};

// Whether `twin` takes the arguments of `op`, by name and type, and writes to none of them.
bool is_functional_form(const c10::FunctionSchema& twin, const c10::FunctionSchema& op) {
  return !twin.is_mutable() &&
         std::ranges::equal(twin.arguments(), op.arguments(), [](const c10::Argument& a, const c10::Argument& b) {
           return a.name() == b.name() && *a.type() == *b.type();
         });
}

}  // namespace

// The overloads of add_ and add have the same names, those of pow_ and pow do not, so the schema decides.
std::optional<c10::OperatorHandle> functional_twin(const c10::OperatorHandle& op) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::OperatorName& name = op.operator_name();
  for (const Twin& twin : kTwins)
    if (name.name == twin.name && name.overload_name == twin.overload)
      return dispatcher.findSchema({twin.functional, twin.functional_overload});
  if (!name.name.ends_with('_') || name.name.ends_with("__")) return std::nullopt;
  const std::string functional = name.name.substr(0, name.name.size() - 1);
  if (auto same = dispatcher.findSchema({functional, name.overload_name});
      same && is_functional_form(same->schema(), op.schema()))
    return same;
  for (const c10::OperatorName& other : dispatcher.getAllOpNames())
    if (other.name == functional)
      if (auto found = dispatcher.findSchema(other); found && is_functional_form(found->schema(), op.schema()))
        return found;
  return std::nullopt;
}

}  // namespace sfsdp::capture
