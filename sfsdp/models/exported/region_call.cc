// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/region_call.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/models/exported/exported_graph.h"

namespace sfsdp::models {
namespace {

using exported::Node;

[[noreturn]] void refuse(const Node& node, const std::string& what, const std::string& expected) {
  throw UserError(concat(describe(node), " ", what, "\n  expected ", expected));
}

bool flag_at(const Node& node, size_t place) {
  if (place >= node.inputs.size() || !std::holds_alternative<bool>(node.inputs[place].value))
    refuse(node, concat("has no flag at place ", place), "the arguments of torch 2.11 to 2.15");
  return std::get<bool>(node.inputs[place].value);
}

// How a part runs, and where its node has the graph: the arguments after that, as long as they have no names, are the
// graph's inputs.
struct Region {
  size_t graph = 0;
  bool grad = true;  // false: torch.no_grad
};

class RegionCall : public ExportedCall {
 public:
  RegionCall(const Node& node, Region region) : node_(node), region_(region), end_(region.graph + 1) {
    using Graph = std::shared_ptr<const exported::Graph>;
    if (node.inputs.size() <= region.graph || !std::holds_alternative<Graph>(node.inputs[region.graph].value))
      refuse(node, concat("has no graph at place ", region.graph), "the arguments of torch 2.11 to 2.15");
    const auto& graph = *std::get<Graph>(node.inputs[region.graph].value);
    while (end_ < node.inputs.size() && node.inputs[end_].name.empty()) ++end_;
    if (const size_t given = end_ - region.graph - 1; graph.inputs.size() != given)
      refuse(node, concat("has ", given, " inputs"), concat(graph.inputs.size(), ", as its graph has"));
    body_ = std::make_unique<const ExportedGraph>(graph);
  }
  Values run(const Values& values, bool training) const override {
    const at::AutoGradMode mode(region_.grad && at::GradMode::is_enabled());
    Values inputs;
    for (size_t i = region_.graph + 1; i < end_; ++i) inputs.push_back(plain_value(node_.inputs[i].value, values));
    return body_->run(inputs, training);
  }

 private:
  const Node& node_;
  Region region_;
  size_t end_;  // of the graph's inputs
  std::unique_ptr<const ExportedGraph> body_;
};

}  // namespace

std::unique_ptr<const ExportedCall> make_region(const Node& node) {
  if (node.target.ends_with(".wrap_with_set_grad_enabled"))
    return std::make_unique<RegionCall>(node, Region{.graph = 1, .grad = flag_at(node, 0)});
  if (node.target.ends_with(".wrap_with_autocast")) {
    // Which dtype each op runs in is a table of the device that runs; what it says of a CPU is not what it says of a GPU.
    if (flag_at(node, 2))
      refuse(node, "is torch.autocast, which casts op by op and is not trained",
             "a forward without torch.autocast, or with enabled=False: for bfloat16 export model.to(torch.bfloat16)");
    return std::make_unique<RegionCall>(node, Region{.graph = 4});
  }
  // What is kept for backward is decided here for the whole step: activation_checkpoint.
  if (node.target.ends_with(".tag_activation_checkpoint"))
    return std::make_unique<RegionCall>(node, Region{.graph = 0});
  return nullptr;
}

}  // namespace sfsdp::models
