// SPDX-License-Identifier: BSD-3-Clause
// What:   cuts a captured step over a model axis: parameters as the user named them, the sequence, or the batch and experts, and all
//         that follows from it.
// Why:    a rank holds and computes its part of every wide product; forward, backward and gradients are one graph, so one walk
//         places them all.
// How:    each op is asked, in order, in which ways its row lets it be cut, given how its operands lie; the way that sends
//         least is taken (over a tensor axis with what later ops then send: rollout.h), and the collectives that it needs go in
//         front of it. Then all sizes become a rank's own.
// Needs:  a graph from capture, of global sizes; canonical ops, as their rows say more than those of the ops they stand for.
// Leaves: every value's placement on the axis in its type; gradients placed as their parameters, or summands of these; outputs
//         whole. What plan/verify/layouts.h proves of the final program.
// Source: DTensor's placements; the rules are the access maps' (ir/access.h), proved by execution.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/expert_parallel.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

// What a cut has put into the graph.
struct PartitionReport {
  // A value that is made to lie otherwise, by a collective or a copy of a rank's part (own_part), and what wants it so: an op, a constraint.
  struct Move {
    std::string opcode, path, reader, reader_path;
    ir::Section section = ir::Section::Fwd;
    int64_t bytes = 0;      // of the whole value
    std::string cure = {};  // what a user may say to have it stay; "": nothing is known
  };
  std::vector<Move> moves;
  // The result of a module, as the user wants it (Constraint); opcode and path say what makes it.
  struct Constrained {
    std::string path, opcode, constraint, from, to;
  };
  std::vector<Constrained> constrained;
  std::map<std::string, Shard> cuts;  // of a tensor axis, by the rules
};

//   cuts:    which dimension of which parameters, by name (separate_blocks.h, find_experts)
//   context: not nullptr: the axis cuts tokens, the sequence of the batch or, an expert axis, the batch itself (sequence_dims says which
//           dimension that is); of parameters only experts
//   inner:   ranks of the axis that will cut heads within what this one cuts
//   expert:  how tokens come to experts
//   throws: UserError naming op and module path where a cut value meets an op of which nothing says how it may be cut, where heads
//           are to be exchanged that the ranks do not divide, and for a constraint that cannot hold (constraints.h)
PartitionReport partition(ir::Graph& graph, const MeshAxis& axis, const std::map<std::string, int64_t>& cuts,
                          const TensorParallelOptions& options = {}, const ContextParallelOptions* context = nullptr,
                          int64_t inner = 1, const ExpertParallelOptions& expert = {});

}  // namespace sfsdp::parallel
