// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_list.h"

#include <algorithm>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op;

// "attention.wq" of an op at layers.3.attention.wq; "" outside of blocks.
std::string_view path_in_block(const Op& op) {
  const std::string_view path = op.module_path, block = ir::block_of(path);
  return block.empty() || block.size() == path.size() ? std::string_view() : path.substr(block.size() + 1);
}

// By its opcode, or by its module or one above it.
bool is_named(const Op& op, std::string_view name) {
  if (op.opcode == name || (name == "sdpa" && op.is("sdpa_merge"))) return true;  // attention in parts, put together
  const std::string_view path = path_in_block(op);
  return path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '.');
}

bool is_product(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Product && op.operands.size() > 1 && op.operands[1];
}

}  // namespace

std::vector<std::string> listed_names(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& part : split(text, ','))
    if (const std::string_view name = trim(part); !name.empty()) names.emplace_back(name);
  return names;
}

RematList::RematList(const Graph& graph, const RematOptions& options)
    : save_(listed_names(options.save)), mm_again_(options.mm_again) {
  for (const std::string& part : listed_names(options.mm_again_of))
    for (const auto& op : graph.ops())
      if (ir::is_forward(op->section) && is_product(*op) && op->module_path.find(part) != std::string::npos)
        forced_.insert(op->operands[1]->type().shape());
  find_parts(graph);
}

void RematList::find_parts(const Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (op->is("join_parts"))
      for (const ir::Value* part : op->operands)
        if (is_product(*part->producer())) parts_.insert(part->producer());
    if (!op->is("add_parts")) continue;
    for (size_t k = 0; k + 1 < op->operands.size(); ++k) {
      std::vector<const Op*> open = {op->operands[k]->producer()};
      while (!open.empty()) {
        const Op* below = open.back();
        open.pop_back();
        if (is_product(*below)) parts_.insert(below);
        if (below->is("permute", "aten.add.Tensor"))
          for (const ir::Value* operand : below->operands) open.push_back(operand->producer());
      }
    }
  }
}

bool RematList::is_forced(const Op& op) const {
  return is_product(op) && forced_.contains(op.operands[1]->type().shape());
}

bool RematList::keeps(const Op& op, int64_t& products) const {
  if (parts_.contains(&op)) return false;
  if (op.is("join_parts") && parts_.contains(op.operands[0]->producer()))
    return keeps_product(*op.operands[0]->producer(), products);
  return keeps_product(op, products);
}

bool RematList::keeps_product(const Op& op, int64_t& products) const {
  if (is_forced(op)) return false;
  if (!save_.empty()) return std::ranges::any_of(save_, [&](const auto& name) { return is_named(op, name); });
  const ir::OpRow* row = op.opcode.row();
  if (op.is("sdpa_merge") || (row && row->cost == ir::CostClass::Attention)) return true;
  if (!row || row->cost != ir::CostClass::Product) return false;
  return mm_again_ == 0 || ++products % mm_again_ != 0;
}

void check_save_names(const Graph& graph, const RematOptions& options) {
  for (const std::string& name : listed_names(options.save)) {
    std::set<std::string> known;
    bool found = false;
    for (const auto& op : graph.ops()) {
      if (!ir::is_forward(op->section) || path_in_block(*op).empty()) continue;
      found = found || is_named(*op, name);
      known.insert(op->opcode);
      known.emplace(path_in_block(*op));
    }
    if (found) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    throw UserError(concat("RematOptions::save: ", name, " is no op and no module of a block\n  expected some of ",
                           join(names, ", "), did_you_mean(name, names)));
  }
}

}  // namespace sfsdp::passes
