// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_in_kernels.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using cost::Class;
using ir::Graph, ir::Op, ir::Value;

// One read of a value: directly, or through views that show it whole and in order.
struct Read {
  Op* reader = nullptr;
  size_t operand = 0;
  std::vector<Op*> views;  // the first one sees the value itself
};

class KernelsRewriter {
 public:
  explicit KernelsRewriter(Graph& graph)
      : graph_(graph), index_(graph), kernels_(cost::kernels_of(graph)), build_(graph), last_read_(graph.id_bound()) {
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = *graph.ops()[i];
      note(op, i, kernels_.of[i]);
      for (const Value* operand : op.operands)
        if (operand) last_read_[ir::storage_of(operand)->id()] = i;
      for (const int64_t donated : ir::donated_operands(op))
        donated_.try_emplace(ir::storage_of(op.operands[static_cast<size_t>(donated)]), i);
    }
    for (const Value* output : graph.outputs) returned_.insert(ir::storage_of(output));
    for (const ir::Carry& carry : graph.carries) returned_.insert(ir::storage_of(carry.next));
  }

  // Backwards: an op that is computed again may read a result that is then computed again in the same kernel.
  bool run(PassContext& ctx) {
    for (size_t i = index_.size(); i-- > 0;) {
      Op* op = index_.at(i);
      if (!is_cheap(*op)) continue;
      const auto reads = reads_outside(*op->result(), kernel_of(*op));
      if (!reads || !is_kept(*reads) || !is_worth_it(*op, *reads)) continue;
      repeat(*op, *reads);
      bytes_not_kept_ += op->result()->type().bytes();
      if (readers(op->result()).empty()) erase(op);
    }
    build_.apply();
    ctx.metrics.add("ops_repeated", ops_repeated_);
    ctx.metrics.add("bytes_not_kept", bytes_not_kept_);
    return ops_repeated_ > 0;
  }

 private:
  using ByKernel = std::map<int, std::vector<Read>>;

  // ---- the graph as it is by now

  size_t position(const Op& op) const { return position_[op.id()]; }
  int kernel_of(const Op& op) const { return kernel_of_[op.id()]; }  // -1: none
  void note(const Op& op, size_t position, int kernel) {
    if (op.id() >= position_.size()) {
      position_.resize(graph_.id_bound());
      kernel_of_.resize(graph_.id_bound(), -1);
    }
    position_[op.id()] = position;
    kernel_of_[op.id()] = kernel;
  }

  std::span<Op* const> readers(const Value* value) const {
    const auto changed = changed_.find(value);
    return changed == changed_.end() ? index_.readers(value) : std::span<Op* const>(changed->second);
  }
  std::vector<Op*>& change_readers(const Value* value) {
    const auto known = index_.readers(value);
    return changed_.try_emplace(value, known.begin(), known.end()).first->second;
  }
  void add_reader(const Value* value, Op* reader) {
    std::vector<Op*>& all = change_readers(value);
    if (std::ranges::find(all, reader) == all.end()) all.push_back(reader);
  }
  // A view that nobody reads any more goes too.
  void drop_reader(const Value* value, Op* reader) {
    std::vector<Op*>& left = change_readers(value);
    std::erase(left, reader);
    if (Op* view = value->producer(); left.empty() && ir::aliased_operand(*view) >= 0) erase(view);
  }
  void erase(Op* op) {
    build_.erase(op);
    for (const Value* operand : op->operands)
      if (operand) drop_reader(operand, op);
  }

  // Ops of a kernel in their order. New ones stand before the reader that they were made for, those made first come first.
  std::pair<size_t, size_t> place_of(const Op& op) const {
    return {position(op), op.id() < last_read_.size() ? last_read_.size() + graph_.id_bound() : op.id()};
  }

  // ---- which ops

  // What costs nothing beside the memory that it reads and writes.
  bool is_cheap(const Op& op) const {
    if (kernel_of(op) < 0 || op.section == ir::Section::Bwd || !op.has_attr("kernel") || op.results().size() != 1)
      return false;
    return is_elementwise(op) && ir::is_pure(op) && ir::is_repeated(op) && !op.is("accumulate") &&
           ir::donated_operands(op).empty() && !returned_.contains(op.result()) && !donated_.contains(op.result());
  }

  // As many elements as it makes, each from those at its place.
  static bool is_elementwise(const Op& op) {
    if (cost::class_of(op) != Class::Pointwise || !op.result()->type().strides.empty()) return false;
    const ir::OpAccess access(op);
    return access.is_by_place() && access.group() == 0 && access.rows().width == 0;
  }

  // By kernel; nullopt: there are none, or one needs the result in memory.
  std::optional<ByKernel> reads_outside(const Value& value, int own) const {
    ByKernel reads;
    std::vector<Op*> views;
    if (!find_reads(value, own, views, reads) || reads.empty()) return std::nullopt;
    return reads;
  }

  bool find_reads(const Value& value, int own, std::vector<Op*>& views, ByKernel& reads) const {
    for (Op* reader : readers(&value)) {
      if (ir::aliased_operand(*reader) >= 0) {
        if (!ir::reshaped_operand(*reader->result())) return false;
        views.push_back(reader);
        const bool found = find_reads(*reader->result(), own, views, reads);
        views.pop_back();
        if (!found) return false;
        continue;
      }
      const int kernel = kernel_of(*reader);
      if (kernel == own) continue;
      if (kernel < 0 || !reads_in_place(*reader, value) || !takes_ops(kernel)) return false;
      for (size_t k = 0; k < reader->operands.size(); ++k)
        if (reader->operands[k] == &value) reads[kernel].push_back({reader, k, views});
    }
    return true;
  }

  // Last dimensions are alike too, as one number per row and one per column are not.
  static bool reads_in_place(const Op& reader, const Value& value) {
    if (!is_elementwise(reader) || !ir::is_repeated(reader) || !ir::donated_operands(reader).empty()) return false;
    const ir::OpAccess access(reader);
    for (size_t k = 0; k < reader.operands.size(); ++k)
      if (reader.operands[k] == &value && access.reads(k).reads != ir::Reads::Element) return false;
    const ir::Type &read = value.type(), &made = reader.result()->type();
    return read.numel() == made.numel() && read.dims.empty() == made.dims.empty() &&
           (read.dims.empty() || read.dims.back().size == made.dims.back().size);
  }

  // Whether pointwise ops may join what a kernel computes. A product of several results has blocks of one of them, where
  // these are not as wide.
  bool takes_ops(int kernel) const {
    return std::ranges::all_of(kernels_.ops[static_cast<size_t>(kernel)], [](const Op* op) {
      const auto& results = op->results();
      const Class kind = cost::class_of(*op);
      if (kind == Class::Product)
        return std::ranges::all_of(results,
                                   [&](const auto& r) { return r->type().numel() == results[0]->type().numel(); });
      return (kind == Class::Pointwise || kind == Class::Reduction) && !op->is("accumulate");
    });
  }

  // From forward to backward. What lives for a few kernels would save little, and its memory is another's before and after.
  static bool is_kept(const ByKernel& reads) {
    return std::ranges::any_of(
        reads, [](const auto& of_kernel) { return of_kernel.second.front().reader->section == ir::Section::Bwd; });
  }

  // All of the op's operands are in memory anyway while these kernels run, and no more bytes are moved.
  bool is_worth_it(const Op& op, const ByKernel& reads) const {
    const int64_t bytes = op.result()->type().bytes();
    int64_t saved = bytes, added = 0;
    for (const auto& [kernel, of_kernel] : reads) {
      saved += bytes;
      std::unordered_set<const Value*> counted;
      for (const Value* operand : op.operands) {
        if (!operand) continue;
        const Value* storage = ir::storage_of(operand);
        if (!is_there(storage, kernel)) return false;
        if (counted.insert(storage).second && !is_read_by(storage, kernel)) added += storage->type().bytes();
      }
    }
    return added <= saved;
  }

  bool is_there(const Value* storage, int kernel) const {
    const auto& ops = kernels_.ops[static_cast<size_t>(kernel)];
    // Forward may write over what it was given: a buffer that the module changes holds the new numbers in backward.
    const auto gone = donated_.find(storage);
    const auto is_before = [&](const Op* op) { return position(*op) < gone->second; };
    if (gone != donated_.end() && !std::ranges::all_of(ops, is_before)) return false;
    const Op& maker = *storage->producer();
    if (maker.is("param", "state", "constant", "scalar") || returned_.contains(storage)) return true;
    return kernel_of(maker) != kernel && last_read_[storage->id()] >= position(*ops.front()) && gone == donated_.end();
  }

  bool is_read_by(const Value* storage, int kernel) const {
    return std::ranges::any_of(kernels_.ops[static_cast<size_t>(kernel)], [&](const Op* op) {
      return std::ranges::any_of(op->operands, [&](const Value* v) { return v && ir::storage_of(v) == storage; });
    });
  }

  // ---- the rewrite

  // Before the first reader of each kernel.
  void repeat(const Op& op, const ByKernel& reads) {
    for (const auto& [kernel, of_kernel] : reads) {
      Op* first = std::ranges::min(of_kernel, {}, [&](const Read& r) { return place_of(*r.reader); }).reader;
      const auto place = build_.before(first).at(op.module_path);
      const Value& result = *op.result();
      Op* clone = place.again(op, op.operands, {{result.name() + ".again", result.type()}});
      clone->attrs["kernel"] = first->attrs.at("kernel");
      note(*clone, position(*first), kernel);
      kernels_.ops[static_cast<size_t>(kernel)].push_back(clone);
      for (const Value* operand : clone->operands)
        if (operand) add_reader(operand, clone);
      for (const Read& read : of_kernel) replace(read, clone->result(), place);
      ++ops_repeated_;
    }
  }

  void replace(const Read& read, Value* value, const ir::Builder::Place& place) {
    for (const Op* view : read.views) {
      Op* again = place.again(*view, {value}, {{view->result()->name() + ".again", view->result()->type()}});
      note(*again, position(*read.reader), -1);
      add_reader(value, again);
      value = again->result();
    }
    const Value* old = std::exchange(read.reader->operands[read.operand], value);
    add_reader(value, read.reader);
    if (std::ranges::find(read.reader->operands, old) == read.reader->operands.end()) drop_reader(old, read.reader);
  }

  Graph& graph_;
  const ir::Index index_;  // as the graph was
  cost::Kernels kernels_;  // with what joins them
  ir::Builder build_;
  std::vector<size_t> position_;  // by id of the op; of a new one that of the reader that it was made for
  std::vector<int> kernel_of_;    // by id of the op
  std::unordered_map<const Value*, std::vector<Op*>> changed_;  // readers that are not the index's any more
  std::vector<size_t> last_read_;                               // by id of the storage, as the graph was
  std::unordered_set<const Value*> returned_;                   // storages
  std::unordered_map<const Value*, size_t> donated_;            // storages; where they are first given away
  int64_t ops_repeated_ = 0, bytes_not_kept_ = 0;
};

}  // namespace

bool remat_in_kernels(Graph& graph, PassContext& ctx) {
  const bool has_kernels = std::ranges::any_of(graph.ops(), [](const auto& op) { return op->has_attr("kernel"); });
  return has_kernels && KernelsRewriter(graph).run(ctx);
}

}  // namespace sfsdp::passes
