// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/chunk_loss.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/memory/chunk_rows_of_loss.h"
#include "sfsdp/passes/memory/rows_of_loss.h"
#include "sfsdp/passes/memory/sum_of_chunks.h"

namespace sfsdp::passes {
namespace {

using ir::DType, ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

// hidden [N, D] · weight_t [D, V] -> logits -> x (wider, or logits) -> log_p -> loss, total; and back from the seed:
// grad_p, grad_x, grad_logits (narrower again), grad_hidden = grad_logits · weight, grad_weight = grad_logits_t · hidden.
struct Loss {
  Op *logits = nullptr, *widen = nullptr, *log_p = nullptr, *loss = nullptr;
  Op *grad_p = nullptr, *grad_x = nullptr, *narrow = nullptr, *grad_hidden = nullptr;
  Op *transpose = nullptr, *grad_weight = nullptr;

  std::vector<Op*> ops() const {
    std::vector<Op*> all = {logits, widen, log_p, loss, grad_p, grad_x, narrow, grad_hidden, transpose, grad_weight};
    std::erase(all, nullptr);
    return all;
  }
};

bool is_cast(const Op& op) { return op.is("aten._to_copy", "cast"); }

bool is_over_classes(const Op& op) {
  const auto* dim = op.find_attr<int64_t>("dim");
  return dim && (*dim == 1 || *dim == -1);
}

bool is_matrix(const Value* value) { return value->type().dims.size() == 2 && value->type().strides.empty(); }

class Finder {
 public:
  explicit Finder(const ir::Index& index) : index_(index) {}

  std::optional<Loss> match(Op* loss) const {
    Loss m;
    m.loss = loss;
    if (loss->operands.size() != 3 || loss->operands[2]) return std::nullopt;
    m.log_p = loss->operands[0]->producer();
    if (!m.log_p->is("aten._log_softmax") || !is_matrix(m.log_p->result()) || !is_over_classes(*m.log_p))
      return std::nullopt;
    if (!loss->result(0)->type().dims.empty()) return std::nullopt;  // a loss for each token
    Op* before = m.log_p->operands[0]->producer();
    if (is_cast(*before)) {
      m.widen = before;
      before = before->operands[0]->producer();
    }
    m.logits = before;
    if (!m.logits->is("aten.mm") || !is_matrix(m.logits->operands[0])) return std::nullopt;
    if (!m.logits->operands[1]->producer()->is("aten.t")) return std::nullopt;
    return match_backward(m);
  }

 private:
  std::optional<Loss> match_backward(Loss m) const {
    Op* forward = m.widen ? m.widen : m.log_p;
    if (index_.only_reader(m.logits->result()) != forward) return std::nullopt;
    if (m.widen && index_.only_reader(m.widen->result()) != m.log_p) return std::nullopt;
    m.grad_p = index_.only_reader(m.loss->result(1));
    if (!m.grad_p || !m.grad_p->is("aten.nll_loss_backward")) return std::nullopt;
    Value *const log_p = m.log_p->result(), *const seed = m.grad_p->operands[0];
    if (seed == log_p || seed == m.loss->result(1)) return std::nullopt;
    if (m.grad_p->operands != std::vector<Value*>{seed, log_p, m.loss->operands[1], nullptr, m.loss->result(1)})
      return std::nullopt;
    m.grad_x = index_.only_reader(m.grad_p->result());
    if (!m.grad_x || !m.grad_x->is("aten._log_softmax_backward_data") || !is_over_classes(*m.grad_x) ||
        m.grad_x->operands != std::vector<Value*>{m.grad_p->result(), log_p})
      return std::nullopt;
    for (const Op* reader : index_.readers(log_p))
      if (reader != m.loss && reader != m.grad_p && reader != m.grad_x) return std::nullopt;
    for (const Op* reader : index_.readers(m.loss->result(0)))  // from the chunks the loss would come too late
      if (index_.position(reader) < index_.position(m.grad_p)) return std::nullopt;
    const Value* grad_logits = m.grad_x->result();
    if (m.widen) {
      m.narrow = index_.only_reader(grad_logits);
      if (!m.narrow || !is_cast(*m.narrow)) return std::nullopt;
      grad_logits = m.narrow->result();
    }
    if (index_.is_returned(log_p) || index_.is_returned(grad_logits)) return std::nullopt;
    if (index_.readers(grad_logits).size() != 2) return std::nullopt;
    for (Op* reader : index_.readers(grad_logits)) {
      if (reader->is("aten.t")) m.transpose = reader;
      if (reader->is("aten.mm") && reader->operands[0] == grad_logits) m.grad_hidden = reader;
    }
    if (!m.transpose || !m.grad_hidden) return std::nullopt;
    m.grad_weight = index_.only_reader(m.transpose->result());
    const bool is_product = m.grad_weight && m.grad_weight->is("aten.mm") &&
                            m.grad_weight->operands[0] == m.transpose->result() &&
                            m.grad_weight->operands[1] == m.logits->operands[0];
    if (!is_product || !is_matrix(m.grad_weight->result()) || !is_matrix(m.grad_hidden->result())) return std::nullopt;
    if (!is_matrix(m.grad_hidden->operands[1])) return std::nullopt;
    return m;
  }

