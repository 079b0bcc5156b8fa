// SPDX-License-Identifier: BSD-3-Clause
// One node of an exported graph as something to run. For exported_graph.cc.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "sfsdp/exported/program.h"

namespace sfsdp::models {

using Values = std::vector<c10::IValue>;  // of a graph, by slot

class ExportedCall {
 public:
  virtual ~ExportedCall() = default;
  // What the node gives, an IValue for each of its outputs.
  virtual Values run(const Values& values, bool training) const = 0;
};

// throws: UserError naming what the node is, and a cure
std::unique_ptr<const ExportedCall> make_call(const exported::Node& node);

// "torch.ops.aten.add.Tensor at layers.0 (net.py:12: return x + y)".
std::string describe(const exported::Node& node);

// The value that an argument stands for where no schema says what it is to be.
c10::IValue plain_value(const exported::Argument& argument, const Values& values);

}  // namespace sfsdp::models
