// SPDX-License-Identifier: BSD-3-Clause
// Replacements for ops of other libraries in exported graphs, by name. An archive has a custom op's name and arguments, not
// what it computes.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sfsdp::models {

// By their names in the op's schema; those left at their default are not there.
using OpArguments = std::map<std::string, c10::IValue>;
// Computes the op's results with ops of LibTorch, through which autograd sees: they run on meta tensors while a step is
// compiled. throws: UserError, c10::Error
using ExportedOp = std::function<std::vector<c10::IValue>(const OpArguments&)>;

// From now on archives that call `target`, "my_library::op" or "my_library::op.overload", are trained with `function`. The
// last one counts. Call it before a job is compiled, on one thread. transformers::grouped_mm_fallback is there already.
//   throws: UserError if `target` has no library, or is aten's
void register_exported_op(const std::string& target, ExportedOp function);

// target: as in an archive, "torch.ops.my_library.op.default". Empty: there is none.
ExportedOp find_exported_op(const std::string& target);

}  // namespace sfsdp::models
