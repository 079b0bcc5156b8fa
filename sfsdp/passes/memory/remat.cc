// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/passes/analysis/param_reads.h"
#include "sfsdp/passes/memory/remat_budget.h"
#include "sfsdp/passes/memory/remat_list.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

const Words<RematMode> kModes = {{"none", RematMode::None},
                                 {"full", RematMode::Full},
                                 {"op", RematMode::Op},
                                 {"memory_budget", RematMode::MemoryBudget}};

bool is_given(const Value* value) {
  const Op& op = *value->producer();
  return ir::is_root(op) || op.section == Section::Init || op.is("constant", "scalar");
}

// Ops (first, last] of forward are those of one block.
struct Block {
  std::string name;
  size_t first = 0, last = 0;
};

// Where blocks begin and end: modules do not say which of their ops come before their first weight is read, so each
// border is the place between the two blocks' reads across which the fewest bytes of forward are alive.
class BlockFinder {
 public:
  explicit BlockFinder(const Graph& graph) : graph_(graph) {
    const size_t n = graph.ops().size();
    std::unordered_map<const Value*, size_t> made;
    std::unordered_map<const Value*, size_t> last_read;
    for (size_t i = 0; i < n; ++i) {
      const Op& op = *graph.ops()[i];
      if (!ir::is_forward(op.section) || is_materialisation(op)) continue;
      for (const Value* operand : op.operands) {
        if (!operand) continue;
        if (const Op* param = param_of(operand))
          reads_.push_back({i, std::string(ir::block_of(param->attr<std::string>("name")))});
        const Value* storage = ir::storage_of(operand);
        if (!is_given(storage) && ir::is_forward(storage->producer()->section) && !param_of(storage))
          last_read[storage] = i;
      }
      for (const auto& result : op.results()) made.try_emplace(ir::storage_of(result.get()), i);
    }
    std::vector<int64_t> change(n + 1);
    for (const auto& [storage, last] : last_read) {
      const size_t first = made.at(storage);
      if (first >= last) continue;
      change[first] += storage->type().bytes();
      change[last] -= storage->type().bytes();
    }
    int64_t live = 0;
    for (size_t i = 0; i < n; ++i) live_after_.push_back(live += change[i]);
  }

  std::vector<Block> find() const {
    std::vector<Block> blocks;
    for (size_t i = 0; i < reads_.size();) {
      size_t end = i;
      while (end + 1 < reads_.size() && reads_[end + 1].block == reads_[i].block) ++end;
      if (!reads_[i].block.empty()) {
        const size_t before = i == 0 ? 0 : reads_[i - 1].position;
        const size_t after = end + 1 == reads_.size() ? graph_.ops().size() : reads_[end + 1].position;
        blocks.push_back(
            {reads_[i].block, cheapest(before, reads_[i].position), cheapest(reads_[end].position, after)});
      }
      i = end + 1;
    }
    return blocks;
  }

 private:
  struct Read {
    size_t position;
    std::string block;
  };

  // The op in [from, to) after which the fewest bytes are alive; the last of equals.
  size_t cheapest(size_t from, size_t to) const {
    size_t best = from;
    for (size_t i = from; i < to; ++i)
      if (ir::is_forward(graph_.ops()[i]->section) && live_after_[i] <= live_after_[best]) best = i;
    return best;
  }

  const Graph& graph_;
  std::vector<Read> reads_;          // of parameters by forward, in order
  std::vector<int64_t> live_after_;  // bytes of forward values that are made at or before op i and read after it
};

// RematOptions::blocks. Throws UserError for one that is none of the graph's.
std::set<std::string> only_of(const RematOptions& options, const std::vector<Block>& blocks) {
  const std::vector<std::string> listed = listed_names(options.blocks);
  for (const std::string& name : listed) {
    if (std::ranges::find(blocks, name, &Block::name) != blocks.end()) continue;
    std::vector<std::string> known;
    for (const Block& block : blocks) known.push_back(block.name);
    throw UserError(concat("RematOptions::blocks: no block has the path ", name, "\n  expected some of ",
                           join(known, ", "), did_you_mean(name, known)));
  }
  return {listed.begin(), listed.end()};
}

