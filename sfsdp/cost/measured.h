// SPDX-License-Identifier: BSD-3-Clause
// What was measured on a machine, op by op and collective by collective, and what it says of sizes in between. A machine
// file may hold such points (`sfsdp calibrate` writes them); the cost model prefers them to its formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// Seconds of one op at one size. Ops of equal `op` and `types` take the same time.
struct MeasuredOp {
  std::string op;     // opcode
  std::string types;  // types_of(op)
  double flops = 0;   // of products and attention, else 0
  double bytes = 0;   // read and written
  double seconds = 0;
  bool operator==(const MeasuredOp&) const = default;
};

// Seconds of one collective of `ranks` ranks on `nodes` nodes; `bytes`: the whole tensor, as in collective_cost.
struct MeasuredCollective {
  std::string kind;
  int64_t ranks = 1;
  double bytes = 0;
  double seconds = 0;
  int64_t nodes = 1;
  bool operator==(const MeasuredCollective&) const = default;
};

// Seconds of one kernel of a plan, as the executor runs it: of its products, the choice that the plan names.
struct MeasuredKernel {
  std::string ops;     // ops_of(kernel)
  double seconds = 0;  // in all micro-batches but the first
  double first = 0;    // in the first one, where there is no sum to add to yet
  bool operator==(const MeasuredKernel&) const = default;
};

struct Measured {
  std::vector<MeasuredOp> ops;
  std::vector<MeasuredKernel> kernels;
  std::vector<MeasuredCollective> collectives;
  bool operator==(const Measured&) const = default;
};

// Seconds over work (flops or bytes) through measured points: exact at a point, a power law between two neighbours
// (a line in log-log), proportional to the work above the largest, the smallest point's seconds below it.
class Curve {
 public:
  // Points of the same work become their geometric mean.
  //   throws: InternalError for work or seconds that are not positive, or no point at all
  explicit Curve(std::vector<std::pair<double, double>> points);
  double at(double work) const;

 private:
  std::vector<std::pair<double, double>> points_;  // by work
};

// "f32[512, 256] f32[256, 64]{1, 256} -> f32[512, 64]": operands and results without names, meshes and states.
std::string types_of(const ir::Op& op);

// "linear f32[512, 256] f32[64, 256] -> f32[512, 64] onednn.matmul; aten.silu ...": opcodes, types and named kernels.
std::string ops_of(const std::vector<const ir::Op*>& kernel);

// Answers for the ops of a graph from a machine's points. The points must outlive it.
class MeasuredOps {
 public:
  explicit MeasuredOps(const Measured& measured);
  // The measured seconds of the same op and types; else from the curve of this opcode (over flops if it has any, else
  // over bytes; products of one dtype share one curve); nothing if none was measured.
  std::optional<double> seconds(const ir::Op& op, double flops, double bytes) const;
  // That kernel of a plan; null where it was not measured. A kernel whose products name no library takes the seconds of one whose
  // products do, if it was not measured itself: the machine has chosen.
  const MeasuredKernel* kernel(const std::vector<const ir::Op*>& ops) const;

 private:
  std::unordered_map<std::string, double> exact_;  // by opcode and types
  std::unordered_map<std::string, Curve> curves_;
  std::unordered_map<std::string, const MeasuredKernel*> kernels_;
};

// Over bytes, of this kind and numbers of ranks and nodes; nothing if none was measured.
std::optional<Curve> measured_collective(const Measured& measured, std::string_view kind, int64_t ranks, int64_t nodes);

}  // namespace sfsdp::cost
