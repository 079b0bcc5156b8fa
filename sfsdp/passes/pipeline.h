// SPDX-License-Identifier: BSD-3-Clause
// What happens to a step's graph between capture and plan, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/bucket/reshard.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/canonical/canonicalise.h"
#include "sfsdp/passes/fuse/fuse.h"
#include "sfsdp/passes/fuse/name_kernels.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/bucket_layout.h"

namespace sfsdp::passes {

// A pass that the pipeline does not have, or once more one that it has.
struct ExtraPass {
  std::string name;  // one of ours or registered (register_pass)
  OptionValues options = {};
  enum class Place { Before, After };
  Place place = Place::After;
  std::string anchor;  // a pass of the pipeline, run for this step or not, or an extra one above in the list
};

struct PipelineOptions {
  int64_t loss_chunks = 1;  // of chunk_loss; an error where a step has a backward and no such loss
  CanonicaliseOptions canonical = {};
  RematOptions remat = {};
  // Storage of parameters in flat units (bucket); false: each parameter by itself, and copied into buckets (copy_buckets).
  bool flat = true;
  WrapOptions wrap = {};
  ReshardOptions reshard = {.keep_last = true};
  // Parameters that forward gathers and backward reads, gathered once per step (gather_once): ZeRO stages 1 and 2.
  bool gather_once = false;
  // What does not depend on tokens that travel to experts and back runs meanwhile (cover_exchanges): with an axis ep.
  bool cover_exchanges = false;
  // Keys, values and rows of products travel while attention or products of others are computed (cover_permutes): with RotateMethod::Ring,
  // and asynchronous tensor parallelism.
  bool cover_permutes = false;
  // Gradients of norms and the like are summed over tp by one all_reduce a step (pack_all_reduces): with an axis tp.
  bool pack_all_reduces = false;
  // Rounds after the first of rows for which there is no room at once (further_rounds): with ExpertParallelOptions::capacity.
  bool further_rounds = false;
  PrefetchGathersOptions prefetch = {};
  SinkWaitsOptions sink = {};
  // Linear layers of one activation as one product (join_products), their weights side by side: where the target gains by it.
  bool join_products = false;
  FuseOptions fuse = {};
  NameKernelsOptions kernels = {};
  std::vector<ExtraPass> extra = {};         // in order; every rank must have the same
  std::vector<std::string> disable = {};     // passes that are left out
  PassObserver observer = {};                // e.g. print_ir
  Measure measure = {};                      // of the step before and after each pass (PassReport)
  Checks checks = Checks::RegisteredPasses;  // the caller verifies what comes out
};

// The published orders, as options of prefetch_gathers and sink_waits: "simplefsdp" (the paper, and the default: a gather
// starts before the wait of the one before it in forward, after it in backward; a reduction is waited for before the next
// one is filled), "autoparallel" (gathers after waits in both), "graphtrainer" (gathers before waits in both, a reduction
// waited for after the next one's start).
//   throws: UserError for another name
void set_order(PipelineOptions& options, const std::string& name);

// Those that move collectives apart from their waits; without them (PipelineOptions::disable) each stands where its
// result is needed.
std::vector<std::string> overlap_passes();

// The passes of a step in order.
//   throws: UserError for an unknown pass, option or anchor, and a disabled pass that another one needs
std::vector<PassCall> pipeline_passes(const PipelineOptions& options, const std::optional<plan::BucketLayouts>& layout);

// Rewrites the graph of one rank as data parallelism and the optimizer left it. Training, evaluation and other batch
// shapes go through it one by one.
//   layout: storage that an earlier graph on the same state has decided; decided here, and left here, if it has none
std::vector<PassReport> run_pipeline(ir::Graph& graph, const PipelineOptions& options,
                                     std::optional<plan::BucketLayouts>& layout);

// The same in two halves, for who decides between them which parameters form a unit, and writes it on the params.
std::vector<PassReport> run_before_units(ir::Graph& graph, const PipelineOptions& options);
std::vector<PassReport> run_with_units(ir::Graph& graph, const PipelineOptions& options,
                                       std::optional<plan::BucketLayouts>& layout);

}  // namespace sfsdp::passes
