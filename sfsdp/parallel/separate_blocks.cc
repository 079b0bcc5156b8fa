// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/separate_blocks.h"

#include <span>
#include <utility>
#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Type, ir::Value;

Type with_blocks(Type type, const Shard& cut) {
  ir::Dim& dim = type.dims[static_cast<size_t>(cut.dim)];
  dim.size /= cut.blocks;
  type.dims.insert(type.dims.begin() + cut.dim, ir::Dim{.size = cut.blocks, .split = {}});
  return type;
}

Value* view(const ir::Builder::Place& place, Value* value, Type type, const std::string& name) {
  const std::vector<int64_t> size = type.shape();
  return place.value("aten.view", {value}, std::move(type), name, {{"size", size}});
}

// One before each reader, not one for all: what data parallelism gathers again for backward is then not kept for its sake.
void separate_weight(ir::Builder& build, Op& param, std::span<Op* const> readers, const Shard& cut) {
  Value* weight = param.result();
  const Type joined = weight->type();
  weight->set_type(with_blocks(joined, cut));
  for (Op* reader : readers) {
    Value* seen = view(build.before(reader).like(*reader), weight, joined, weight->name() + ".joined");
    for (Value*& operand : reader->operands)
      if (operand == weight) operand = seen;
  }
}

void separate_gradient(ir::Builder& build, Op& gradient, const Shard& cut) {
  Value* value = gradient.operands[0];
  const auto place = build.before(&gradient).like(*value->producer());
  Type type = value->type();
  if (!type.strides.empty()) {
    type.strides.clear();
    value = place.value("aten.clone", {value}, type, value->name() + ".dense", {{"memory_format", int64_t{0}}});
  }
  type = with_blocks(type, cut);
  gradient.operands[0] = view(place, value, type, value->name() + ".blocks");
  gradient.result()->set_type(with_blocks(gradient.result()->type(), cut));
}

}  // namespace

std::map<std::string, int64_t> separate_blocks(ir::Graph& graph, const std::map<std::string, Shard>& cuts) {
  std::map<std::string, int64_t> dims;
  for (const auto& [name, cut] : cuts) dims[name] = cut.dim + (cut.blocks > 1 ? 1 : 0);
  ir::Builder build(graph);
  const ir::Index index(graph);
  std::vector<Op*> ops;
  for (const auto& op : graph.ops()) ops.push_back(op.get());
  for (Op* op : ops) {
    if (!op->is("param", "gradient")) continue;
    const auto cut = cuts.find(op->attr<std::string>(op->is("param") ? "name" : "param"));
    if (cut == cuts.end() || cut->second.blocks == 1) continue;
    if (op->is("param"))
      separate_weight(build, *op, index.readers(op->result()), cut->second);
    else
      separate_gradient(build, *op, cut->second);
  }
  build.apply();
  return dims;
}

}  // namespace sfsdp::parallel
