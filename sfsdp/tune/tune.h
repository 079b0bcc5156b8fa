// SPDX-License-Identifier: BSD-3-Clause
// Chooses by cost what passes then do: which parameters form a unit, their order, what stays gathered, how much of the
// activations is kept. Stands above sim/: choices are simulated, but for the greedy rule's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/passes/pipeline.h"
#include "sfsdp/tune/profile.h"
#include "sfsdp/tune/search.h"

namespace sfsdp::tune {

enum class Wrap : uint8_t {
  Manual,  // units by name
  Auto,    // by the paper's greedy rule (search.h); where its plan misses the memory, with less of it, then by name
  Search,  // by search in the simulator, never slower than Manual and Auto
};

struct TuneOptions {
  Wrap wrap = Wrap::Manual;
  bool choose_reshard = false;  // Auto, Search: also which units stay gathered between forward and backward
  bool choose_remat = false;    // how much is computed again (remat_share.h); PipelineOptions::remat is not read then
  std::string machine = {};     // a machine file, as machines/dgx_h100.toml: needed where a cost is counted
  std::optional<cost::Attention> attention = {};  // the kernel that is called there; none: the file's
  double memory_gib = 0;                          // that a rank may use; 0: the machine's
};

// Bytes that a rank may use: of a machine's without what lies outside of all plans (cost::bytes_outside).
double memory_of(const TuneOptions& tune, const cost::Machine& machine, const std::vector<ir::MeshAxis>& mesh);

// With what passes need of the machine: they read none.
passes::PipelineOptions on_machine(passes::PipelineOptions options, const TuneOptions& tune, const ir::Graph& graph);

// passes::run_pipeline with units chosen as `tune` says; choose_remat is not read. Deterministic: the same on every rank.
//   layout: where it is given, units are its own
//   returns: what each pass did, in order
//   throws: UserError as run_pipeline does; without a machine where one is needed, and where parameters are not stored flat
std::vector<passes::PassReport> run_pipeline(ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune,
                                             std::optional<plan::BucketLayouts>& layout);

// A step up to the choice of its units, and what the passes after it make of a schedule.
class UnitTrials {
 public:
  //   graph: as passes::run_before_units leaves it; outlives this
  UnitTrials(const ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune);

  const StepProfile& profile() const { return profile_; }
  double memory() const { return memory_; }                            // bytes that a rank may use
  const passes::PipelineOptions& options() const { return options_; }  // of the passes after the choice
  passes::StepFigures simulate(const Schedule& schedule) const;

 private:
  const ir::Graph& graph_;
  passes::PipelineOptions options_;
  StepProfile profile_;
  double memory_;
};

// Writes a schedule on the params: unit=, reason=, keep=, and what prefetch_gathers and sink_waits read.
void write_units(ir::Graph& graph, const StepProfile& profile, const Schedule& schedule);

// The schedule that is written on params, flat ones or each by itself; what is not written is as the profile's order has it.
//   param_of: for each parameter of the profile, by name, the param that holds it
Schedule read_units(const StepProfile& profile, const std::map<std::string, const ir::Op*>& param_of);

}  // namespace sfsdp::tune
