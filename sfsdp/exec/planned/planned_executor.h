// SPDX-License-Identifier: BSD-3-Clause
// Runs a plan as its text says: each value at its address, kernels and collectives on the plan's lanes, which wait for each other by its
// edges alone (device/). Ops of LibTorch and sfsdp's own compute, so that the results are those of the reference executor to the bit,
// where the plan names no other kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/device/device.h"
#include "sfsdp/exec/executor.h"
#include "sfsdp/exec/planned/rank_memory.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::exec {

// The state of a run where the plan has it, by name: zeros, where nothing has been written yet. The tensors keep `memory`.
//   rank: of the mesh
// throws: UserError where there is less memory than the plan needs
std::map<std::string, at::Tensor, std::less<>> state_in_place(const plan::StepPlan& plan, int64_t rank,
                                                              const std::shared_ptr<RankMemory>& memory);

class PlannedExecutor : public Executor {
 public:
  //   plan: must outlive the executor, and be made with the state of its run (StorageLayout)
  //   rank: of the mesh
  //   memory: of all plans of the run on this rank
  //   more: values that run() returns after the graph's outputs
  //   make_device: what runs the lanes; none: all of them on the thread that calls run()
  // throws: UserError where there is less memory than the plan needs
  PlannedExecutor(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants, const Groups& groups,
                  DataPosition position, int64_t rank, Rng rng, std::shared_ptr<RankMemory> memory,
                  const std::vector<const ir::Value*>& more = {}, const device::MakeDevice& make_device = {});
  ~PlannedExecutor() override;

  // State that lies elsewhere is copied to its address first; after it, `state` has what lies there.
  std::vector<at::Tensor> run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                              const StepScalars& scalars) override;
  const RunSeconds& seconds() const override;
  // The plan's.
  const ir::Graph& graph() const override;
  // What the last run copied into buckets and out of them.
  const plan::CopiedBytes& copied_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sfsdp::exec
