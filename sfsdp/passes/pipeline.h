// SPDX-License-Identifier: BSD-3-Clause
// What happens to a step's graph between capture and plan, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/storage_layout.h"

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
  RematOptions remat = {};
  // Storage of parameters in flat units (bucket); false: each parameter by itself, and copied into buckets (copy_buckets).
  bool flat = true;
  // Of wrap: "manual", "auto" or "search"; the last two count costs on a machine (a file's path).
  std::string wrap = "manual";
  std::string units = {};
  std::string machine = {};
  double memory_gib = 0;  // that a rank may use; 0: all of the machine's
  int64_t micro_batches = 1;
  // Auto and search decide which units stay gathered between forward and backward (pass reshard).
  bool choose_reshard = false;
  // Else the unit that forward reads last is kept, as backward begins with it.
  bool keep_last = true;
  // Parameters whole on every rank from step to step (keep_whole): ZeRO stages 1 and 2.
  bool keep_whole = false;
  int64_t prefetch_depth = 1;
  int64_t prefetch_bytes = 0;  // of gathers in flight at once, besides the one that is needed next; 0: no bound
  std::string prefetch_forward = "before";
  std::string prefetch_backward = "after";
  int64_t sink_depth = 1;
  std::string sink_next = "before";
  std::vector<ExtraPass> extra = {};         // in order; every rank must have the same
  std::vector<std::string> disable = {};     // passes that are left out
  PassObserver observer = {};                // e.g. print_ir
  bool predict = false;                      // what the step takes behind each pass, on `machine` (PassReport)
  Checks checks = Checks::RegisteredPasses;  // the caller verifies what comes out
};

// The published orders, as options of prefetch_gathers and sink_waits: "simplefsdp" (the paper, and the default: a gather
// starts before the wait of the one before it in forward, behind it in backward; a reduction is waited for before the next
// one is filled), "autoparallel" (gathers behind waits in both), "graphtrainer" (gathers before waits in both, a reduction
// waited for behind the next one's start).
//   throws: UserError for another name
void set_order(PipelineOptions& options, const std::string& name);

// Those that move collectives apart from their waits; without them (PipelineOptions::disable) each stands where its
// result is needed.
std::vector<std::string> overlap_passes();

// The passes of a step in order.
//   throws: UserError for an unknown pass, option or anchor, and a disabled pass that another one needs
std::vector<PassCall> pipeline_passes(const PipelineOptions& options, const std::optional<StorageLayout>& layout);

// Rewrites the graph of one rank as data parallelism and the optimizer left it. Training, evaluation and other batch
// shapes go through it one by one.
//   layout: storage that an earlier graph on the same state has decided; decided here, and left here, if it has none
std::vector<PassReport> run_pipeline(ir::Graph& graph, const PipelineOptions& options,
                                     std::optional<StorageLayout>& layout);

}  // namespace sfsdp::passes
