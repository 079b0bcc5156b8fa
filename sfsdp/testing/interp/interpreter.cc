// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/interp/interpreter.h"

#include <algorithm>
#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/testing/interp/collectives.h"
#include "sfsdp/testing/interp/kernels.h"

namespace sfsdp::ir::interp {
namespace {

bool is_given(const Op& op) { return is_root(op) || op.is("constant"); }

std::string input_name(const Op& op) {
  return op.is("constant") ? concat("constant.", op.attr<int64_t>("index")) : op.attr<std::string>("name");
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::vector<Inputs>& inputs, const RunOptions& options)
      : graph_(graph),
        mesh_(graph.mesh),
        inputs_(inputs),
        options_(options),
        loops_(loops_of(graph)),
        ranks_(static_cast<size_t>(mesh_.world_size())) {
    if (inputs.size() != ranks_) throw UserError(concat("inputs for ", inputs.size(), " ranks; the mesh has ", ranks_));
  }

  RunResult run() {
    run_once([](const Op& op) { return op.section == Section::Init && !op.is("input"); });
    const std::vector<Part> parts = parts_of_step(graph_.micro_batches);
    for (micro_batch_ = 0; micro_batch_ < graph_.micro_batches; ++micro_batch_)
      run_micro_batch(parts[static_cast<size_t>(micro_batch_) + 1]);
    run_once([](const Op& op) { return op.section == Section::Clip || op.section == Section::Opt; });
    for (size_t rank = 0; rank < ranks_; ++rank) {
      RankResult result;
      for (const Value* output : graph_.outputs) result.outputs.push_back(get(output, rank));
      for (const Carry& carry : graph_.carries)
        result.carried.emplace(input_name(*carry.current->producer()), get(carry.next, rank));
      result_.ranks.push_back(std::move(result));
    }
    return std::move(result_);
  }

 private:
  const Array& get(const Value* value, size_t rank) const { return values_.at(value)[rank]; }

  template <class Predicate>
  void run_once(const Predicate& runs) {
    run_ops(runs);
  }

  void run_micro_batch(Part part) {
    adds_ = beta_in(part) == 1 && graph_.micro_batches > 1;
    run_ops([&](const Op& op) { return op.is("input") || runs_in(op, part); });
    if (part == Part::Last) return;
    std::vector<std::pair<const Value*, std::vector<Array>>> carried;  // all at once, as one may be another's next
    for (const Carry& carry : graph_.carries)                          // running statistics go on from one to the next
      if (is_repeated(carry.next->producer()->section)) carried.emplace_back(carry.current, values_.at(carry.next));
    for (auto& [value, arrays] : carried) values_[value] = std::move(arrays);
  }

  template <class Predicate>
  void run_ops(const Predicate& runs) {
    const auto ops = graph_.ops();
    for (size_t i = 0; i < ops.size(); ++i) {
      if (!runs(*ops[i])) continue;
      const auto loop = std::ranges::find(loops_, ops[i].get(), &Loop::begin);
      if (loop == loops_.end()) {
        run_op(*ops[i]);
        continue;
      }
      run_loop(*loop);
      i = loop->last;
    }
  }

  // All ranks make as many trips as the one that makes most; what a rank makes beyond its own number is forgotten. Where a
  // collective is in the body, ranks that meet in it must make as many.
  void run_loop(const Loop& loop) {
    const std::vector<int64_t> trips = trips_of(loop);
    std::vector<std::vector<Array>> carried;  // by value and rank
    for (size_t k = 1; k < loop.begin->operands.size(); ++k) carried.push_back(values_.at(loop.begin->operands[k]));
    for (int64_t trip = 0; trip < *std::ranges::max_element(trips); ++trip) {
      for (size_t k = 0; k < carried.size(); ++k) values_[loop.begin->results()[k].get()] = carried[k];
      for (size_t i = loop.first + 1; i < loop.last; ++i) run_op(*graph_.ops()[i]);
      for (size_t k = 0; k < carried.size(); ++k)
        for (size_t rank = 0; rank < ranks_; ++rank)
          if (trip < trips[rank]) carried[k][rank] = get(loop.end->operands[k], rank);
    }
    for (size_t k = 0; k < carried.size(); ++k) values_[loop.end->results()[k].get()] = std::move(carried[k]);
  }

