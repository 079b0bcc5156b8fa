// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/hoist_casts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/own_memory.h"

namespace sfsdp::passes {
namespace {

using ir::DType, ir::Graph, ir::Op, ir::Value;

// To another dtype and nothing else; `.to(dtype)` of a model is captured as _to_copy.
bool is_cast(const Op& op) {
  const bool to_copy =
      op.is("aten._to_copy") && std::ranges::all_of(op.attrs, [](const auto& attr) { return attr.first == "dtype"; });
  return (op.is("cast") || to_copy) &&
         op.result()->type() == with_dtype(op.operands[0]->type(), op.result()->type().dtype);
}

// A gather, the narrow after it that takes the padding off, if there is one, and the casts that read it.
struct CastGather {
  Op* gather = nullptr;
  Op* narrow = nullptr;
  std::vector<Op*> casts;

  Value* whole() const { return narrow ? narrow->result() : gather->result(); }
  DType dtype() const { return casts[0]->result()->type().dtype; }
};

struct ByValue {
  Value* shard = nullptr;
  std::vector<CastGather> gathers;
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : index_(graph), own_memory_(own_memory(graph)) {}

  // Values all of whose gathers are cast to one smaller dtype, in the order of their first gather.
  std::vector<ByValue> find(const Graph& graph) const {
    std::vector<ByValue> values;
    for (const auto& op : graph.ops()) {
      if (!op->is("all_gather") || !op->operands[0]->type().strides.empty()) continue;
      const auto same = [&](const ByValue& value) { return value.shard == op->operands[0]; };
      if (std::ranges::any_of(values, same)) continue;
      if (auto gathers = cast_gathers(op->operands[0])) values.push_back({op->operands[0], std::move(*gathers)});
    }
    return values;
  }

 private:
  std::optional<std::vector<CastGather>> cast_gathers(const Value* shard) const {
    std::vector<CastGather> gathers;
    for (Op* reader : index_.readers(shard)) {
      if (!reader->is("all_gather")) continue;  // the update reads the stored value, in its own dtype
      CastGather found{.gather = reader, .narrow = nullptr, .casts = {}};
      const auto next = index_.readers(reader->result());
      if (next.size() == 1 && next[0]->is("narrow")) found.narrow = next[0];
      const auto readers = index_.readers(found.whole());
      found.casts.assign(readers.begin(), readers.end());
      if (index_.is_returned(reader->result()) || index_.is_returned(found.whole()) || found.casts.empty())
        return std::nullopt;
      const DType to = found.casts[0]->result()->type().dtype;
      const bool same = std::ranges::all_of(found.casts, [&](const Op* op) {
        return is_cast(*op) && op->result()->type().dtype == to && !own_memory_.contains(op->result());
      });
      const bool fewer = ir::size_in_bytes(to) < ir::size_in_bytes(shard->type().dtype);
      if (!same || !fewer || (!gathers.empty() && gathers[0].dtype() != to)) return std::nullopt;
      gathers.push_back(std::move(found));
    }
    return gathers;
  }

  ir::Index index_;
  std::set<const Value*> own_memory_;
};

void hoist(const CastGather& at, ir::Builder& build) {
  const DType dtype = at.dtype();
  at.gather->operands[0] = build.before(at.gather).cast(at.gather->operands[0], dtype);
  for (Op* op : {at.gather, at.narrow})
    if (op) op->result()->set_type(with_dtype(op->result()->type(), dtype));
  for (Op* op : at.casts) {
    build.replace(op->result(), at.whole());
    build.erase(op);
  }
}

}  // namespace

bool hoist_casts(Graph& graph, PassContext& ctx) {
  const std::vector<ByValue> values = Finder(graph).find(graph);
  ir::Builder build(graph);
  for (const ByValue& value : values)
    for (const CastGather& at : value.gathers) {
      const int64_t bytes = at.gather->result()->type().bytes();
      hoist(at, build);
      ctx.metrics.add("gathers_narrowed", 1);
      ctx.metrics.add("bytes_saved", bytes - at.gather->result()->type().bytes());
    }
  if (!values.empty()) build.apply();
  SFSDP_CHECK(Finder(graph).find(graph).empty(), "gathers are left that only casts read");
  return !values.empty();
}

}  // namespace sfsdp::passes