  const ir::Index& index_;
};

// What `value` is computed from after `place`, in order: the weight's cast, gather and views.
std::vector<Op*> needed_after(const ir::Index& index, const Value* value, const Op* place) {
  std::vector<Op*> needed, open = {value->producer()};
  while (!open.empty()) {
    Op* op = open.back();
    open.pop_back();
    if (index.position(op) < index.position(place) || std::ranges::find(needed, op) != needed.end()) continue;
    needed.push_back(op);
    for (const Value* operand : op->operands)
      if (operand) open.push_back(operand->producer());
  }
  std::ranges::sort(needed, {}, [&](const Op* op) { return index.position(op); });
  return needed;
}

class LossRewriter {
 public:
  LossRewriter(Graph& graph, const Loss& loss)
      : graph_(graph),
        m_(loss),
        build_(graph),
        place_(build_.before(loss.grad_p).in(Section::Bwd).at(loss.logits->module_path)),
        grad_of_weight_(graph, build_, place_) {}

  void run(int64_t chunks) {
    const Value* hidden = m_.logits->operands[0];
    const int64_t rows = hidden->type().dims[0].size;
    const int64_t each = (rows + chunks - 1) / chunks;
    Value* weight = m_.grad_hidden->operands[1];
    Type transposed = m_.logits->operands[1]->type();
    weight_t_ = add("aten.t", {weight}, transposed);
    count_targets();
    for (int64_t start = 0; start < rows; start += each) chunk(start, std::min(each, rows - start));
    Value* loss = loss_;
    if (m_.loss->attr_or("reduction", kMean) == kMean) loss = add("div", {loss_, total_}, loss_->type());
    build_.replace(m_.loss->result(0), loss);
    build_.replace(m_.grad_hidden->result(),
                   place_.list("aten.cat", grads_of_hidden_, m_.grad_hidden->result()->type(), "")->result());
    grad_of_weight_.replace(m_.grad_weight->result());
    build_.erase(m_.ops());
    build_.apply();
    expect_chunked(graph_, hidden, weight_t_, each);
  }

 private:
  static constexpr int64_t kMean = 1, kSum = 2;  // at::Reduction

  Value* add(ir::Opcode opcode, std::vector<Value*> operands, Type type, ir::Attrs attrs = {}) {
    return place_.value(opcode, std::move(operands), std::move(type), "", std::move(attrs));
  }

  // `op` again on other operands, whose dimension `dim` has `rows` of the tokens.
  Op* again(const Op* op, std::vector<Value*> operands, int64_t rows, size_t dim = 0) {
    std::vector<Graph::NewResult> results;
    for (const auto& result : op->results()) {
      Type type = result->type();
      if (!type.dims.empty()) type.dims[dim].size = rows;
      results.push_back({"", std::move(type)});
    }
    return place_.again(*op, std::move(operands), std::move(results));
  }

  Value* rows_of(Value* value, int64_t start, int64_t rows) {
    Type type = value->type();
    type.dims[0].size = rows;
    return add("narrow", {value}, std::move(type), {{"dim", int64_t{0}}, {"start", start}, {"length", rows}});
  }

  // The mean's divisor is known before the first chunk: each chunk's gradient needs it.
  void count_targets() {
    Value* targets = m_.loss->operands[1];
    Type counted = targets->type();
    counted.dtype = DType::b1;
    const auto ignored = m_.loss->attr_or<int64_t>("ignore_index", -100);
    Value* ne = add("aten.ne.Scalar", {targets}, counted, {{"other", ignored}});
    counted.dtype = m_.loss->result(1)->type().dtype;
    total_ = add("aten.sum", {add("cast", {ne}, counted)}, m_.loss->result(1)->type());
  }

  void chunk(int64_t start, int64_t rows) {
    Value* hidden = rows_of(m_.logits->operands[0], start, rows);
    Value* targets = rows_of(m_.loss->operands[1], start, rows);
    Value* x = again(m_.logits, {hidden, weight_t_}, rows)->result();
    if (m_.widen) x = again(m_.widen, {x}, rows)->result();
    Value* log_p = again(m_.log_p, {x}, rows)->result();
    Op* sum = again(m_.loss, {log_p, targets, nullptr}, rows);
    sum->attrs["reduction"] = kSum;
    loss_ = loss_ ? add("aten.add.Tensor", {loss_, sum->result(0)}, loss_->type()) : sum->result(0);
    Value* grad_p = again(m_.grad_p, {m_.grad_p->operands[0], log_p, targets, nullptr, total_}, rows)->result();
    Value* grad = again(m_.grad_x, {grad_p, log_p}, rows)->result();
    if (m_.narrow) grad = again(m_.narrow, {grad}, rows)->result();
    grads_of_hidden_.push_back(again(m_.grad_hidden, {grad, m_.grad_hidden->operands[1]}, rows)->result());
    Value* grad_t = again(m_.transpose, {grad}, rows, 1)->result();
    grad_of_weight_.add(
        again(m_.grad_weight, {grad_t, hidden}, m_.grad_weight->result()->type().dims[0].size)->result());
  }

