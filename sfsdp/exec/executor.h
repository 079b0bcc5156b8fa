// SPDX-License-Identifier: BSD-3-Clause
// What runs a step's graph: the reference executor, op by op, or the planned one, as its plan says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// Communicators by axis key: "dp_shard", or "dp_replicate,dp_shard" for an ordered list.
using Groups = std::map<std::string, std::shared_ptr<comm::Communicator>, std::less<>>;
std::string axis_key(const ir::Attr& axis);

// How random ops draw. Counter: a pure function of (seed, step, micro-batch, op, element), the default. Eager: ATen's
// ordered generator, so that a captured step can be compared with eager LibTorch bit for bit.
enum class Rng : uint8_t { Counter, Eager };

// Everything that a step takes from the host besides its batch.
struct StepScalars {
  double lr = 0;
  int64_t step = 1;  // from 1
  uint64_t seed = 0;
  int64_t micro_batch = 0;  // set by the executor
};

// This rank's place among the ranks that read different samples: random ops number their elements with it.
struct DataPosition {
  int64_t rank = 0;
  int64_t size = 1;
};

// Where the time of one run went; together all of it.
struct RunSeconds {
  double forward_backward = 0;  // sections fwd, loss and bwd
  double update = 0;            // clip and opt
  double communication = 0;     // in collectives of any section, which block here: waiting for other ranks too
};

// Called with an op and its results.
using OnOp = std::function<void(const ir::Op&, const std::vector<at::Tensor>&)>;

class Executor {
 public:
  virtual ~Executor() = default;

  // Parameters, moments, buffers and counters by the name of their param/state op; carried from step to step.
  std::map<std::string, at::Tensor, std::less<>> state;

  // Runs one step over the micro-batches (each: the graph's batch inputs, in order). Returns the graph's outputs, then what else
  // was asked for.
  virtual std::vector<at::Tensor> run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                                      const StepScalars& scalars) = 0;
  // How long the parts of the last run took.
  virtual const RunSeconds& seconds() const = 0;
  // The graph whose ops it runs.
  virtual const ir::Graph& graph() const = 0;

  // Called after each op of graph() with its results, for debugging and tests.
  OnOp on_op;
};

}  // namespace sfsdp::exec
