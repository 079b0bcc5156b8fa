// SPDX-License-Identifier: BSD-3-Clause
// Runs a graph op by op, in its order, canonical ops as the ops of LibTorch that they stand for, and nothing else: the oracle that faster executors are compared with.
#pragma once

#include <memory>
#include <vector>

#include "sfsdp/exec/executor.h"

namespace sfsdp::exec {

class ReferenceExecutor : public Executor {
 public:
  //   more: values that run() returns after the graph's outputs
  ReferenceExecutor(const ir::Graph& graph, const std::vector<at::Tensor>& constants, Groups groups,
                    DataPosition position = {}, Rng rng = Rng::Counter, std::vector<const ir::Value*> more = {});
  ~ReferenceExecutor() override;

  std::vector<at::Tensor> run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                              const StepScalars& scalars) override;
  const RunSeconds& seconds() const override;
  // The graph that it was given, decomposed.
  const ir::Graph& graph() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sfsdp::exec
