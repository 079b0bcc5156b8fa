// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/region_call.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/models/exported/autocast.h"
#include "sfsdp/models/exported/exported_graph.h"
#include "sfsdp/models/exported/scalar_types.h"

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
  struct Autocasts {
    bool on = false;
    std::optional<c10::ScalarType> lower;
  };
  std::optional<Autocasts> autocasts = std::nullopt;  // nullopt: as around it
};

Region autocast_of(const Node& node) {
  const auto at = [&](size_t place) -> const exported::Argument& { return node.inputs[place].value; };
  Region region{.graph = 4};
  const bool is_on = flag_at(node, 2);
  const auto* device = std::get_if<std::string>(&at(0));
  const bool is_cpu = device && *device == "cpu";
  if (is_cpu) region.autocasts.emplace();
  if (!is_on) return region;  // that of another device says nothing here
  if (!is_cpu)
    refuse(node, concat("is torch.autocast of device ", device ? quote_safe(*device) : "without a name"),
           "torch.autocast(\"cpu\", …), whose list of ops is that of the device that trains here; or export"
           " model.to(torch.bfloat16) without it");
  const auto* dtype = std::get_if<exported::DTypeArgument>(&at(1));
  if (!dtype && !std::holds_alternative<exported::NoneArgument>(at(1)))
    refuse(node, "has no dtype at place 1", "the arguments of torch 2.11 to 2.15");
  if (dtype && dtype->dtype != ir::DType::bf16 && dtype->dtype != ir::DType::f16)
    refuse(node, concat("is torch.autocast to ", to_string(dtype->dtype)),
           "bfloat16 or float16, as PyTorch has it on a CPU");
  region.autocasts->on = true;
  if (dtype) region.autocasts->lower = scalar_type_of(dtype->dtype);
  return region;
}

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
    std::optional<Autocast> autocast;
    if (region_.autocasts) autocast.emplace(region_.autocasts->on, region_.autocasts->lower);
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
  if (node.target.ends_with(".wrap_with_autocast")) return std::make_unique<RegionCall>(node, autocast_of(node));
  // What is kept for backward is decided here for the whole step: activation_checkpoint.
  if (node.target.ends_with(".tag_activation_checkpoint"))
    return std::make_unique<RegionCall>(node, Region{.graph = 0});
  return nullptr;
}

}  // namespace sfsdp::models