  std::vector<int64_t> trips_of(const Loop& loop) const {
    std::vector<int64_t> trips;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const double number = get(loop.begin->operands[0], rank).data[0];
      if (!(number >= 0 && number <= static_cast<double>(most_trips(*loop.begin))))
        throw UserError(concat(name_of(*loop.begin), " is to make ", number, " trips on rank ", rank,
                               "\n  expected 0 to ", most_trips(*loop.begin)));
      trips.push_back(static_cast<int64_t>(number));
    }
    for (size_t i = loop.first + 1; i < loop.last; ++i) {
      const Op& op = *graph_.ops()[i];
      if (!is_collective(op)) continue;
      for (size_t rank = 0; rank < ranks_; ++rank)
        for (const int64_t other : mesh_.ranks_of_group(static_cast<int64_t>(rank), *axes_of(op)))
          if (trips[rank] != trips[static_cast<size_t>(other)])
            throw UserError(concat(name_of(op), " meets ", trips[rank], " times on rank ", rank, ", ",
                                   trips[static_cast<size_t>(other)], " times on rank ", other,
                                   "\n  expected as many trips of ", name_of(*loop.begin)));
    }
    return trips;
  }

  void run_op(const Op& op) {
    std::vector<std::vector<Array>> sums;  // of the micro-batches before this one
    if (op.is("accumulate") && adds_) sums.push_back(values_.at(op.result()));
    for (const auto& result : op.results()) values_[result.get()].clear();
    if (is_collective(op)) {
      std::vector<std::vector<const Array*>> operands(op.operands.size());
      for (size_t k = 0; k < operands.size(); ++k)
        for (size_t rank = 0; rank < ranks_; ++rank) operands[k].push_back(&get(op.operands[k], rank));
      std::vector<Array> results = run_collective(mesh_, op, operands);
      for (Array& array : results) store(*op.result(), std::move(array));
      return;
    }
    for (size_t rank = 0; rank < ranks_; ++rank) {
      std::vector<Array> results = is_given(op) ? std::vector<Array>{given(op, rank)} : run_kernel(op, rank);
      if (results.size() != op.results().size())
        throw UserError(concat(op.opcode, " gave ", results.size(), " of ", op.results().size(), " results"));
      if (!sums.empty()) add_to(results[0], sums[0][rank]);
      for (size_t i = 0; i < results.size(); ++i) store(*op.result(static_cast<int>(i)), std::move(results[i]));
    }
  }

  static void add_to(Array& array, const Array& sum) {
    for (size_t i = 0; i < array.data.size(); ++i) array.data[i] += sum.data[i];
  }

  Array given(const Op& op, size_t rank) const {
    const std::string name = op.is("input") ? input_key(input_name(op), micro_batch_) : input_name(op);
    const auto found = inputs_[rank].find(name);
    if (found == inputs_[rank].end()) throw UserError(concat("no input ", name, " for rank ", rank));
    return found->second;
  }

  // The op that the rank runs, on as many rows as it has.
  std::vector<Array> run_by_rank(const Op& op, size_t rank) const {
    std::vector<Array> operands;
    for (const Value* operand : op.operands) operands.push_back(operand ? get(operand, rank) : Array());
    const RankOp local = rank_op(graph_, op, static_cast<int64_t>(rank), operands);
    std::vector<const Array*> in;
    for (size_t k = 0; k < local.op().operands.size(); ++k) in.push_back(op.operands[k] ? &operands[k] : nullptr);
    return run_kernel(local.op(), rank, in);
  }

  std::vector<Array> run_kernel(const Op& op, size_t rank) const {
    if (is_by_rank(op)) return run_by_rank(op, rank);
    std::vector<const Array*> operands;
    for (const Value* operand : op.operands) operands.push_back(operand ? &get(operand, rank) : nullptr);
    return run_kernel(op, rank, operands);
  }

  std::vector<Array> run_kernel(const Op& op, size_t rank, const std::vector<const Array*>& operands) const {
    const Kernel kernel = find_kernel(op.opcode);
    if (!kernel && !options_.other)
      throw UserError(concat("the interpreter has no kernel for ", op.opcode, ", result %", op.result()->name(),
                             "\n  add one to sfsdp/testing/interp/kernels.cc, or use another op in this test"));
    if (!kernel) return options_.other(op, operands);
    const auto axes = axes_of(op);
    const int64_t place = axes ? mesh_.group_rank(static_cast<int64_t>(rank), *axes) : 0;
    const int64_t places = axes ? axis_size(graph_, *axes).value_or(1) : 1;
    HostNumbers host = options_.host;
    host.micro_batch = std::min(micro_batch_, graph_.micro_batches - 1);
    return kernel({.op = op, .operands = operands, .host = host, .axis_rank = place, .axis_ranks = places});
  }

