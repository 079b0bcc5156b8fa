// SPDX-License-Identifier: BSD-3-Clause
// What a captured step hands from module to module, in float64 in the interpreter: on one rank with the whole batch, and on the ranks of a
// mesh that has cut it. Both are compared value by value, not by what a step returns alone.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/capture/capture_step.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/models/init.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp::testing {

// Samples and tokens of a rank's batch. No other dimension of the models that are compared has 16, nor 32, elements: so the sequence is told by its size.
inline constexpr int64_t kBorderRows = 2, kBorderSequence = 16;

// How a mesh lays out a sequence and samples, beside what types say.
struct StepLayout {
  DeviceMesh mesh;
  bool balanced = false;      // chunks from head and tail over cp
  AxisList data_axes = {};    // of size 2 or more: their ranks have other samples
  int64_t micro_batches = 1;  // of a step
  int64_t sorted_rows = 0;    // of a mixture: as many copies of a rank's tokens are sorted by their experts

  int64_t data_ranks() const { return data_axes.empty() ? 1 : mesh.group_size(data_axes); }
  // The batch has so many parts, one after the other, of which a rank has one in a micro-batch.
  int64_t parts() const { return data_ranks() * micro_batches; }
  int64_t part(int64_t rank, int64_t micro_batch) const {
    return micro_batch * data_ranks() + (data_axes.empty() ? 0 : mesh.group_rank(rank, data_axes));
  }
};

struct WholeStep {
  ir::Graph graph;  // as captured
  std::vector<at::Tensor> constants;
  ir::interp::Inputs given;
  std::map<std::string, ir::interp::Array> borders;  // by the value's name, as parallel::name_ops leaves it
  std::vector<std::string> outputs;                  // of these
};

// The step of a model of 28 ids on made-up weights, run on one rank.
WholeStep run_whole(ir::Graph captured, std::vector<at::Tensor> constants);

template <class Make>
WholeStep whole_of(Make make, int64_t rows = kBorderRows) {
  auto model = meta_init(make);
  const auto state = capture::take_state(*model);
  const auto loss = [&](const Batch& b) { return capture::LossValue{loss_of(model, b), {}}; };
  auto captured = capture::capture_step(*model, state, loss, tokens(0, 0, rows, kBorderSequence), {});
  return run_whole(std::move(captured.graph), std::move(captured.constants));
}

// A captured step as it was cut: by model axes, then by data axes.
struct PlacedStep {
  ir::Graph graph;
  std::vector<at::Tensor> constants;
  std::map<std::string, ir::Type> boxes;  // of parameters by model axes alone
};

struct Compared {
  size_t values = 0, cut = 0;
  size_t gone = 0;      // values of the whole that the parts have under no name
  size_t sorted = 0;    // values in the order of experts, another one in each data rank's samples: not compared
  size_t summands = 0;  // of the last micro-batch, where there are several, such as its loss: not compared
  double most = 0;      // difference of a value, beside its largest number
  std::string worst;    // the value that has it
};

// Runs the parts and compares each value that the whole hands from module to module. A rank's loss is the mean of its samples, so what it
// makes in backward is as many times larger as there are parts of the batch; what has no samples is a summand of their mean. Where there
// are several micro-batches the last one's values are compared, and gradients, which are of all.
//   whole: with as many times the rows of `placed` as there are parts
Compared compare_borders(const WholeStep& whole, const PlacedStep& placed, const StepLayout& layout);

}  // namespace sfsdp::testing
