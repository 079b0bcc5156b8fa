// SPDX-License-Identifier: BSD-3-Clause
// A step under observation: profiling.* writes when its ops ran, debug.nan what was wrong with one that gave no number.
//
//   <dump_folder>/nan-step-12/config.toml                rank 0: what reproduces the run
//   <dump_folder>/nan-step-12/rank-3/batch.safetensors   all micro-batches: "0.inputs.1" is tensor 1 of micro-batch 0
//   <dump_folder>/nan-step-12/rank-3/state.safetensors   what this rank holds, as checkpoints name it: "w[128:256]"
//   <dump_folder>/nan-step-12/rank-3/report.json         loss, norm, lr, seed, what this rank found
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/step/step.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/op_trace.h"
#include "sfsdp/train/profile_table.h"

namespace sfsdp::train {

// One rank's. With debug.nan it holds copies of the buffers that a step writes in forward, as they were before it.
// Parameters and moments need none: a norm that is not finite updates nothing.
class WatchedStep {
 public:
  //   world: may be null for one rank
  //   say:   takes lines for the log
  WatchedStep(const JobConfig& config, std::shared_ptr<Program> program, comm::CommWorld* world,
              std::function<void(const std::string&)> say);

  // Runs the step. At the first one whose loss or norm is not finite, debug.nan = dump writes the files and runs it twice
  // more, on all ranks: to find the op, and for what it read. The state is left as the step left it, unless the norm was
  // finite: then the step was applied, and what is dumped is the state after it.
  //   throws: UserError if a file of debug.nan cannot be written
  StepResult run(Step& step, const std::vector<Batch>& micro_batches);

  // After the last step of a run of which profiling.* kept steps: writes their table beside the last trace and returns it, ""
  // where none was kept. All ranks at once, as it measures how fast they copy.
  //   peak_flops: of this rank in products, 0 if not known
  std::string profile(double peak_flops);

 private:
  StepResult run_traced(Step& step, const std::vector<Batch>& micro_batches);
  void keep_trace(int64_t step);
  int64_t rank() const { return world_ ? world_->rank() : 0; }
  void keep_buffers(const Step& step, const Batch& batch);
  void explain(Step& step, const std::vector<Batch>& micro_batches, const StepResult& result);
  void dump(Step& step, const std::vector<Batch>& micro_batches, const std::string& folder) const;
  void report(const Step& step, const StepResult& result, const std::string& found, const std::string& folder) const;
  // The fault as text; `number` becomes that of its op, the same clock on all ranks.
  std::string replay(Step& step, const std::vector<Batch>& micro_batches, int64_t* number);

  const JobConfig config_;
  std::shared_ptr<Program> program_;
  comm::CommWorld* world_;
  std::function<void(const std::string&)> say_;
  OpTrace trace_;
  ProfileTable table_;
  int64_t traced_ = 0;  // the step whose trace was written last
  std::map<std::string, at::Tensor> buffers_;
  bool explained_ = false;
};

}  // namespace sfsdp::train
