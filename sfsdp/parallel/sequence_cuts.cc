// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/sequence_cuts.h"

#include <cstdint>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/nearest_degree.h"
#include "sfsdp/parallel/placement_kinds.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement;

constexpr int64_t kEach = 0, kMean = 1, kTotal = 2;  // reduction= of a loss

bool is_loss(const Op& op) { return op.is("cross_entropy", "cross_entropy_of_parts"); }
int64_t reduction_of(const Op& op) { return op.attr_or("reduction", kMean); }

// grad, q, k, v, o, lse, documents of backward; q, k, v, documents of forward. [B, heads, S, width], lse [B, heads, S]
std::optional<OpCut> attention(const Op& op, const std::vector<Placement>& operands) {
  const bool backward = op.is("sdpa_backward");
  const size_t q = backward ? 1 : 0, documents = backward ? 6 : 3;
  const Placement own = Placement::shard(2);
  if (operands[q] != own || !op.attr_or("is_causal", false)) return std::nullopt;
  if (op.operands[q]->type().dims[2].size != op.operands[q + 1]->type().dims[2].size) return std::nullopt;
  if (operands.size() > documents && op.operands[documents] && !op.attr_or("documents", false)) return std::nullopt;
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size(), own),
            .results = std::vector<Placement>(op.results().size(), own)};
  way.operands[q + 1] = way.operands[q + 2] = kWhole;
  if (operands.size() > documents) way.operands[documents] = kWhole;
  if (backward) way.results[1] = way.results[2] = kSum;
  return way;
}

// The rank's tokens alone: the gradients of rows that several of them look up are added over the axis.
std::optional<OpCut> of_embedding(const Op& op, const std::vector<Placement>& operands) {
  if (operands[0].kind != Placement::Kind::Shard || operands[0].dim >= std::ssize(op.operands[1]->type().dims) ||
      op.attr_or("scale_grad_by_freq", false))
    return std::nullopt;
  return OpCut{.operands = {operands[0], operands[0]}, .results = {kSum}};
}

}  // namespace

std::optional<OpCut> sequence_cut_of(const Op& op, const std::vector<Placement>& operands) {
  if (op.is("sdpa", "sdpa_backward")) return attention(op, operands);
  if (op.is("embedding_backward")) return of_embedding(op, operands);
  if (!is_loss(op) || reduction_of(op) == kEach) return std::nullopt;
  if (op.attr_or("in_dtype", false) && ir::is_half(op.operands[0]->type().dtype)) return std::nullopt;  // nor its count
  const int64_t rows = op.is("cross_entropy") ? 0 : 1;  // the dimension of logits, or of their parts
  if (operands[0].kind != Placement::Kind::Shard || operands[0].dim != rows) return std::nullopt;
  const Placement own = Placement::shard(0, operands[0].blocks);
  return OpCut{.operands = {operands[0], own}, .results = {kSum, kSum, own}};
}

std::optional<OpCut> head_cut_of(const Op& op, int64_t ranks, int64_t blocks) {
  if (!op.is("sdpa", "sdpa_backward")) return std::nullopt;
  const Placement heads = Placement::shard(1, blocks);
  std::vector<Placement> operands(op.operands.size(), kWhole);
  operands[op.is("sdpa") ? 0 : 1] = heads;
  for (OpCut& way : cuts_of(op, operands, ranks))
    if (way.results[0] == heads) return std::move(way);
  return std::nullopt;
}

std::string why_no_heads(const Op& op, const MeshAxis& axis, int64_t inner) {
  if (head_cut_of(op, axis.size, inner)) return "";
  return concat("has ", op.operands[op.is("sdpa_backward") ? 2 : 1]->type().dims[1].size,
                " heads of keys and values, of which ", axis.name, " = ", axis.size,
                inner > 1 ? concat(" times tp = ", inner) : std::string(), " ranks cannot have equal parts");
}

void throw_no_heads(const Op& op, const std::vector<MeshAxis>& mesh, const MeshAxis& axis, int64_t inner) {
  const int64_t legal =
      nearest_degree(mesh, axis.size, [&](int64_t degree) { return head_cut_of(op, degree, inner).has_value(); });
  throw UserError(concat("context_parallel: ", ir::opcode_at(op), ' ', why_no_heads(op, axis, inner), "\n  expected ",
                         axis.name, " = ", legal, ", or another ContextParallelOptions::rotate_method"));
}

void lower_to_own_tokens(Op& op, const MeshAxis& axis, const ContextParallelOptions& options) {
  if (is_loss(op)) op.attrs["reduction"] = kTotal;
  if (!op.is("sdpa", "sdpa_backward")) return;
  op.attrs["axis"] = axis.name;
  if (options.load_balance) op.attrs["balanced"] = true;
}

bool is_mean_of_rows(const Op& op) { return is_loss(op) && reduction_of(op) == kMean; }

}  // namespace sfsdp::parallel