class RematRewriter {
 public:
  RematRewriter(Graph& graph, const RematOptions& options)
      : graph_(graph), options_(options), list_(graph, options), build_(graph) {
    const std::vector<Block> blocks = BlockFinder(graph).find();
    blocks_ = blocks.size();
    // Where parameters are gathered again for backward, the gathered ones of forward are not kept for repeated ops either.
    const bool resharded = std::ranges::any_of(graph.ops(), [](const auto& op) {
      return op->section == Section::Bwd && op->is("all_gather") && is_materialisation(*op);
    });
    if (resharded)
      for (const auto& op : graph.ops())
        if (ir::is_forward(op->section) && is_materialisation(*op)) again_.insert(ir::storage_of(op->result()));
    find_last_reads();
    std::vector<BlockValues> within_budget;
    const std::set<std::string> only = only_of(options, blocks);
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (static_cast<int64_t>(b) % options.every != 0) continue;
      if (!only.empty() && !only.contains(blocks[b].name)) continue;
      if (options.mode == RematMode::MemoryBudget)
        within_budget.push_back(pose(own_of(blocks[b]), read_by_backward_, options.flops_per_byte));
      else
        choose(blocks[b]);
    }
    for (const Value* value : choose_within_budget(within_budget, options.memory_budget)) again_.insert(value);
    keep_routing();
  }

  bool run(PassContext& ctx) {
    std::vector<Op*> backward;
    for (const auto& op : graph_.ops())
      if (op->section == Section::Bwd) backward.push_back(op.get());
    for (Op* op : backward)
      for (Value*& operand : op->operands)
        if (operand && again_.contains(ir::storage_of(operand))) operand = repeat(operand, op);
    build_.apply();
    std::unordered_set<const Op*> repeated;
    for (const auto& [op, clone] : clones_) repeated.insert(clone);
    expect_repeated(graph_, again_, repeated);
    ctx.metrics.add("blocks", static_cast<int64_t>(blocks_));
    ctx.metrics.add("ops_repeated", static_cast<int64_t>(clones_.size()));
    ctx.metrics.add("flops_repeated", flops_repeated());
    ctx.metrics.add("bytes_not_kept", bytes_not_kept_);
    ctx.metrics.add("bytes_kept", bytes_kept());
    return !clones_.empty();
  }

 private:
  int64_t flops_repeated() const {
    double flops = 0;
    for (const auto& op : graph_.ops())
      if (clones_.contains(op.get())) flops += cost::flops_of(*op);
    return static_cast<int64_t>(flops);
  }

  // Made by forward, read by backward; gathered parameters not counted.
  int64_t bytes_kept() const {
    std::unordered_set<const Value*> kept;
    for (const auto& op : graph_.ops())
      if (op->section == Section::Bwd)
        for (const Value* operand : op->operands)
          if (operand && ir::is_forward(ir::storage_of(operand)->producer()->section))
            kept.insert(ir::storage_of(operand));
    int64_t bytes = 0;
    for (const Value* storage : kept)
      if (!is_given(storage) && !param_of(storage)) bytes += storage->type().bytes();
    return bytes;
  }

  bool is_kept_op(const Op& op) {
    const bool is_again = op.is("all_gather", "all_to_all_v", "permute");
    return (ir::is_collective(op) && !is_again) || op.is("add_parts") || list_.keeps(op, products_);
  }

  // By which offsets a rank has its rows: what backward makes of rows that are kept has to be by the same ones. And which experts a token
  // has chosen: some bytes a token, where scores that differ in one bit would send its gradient to others.
  void keep_routing() {
    for (const auto& op : graph_.ops())
      if (op->is("own_rows", "spread_rows", "own_ends", "all_to_all_v"))
        again_.erase(ir::storage_of(op->operands.back()));
      else if (op->is("aten.topk"))
        for (const auto& result : op->results()) again_.erase(result.get());
  }

  void find_last_reads() {
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = *graph_.ops()[i];
      for (const Value* operand : op.operands) {
        if (!operand) continue;
        const Value* storage = ir::storage_of(operand);
        if (ir::is_forward(op.section)) last_read_[storage] = i;
        if (op.section == Section::Bwd) read_by_backward_.insert(storage);
      }
    }
    for (const Value* output : graph_.outputs) last_read_[ir::storage_of(output)] = graph_.ops().size();
    for (const ir::Carry& carry : graph_.carries) last_read_[ir::storage_of(carry.next)] = graph_.ops().size();
  }

  // Memory that the block makes for itself alone: what later blocks are given is kept.
  bool is_own(const Value* value, const Block& block) const {
    const auto read = last_read_.find(value);
    return ir::storage_of(value) == value && (read == last_read_.end() || read->second <= block.last);
  }

  // Mode full: all of it is made again; op: what no op of the list has made.
  void choose(const Block& block) {
    products_ = 0;
    for (size_t i = block.first + 1; i <= block.last; ++i) {
      const Op& op = *graph_.ops()[i];
      if (!ir::is_forward(op.section)) continue;
      // Where backward gathers no parameter again, those that forward has gathered stay.
      if (op.is("all_gather") && is_materialisation(op)) continue;
      if (options_.mode == RematMode::Op && is_kept_op(op)) continue;
      // What a block is given may be reduced after the last read before it, such as embeddings whose table tp cuts. A gather makes
      // more of it: that is made again.
      const bool is_outside = !op.module_path.empty() && ir::block_of(op.module_path) != block.name;
      if (is_outside && ir::is_collective(op) && op.result()->type().bytes() <= op.operands[0]->type().bytes())
        continue;
      for (const auto& result : op.results())
        if (is_own(result.get(), block)) again_.insert(result.get());
    }
  }

  // In order; parameters and their gathers are none of it.
  std::vector<const Value*> own_of(const Block& block) const {
    std::vector<const Value*> own;
    for (size_t i = block.first + 1; i <= block.last; ++i) {
      const Op& op = *graph_.ops()[i];
      if (!ir::is_forward(op.section) || is_materialisation(op)) continue;
      for (const auto& result : op.results())
        if (!is_given(result.get()) && is_own(result.get(), block)) own.push_back(result.get());
    }
    return own;
  }

  // The value of a repeated op, which is put before `before` unless it was repeated already.
  Value* repeat(Value* value, Op* before) {
    Op* op = value->producer();
    auto found = clones_.find(op);
    if (found == clones_.end()) {
      std::vector<Value*> operands;
      for (Value* operand : op->operands)
        operands.push_back(operand && again_.contains(ir::storage_of(operand)) ? repeat(operand, before) : operand);
      std::vector<Graph::NewResult> results;
      for (const auto& result : op->results()) results.push_back({result->name() + ".again", result->type()});
      Op* clone = build_.before(before)
                      .in(Section::Bwd)
                      .at(op->module_path)
                      .again(*op, std::move(operands), std::move(results));
      found = clones_.emplace(op, clone).first;
      if (ir::aliased_operand(*op) < 0)
        for (const auto& result : op->results()) bytes_not_kept_ += result->type().bytes();
    }
    return found->second->result(value->result_index());
  }

  Graph& graph_;
  RematOptions options_;
  RematList list_;
  ir::Builder build_;
  std::unordered_set<const Value*> again_;              // storages of forward that backward makes itself
  std::unordered_map<const Value*, size_t> last_read_;  // by forward, of storages; the end for what the step leaves
  std::unordered_set<const Value*> read_by_backward_;   // storages, before anything is repeated
  std::unordered_map<Op*, Op*> clones_;
  size_t blocks_ = 0;
  int64_t products_ = 0, bytes_not_kept_ = 0;
};

}  // namespace

