// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of a graph cost on a device: a roofline per kernel, which reads and writes only what crosses its border.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/cost/composites.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// Who issues the kernels that a graph names. Under Eager and Compile the device may have to wait for the host.
enum class Execution : uint8_t {
  Eager,      // the host dispatches each op (fuse scope=none)
  Compile,    // the host issues each kernel (fuse scope=module)
  Reference,  // exec/'s ReferenceExecutor, each kernel issued when the last has ended; collectives block
              // where they start, a wait does nothing
  Fused,      // our plan (fuse scope=all): parameters are views, the step is issued as a whole
};

// Who gathers parameters and reduces gradients, and so what is copied for that, what is kept and on which stream.
enum class System : uint8_t {
  Own,    // what is gathered is the parameters, gradients are packed for their reduction
  Fsdp2,  // PyTorch's fully_shard: hooks gather into a buffer and copy it out into parameters
  Fsdp1,  // PyTorch's FullyShardedDataParallel: hooks gather into flat parameters; their gradients are put together, cast
          // and divided before they are reduced
  Traced,  // SimpleFSDP's and GraphTrainer's graphs of forward and backward: the copies of Fsdp2, no hooks, one stream
};
// Fsdp2 for what PyTorch executes.
System usual_system(Execution execution);

// "eager", "compile", "reference" or "fused"; throws UserError naming them. `key` is what the text was given as.
Execution parse_execution(const std::string& text, const std::string& key);

struct Kernel {
  std::vector<const ir::Op*> ops;  // in order; a wait, where a gathered unit is copied out
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  // on the device
  double host = 0;     // s that the host is busy before the device may begin
  // The part of bytes and seconds that reads what earlier micro-batches have added up.
  double sum_bytes = 0, sum_seconds = 0;
  // beta: ir::beta_in of the micro-batch; 0: there is no sum yet
  double seconds_at(int beta) const { return seconds - (1 - beta) * sum_seconds; }
};

struct KernelTable {
  std::vector<Kernel> kernels;
  // By position of the op in the graph; -1: costs nothing or is a collective. The wait of a gather has a kernel where the
  // gathered unit is copied out.
  std::vector<int> kernel_of;
};

// The kernels of the graph (cost/kernels.h) and what each takes; without a system: as usual_system says.
// With composites, an op that PyTorch runs as several kernels stands in one entry of the table for all of them.
KernelTable price_kernels(const ir::Graph& graph, const Machine& machine, Execution execution, System system,
                          const Composites& composites = {});
KernelTable price_kernels(const ir::Graph& graph, const Machine& machine, Execution execution);

// What kernels do, on whatever machine.
struct KernelWork {
  double flops = 0;
  double bytes = 0;      // read and written: what crosses a kernel's border
  double sum_bytes = 0;  // of them those that read what earlier micro-batches have added up
};
// By kernel.
std::vector<KernelWork> work_of_kernels(const ir::Graph& graph, const Kernels& kernels);

// Bytes that an op reads and writes when it is a kernel of its own.
double bytes_moved(const ir::Op& op);

}  // namespace sfsdp::cost