  void store(const Value& value, Array array) {
    const Type& type = value.type();
    std::vector<int64_t> shape = type.shape();
    if (is_by_rank(*value.producer()) && !array.shape.empty() && !shape.empty() && array.shape[0] < shape[0])
      shape[0] = array.shape[0];  // as many rows as there are
    if (array.shape != shape) throw UserError(concat('%', value.name(), " holds ", array, "\n  expected ", type));
    array.dtype = type.dtype;
    const bool rounds = options_.rounding == Rounding::PerOp || !is_floating(type.dtype);
    for (double& x : array.data) {
      if (rounds) x = round_to(type.dtype, x);
      if (std::isfinite(x)) result_.largest = std::max(result_.largest, std::abs(x));
    }
    result_.numbers += array.numel();
    values_[&value].push_back(std::move(array));
  }

  const Graph& graph_;
  const DeviceMesh mesh_;
  const std::vector<Inputs>& inputs_;
  const RunOptions& options_;
  const std::vector<Loop> loops_;
  size_t ranks_;
  int64_t micro_batch_ = 0;
  bool adds_ = false;                                  // to what micro-batches before have added up
  std::map<const Value*, std::vector<Array>> values_;  // one array per rank
  RunResult result_;
};

// The coordinates along the axes on which ranks may hold different values.
std::string place_text(const DeviceMesh& mesh, const Type& type, int64_t rank) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) text += concat(' ', axis, '=', mesh.axis_rank(rank, axis));
  };
  for (const Dim& dim : type.dims) add(dim.split);
  for (const AxisPlacement& placement : type.placements) add(placement.axes);
  return text;
}

}  // namespace

std::string input_key(const std::string& name, int64_t micro_batch) {
  return micro_batch == 0 ? name : concat(name, '@', micro_batch);
}

RankOp rank_op(const Graph& graph, const Op& op, int64_t rank, std::vector<Array>& operands) {
  const DeviceMesh mesh(graph.mesh);
  Coordinates at;
  for (const std::string& axis : coordinate_axes(op)) at[axis] = mesh.axis_rank(rank, axis);
  int64_t rows = 0;
  if (is_counted_in_memory(op)) {
    const double number = operands.back().data.at(0);
    const auto& counted = op.attr<std::vector<int64_t>>("counted");
    const int64_t most = op.operands[static_cast<size_t>(counted[0])]->type().dims[0].size;
    if (!(number >= 0 && number <= static_cast<double>(most)))
      throw UserError(concat(name_of(op), " has ", number, " rows on rank ", rank, "\n  expected 0 to ", most));
    rows = static_cast<int64_t>(number);
    operands.pop_back();
  }
  RankOp local(graph, op, at, rows);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!local.op().operands[k]) continue;
    operands[k].shape = local.op().operands[k]->type().shape();
    operands[k].data.resize(static_cast<size_t>(numel(operands[k].shape)));
  }
  return local;
}

RunResult run(const Graph& graph, const std::vector<Inputs>& inputs, const RunOptions& options) {
  return Interpreter(graph, inputs, options).run();
}

std::vector<Inputs> seeded_inputs(const Graph& graph, uint64_t seed) {
  const DeviceMesh mesh(graph.mesh);
  std::vector<Inputs> inputs(static_cast<size_t>(mesh.world_size()));
  for (size_t rank = 0; rank < inputs.size(); ++rank)
    for (const auto& op : graph.ops()) {
      if (!is_given(*op)) continue;
      const Type& type = op->result()->type();
      const std::string place = place_text(mesh, type, static_cast<int64_t>(rank));
      std::vector<Array> none;
      const Type own =
          is_by_rank(*op) ? rank_op(graph, *op, static_cast<int64_t>(rank), none).op().result()->type() : type;
      for (int64_t m = 0; m < (op->is("input") ? graph.micro_batches : 1); ++m) {
        const std::string name = input_key(input_name(*op), m);
        inputs[rank].emplace(name, seeded(own, seed ^ hash_path(name + place)));
      }
    }
  return inputs;
}

}  // namespace sfsdp::ir::interp