std::string to_string(RematMode mode) { return word_of(kModes, mode); }

const std::vector<Field<RematOptions>>& RematOptions::fields() {
  static const std::vector<Field<RematOptions>> kFields = {
      field("mode", &RematOptions::mode, kModes, "none, full, op or memory_budget"),
      field("every", &RematOptions::every, {1, 1000}, "only every k-th block"),
      field("blocks", &RematOptions::blocks, {}, "paths of the only blocks that are computed again, with commas"),
      field("mm_again", &RematOptions::mm_again, {0, 1000},
            "op: every k-th product of a block is computed again too; 0: none"),
      field("mm_again_of", &RematOptions::mm_again_of, {},
            "op: products of these modules, and of their shapes, are computed again"),
      field("save", &RematOptions::save, {}, "op: ops and modules that are kept instead of products and attention"),
      field("memory_budget", &RematOptions::memory_budget, {0, 1},
            "memory_budget: share of the bytes kept between full (0) and none (1)"),
      field("flops_per_byte", &RematOptions::flops_per_byte, {0, 1e6},
            "memory_budget: work of a byte that is written again, in flops of a product"),
  };
  return kFields;
}

void expect_repeated(const Graph& graph, const std::unordered_set<const Value*>& not_kept,
                     const std::unordered_set<const Op*>& repeated) {
  ir::OpTable<size_t> needed_by(graph);  // the last group, from the end, that reads it
  size_t group = 1;                      // an op that is not repeated, with those before it that are
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = *graph.ops()[i];
    const bool again = repeated.contains(&op);
    SFSDP_CHECK(!again || (op.section == Section::Bwd && needed_by[&op] == group), "remat: %", op.result()->name(),
                " in ", ir::to_string(op.section), " is repeated before what needs it");
    if (!again) ++group;
    for (const Value* operand : op.operands) {
      if (!operand) continue;
      needed_by[operand->producer()] = group;
      SFSDP_CHECK(op.section != Section::Bwd || !not_kept.contains(ir::storage_of(operand)), "remat: ", op.opcode, " %",
                  op.result()->name(), " reads %", operand->name(), ", which is not kept");
    }
  }
}

bool remat(Graph& graph, const RematOptions& options, PassContext& ctx) {
  if (options.mode == RematMode::None) return false;
  if (!(options.memory_budget >= 0 && options.memory_budget <= 1))
    throw UserError(
        concat("RematOptions::memory_budget = ", options.memory_budget, "\n  expected a number from 0 to 1"));
  SFSDP_CHECK(options.every >= 1 && options.mm_again >= 0, "every ", options.every, ", mm_again ", options.mm_again);
  for (const auto& op : graph.ops())
    if (ir::is_start(*op) && ir::is_forward(op->section))
      throw UserError(
          concat("pass remat: ", op->opcode, " %", op->result()->name(),
                 " starts in forward\n  expected collectives that block; run the pass before split_collectives"));
  if (options.mode == RematMode::Op) check_save_names(graph, options);
  return RematRewriter(graph, options).run(ctx);
}

}  // namespace sfsdp::passes
