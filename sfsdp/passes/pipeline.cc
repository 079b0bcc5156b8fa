// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pipeline.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/passes/bucket.h"
#include "sfsdp/passes/chunk_loss.h"
#include "sfsdp/passes/dead_code.h"
#include "sfsdp/passes/prefetch_gathers.h"
#include "sfsdp/passes/reshard.h"
#include "sfsdp/passes/sink_waits.h"
#include "sfsdp/passes/split_collectives.h"
#include "sfsdp/passes/wrap.h"

namespace sfsdp::passes {

namespace {

bool has_backward(const ir::Graph& graph) {
  return std::ranges::any_of(graph.ops(), [](const auto& op) { return op->section == ir::Section::Bwd; });
}

}  // namespace

void run_pipeline(ir::Graph& graph, const PipelineOptions& options, std::optional<StorageLayout>& layout) {
  PassContext ctx;
  // Results that nobody reads, such as statistics of a kernel's that backward does not need.
  dead_code(graph, ctx);
  // Logits for a part of the tokens at a time; forward's copy of the weight is then read by nobody.
  if (chunk_loss(graph, {.chunks = options.loss_chunks}, ctx))
    dead_code(graph, ctx);
  else if (options.loss_chunks > 1 && has_backward(graph))
    throw UserError(concat("loss_chunks = ", options.loss_chunks, ": no loss of this model can be cut into chunks",
                           "\n  expected a linear layer without bias, then cross entropy over at least that many"
                           " tokens, and logits that nothing else reads; set loss_chunks = 1"));
  // What backward computes again instead of reading it.
  remat(graph, options.remat, ctx);
  if (options.flat) {
    // Which parameters form a unit.
    if (!layout) {
      std::optional<cost::Machine> machine;
      if (!options.machine.empty()) machine = cost::load_machine(options.machine);
      wrap(graph,
           {.units = options.units,
            .mode = options.wrap,
            .machine = machine ? &*machine : nullptr,
            .memory_bytes = static_cast<int64_t>(options.memory_gib * 1073741824.0),
            .micro_batches = options.micro_batches,
            .choose_reshard = options.choose_reshard},
           ctx);
    }
    reshard(graph, ctx);
    // One flat shard, gather, reduction and update per unit.
    bucket(graph, {.layout = layout ? &*layout : nullptr}, ctx);
    if (!layout) layout = storage_layout_of(graph);
  }
  if (options.reorder) {
    // Start and wait of each collective, to be moved apart.
    split_collectives(graph, ctx);
    // Gathers start under the compute of earlier units.
    prefetch_gathers(
        graph,
        {.depth = options.prefetch_depth, .forward = options.prefetch_forward, .backward = options.prefetch_backward},
        ctx);
    // Reductions are waited for at the next one.
    sink_waits(graph, {.depth = options.sink_depth, .next = options.sink_next}, ctx);
  }
}

}  // namespace sfsdp::passes