  Graph& graph_;
  Loss m_;
  ir::Builder build_;
  ir::Builder::Place place_;
  SumOfChunks grad_of_weight_;
  Value *weight_t_ = nullptr, *total_ = nullptr, *loss_ = nullptr;
  std::vector<Value*> grads_of_hidden_;
};

// Before the chunks: the weight that they read. After them: what reads the loss.
bool move_around(Graph& graph, const LossRows& loss) {
  const ir::Index index(graph);
  const std::vector<Op*> weight = needed_after(index, loss.grad_hidden->operands[1], loss.backward);
  for (const std::vector<Op*>& own : {loss.forward, loss.gradients})
    for (Op* op : weight)
      if (std::ranges::find(own, op) != own.end()) return false;
  ir::Moves moves(graph);
  moves.before(loss.backward, weight);
  moves.after(loss.backward, loss.late);
  moves.apply();
  return true;
}

// Those of which no chunks were made.
std::vector<Op*> canonical_losses(const Graph& graph) {
  std::vector<Op*> losses;
  for (const auto& op : graph.ops())
    if (op->section != Section::Bwd && op->is("cross_entropy", "cross_entropy_of_parts")) losses.push_back(op.get());
  return losses;
}

int64_t chunk_canonical_losses(Graph& graph, int64_t chunks, PassContext& ctx) {
  int64_t chunked = 0;
  for (Op* loss : canonical_losses(graph)) {
    const FoundLossRows found = find_rows_of_loss(ir::Index(graph), loss);
    if (!found.rows || found.rows->count() < chunks || !move_around(graph, *found.rows)) continue;
    ctx.metrics.add("logits_bytes", found.rows->product->result()->type().bytes());
    ctx.metrics.add("chunks", chunks);
    chunk_rows_of_loss(graph, *found.rows, chunks);
    ++chunked;
  }
  return chunked;
}

}  // namespace

const std::vector<Field<ChunkLossOptions>>& ChunkLossOptions::fields() {
  static const std::vector<Field<ChunkLossOptions>> kFields = {
      field("chunks", &ChunkLossOptions::chunks, {1, 1e6}, "1: none")};
  return kFields;
}

void expect_chunked(const Graph& graph, const Value* hidden, const Value* weight, int64_t most_rows) {
  int64_t rows = 0;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || !op->is("aten.mm", "linear") || op->operands[1] != weight) continue;
    const Op& part = *op->operands[0]->producer();
    SFSDP_CHECK(part.is("narrow") && part.operands[0] == hidden, "chunk_loss: %", op->result()->name(),
                " is the product of something else than rows of %", hidden->name());
    const auto start = part.attr<int64_t>("start"), length = part.attr<int64_t>("length");
    SFSDP_CHECK(start == rows && length <= most_rows, "chunk_loss: a chunk of ", length, " rows begins at row ", start,
                "; expected row ", rows, " and at most ", most_rows);
    rows += length;
  }
  SFSDP_CHECK(rows == hidden->type().dims[0].size, "chunk_loss: the chunks have ", rows, " rows of ", hidden->type());
}

std::string why_not_chunked(const Graph& graph, int64_t chunks) {
  const ir::Index index(graph);
  for (Op* loss : canonical_losses(graph)) {
    const FoundLossRows found = find_rows_of_loss(index, loss);
    if (!found.rows) return found.why_not;
    if (found.rows->count() < chunks)
      return concat(ir::opcode_at(*loss), " is of ", found.rows->count(), " rows on a rank");
  }
  return "";
}

bool chunk_loss(Graph& graph, const ChunkLossOptions& options, PassContext& ctx) {
  SFSDP_CHECK(options.chunks >= 1, "chunks ", options.chunks);
  if (options.chunks == 1) return false;
  int64_t chunked = chunk_canonical_losses(graph, options.chunks, ctx);
  const ir::Index index(graph);
  const Finder finder(index);
  std::vector<Loss> found;
  for (const auto& op : graph.ops())
    if (op->is("aten.nll_loss_forward"))
      if (const auto loss = finder.match(op.get())) found.push_back(*loss);
  for (const Loss& loss : found) {
    const int64_t rows = loss.logits->result()->type().dims[0].size;
    if (loss.loss->section == Section::Bwd || rows < options.chunks) continue;  // in bwd: chunks of an earlier run
    const std::vector<Op*> weight = needed_after(index, loss.grad_hidden->operands[1], loss.grad_p);
    const std::vector<Op*> own = loss.ops();
    if (std::ranges::any_of(weight, [&](Op* op) { return std::ranges::find(own, op) != own.end(); })) continue;
    ir::Moves moves(graph);
    moves.before(loss.grad_p, weight);
    moves.apply();
    ctx.metrics.add("logits_bytes", loss.logits->result()->type().bytes());
    ctx.metrics.add("chunks", options.chunks);
    LossRewriter(graph, loss).run(options.chunks);
    ++chunked;
  }
  ctx.metrics.add("losses", chunked);
  return chunked > 0;
}

}  // namespace sfsdp::passes
