// SPDX-License-Identifier: BSD-3-Clause
// Runs the graph of an exported program: each node is one call of LibTorch's dispatcher, in the order of the file.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/exported/program.h"

namespace sfsdp::models {

// A node that is ready to run: its op was found, and each of its arguments has a place in the op's schema.
class ExportedCall;

class ExportedGraph {
 public:
  // `graph` must outlive it.
  //   throws: UserError naming the node's op, module and Python line: an op that is not known, or not trained
  explicit ExportedGraph(const exported::Graph& graph);
  ~ExportedGraph();
  ExportedGraph(ExportedGraph&&) noexcept;

  // inputs: one for each of the graph's. Returns its outputs: tensors, numbers, lists, None.
  //   training: false takes dropout out and has batch norm read its running statistics
  //   throws: UserError naming the node as above, and what its op said
  std::vector<c10::IValue> run(std::span<const c10::IValue> inputs, bool training) const;

 private:
  const exported::Graph& graph_;
  std::vector<std::unique_ptr<const ExportedCall>> calls_;
};

// Why an op is not captured, by its name and overload ("aten::relu", ""), with what to do; "": it is.
using WhyNotCaptured = std::function<std::string(const std::string& name, const std::string& overload)>;

// Why each node that cannot be run or captured here cannot, a text for each kind of op; none: all can, as far as may be seen
// without running any. What is computed of constants alone need not be captured; regions are not looked into.
//   constants: inputs of the graph that are constant tensors
std::vector<std::string> reasons_against(const exported::Graph& graph, const std::set<exported::Slot>& constants,
                                         const WhyNotCaptured& why_not_captured);

}  // namespace sfsdp::models
