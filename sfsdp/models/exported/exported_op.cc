// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/exported_op.h"

#include <ATen/ATen.h>

#include <string_view>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::models {
namespace {

// Experts of transformers: rows of `input` from offs[e - 1] to offs[e] times weight[e]. [S, K], [E, K, N], [E] -> [S, N]
std::vector<c10::IValue> grouped_mm(const OpArguments& arguments) {
  const at::Tensor offsets = arguments.at("offs").toTensor();
  return {at::_grouped_mm(arguments.at("input").toTensor(), arguments.at("weight").toTensor(), offsets.to(at::kInt))};
}

std::map<std::string, ExportedOp>& replacements() {
  static std::map<std::string, ExportedOp> all = {{"transformers::grouped_mm_fallback", &grouped_mm}};
  return all;
}

}  // namespace

void register_exported_op(const std::string& target, ExportedOp function) {
  if (target.find("::") == std::string::npos || target.starts_with("aten::"))
    throw UserError(concat("register_exported_op(", quote_safe(target),
                           ")\n  expected an op of another library than LibTorch, such as my_library::op"));
  replacements()[target] = std::move(function);
}

ExportedOp find_exported_op(const std::string& target) {
  constexpr std::string_view kOps = "torch.ops.", kDefault = ".default";
  if (!target.starts_with(kOps)) return nullptr;
  std::string name = target.substr(kOps.size());
  if (name.ends_with(kDefault)) name.resize(name.size() - kDefault.size());
  if (const size_t dot = name.find('.'); dot != std::string::npos) name.replace(dot, 1, "::");
  const auto found = replacements().find(name);
  return found == replacements().end() ? nullptr : found->second;
}

}  // namespace sfsdp::models
