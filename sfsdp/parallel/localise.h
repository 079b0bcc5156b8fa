// SPDX-License-Identifier: BSD-3-Clause
// Makes sizes, strides and attributes of a graph those of one rank, once it is known how values lie: the end of partition.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"

namespace sfsdp::parallel {

// On one axis; a value that is not there is whole.
using Placements = std::unordered_map<const ir::Value*, ir::Placement>;

// How many of its rows a rank has at once, where not all, by the number of their offsets (Placement::rows).
using Rooms = std::map<int64_t, int64_t>;

// "tensor_parallel: ", with which errors about the axis begin.
std::string_view verb_of(std::string_view axis);

// Attributes and strides of an op whose results were resized, its operands before it.
//   whole:  the types of the results before
//   throws: UserError naming op and module path where a result lies in memory in a way that no part of it has
void resize(ir::Op& op, const std::vector<ir::Type>& whole, std::string_view axis);

// Types also name the axis.
//   throws: UserError naming op and module path where a cut value lies in memory in a way that no part of it has
void localise(ir::Graph& graph, const MeshAxis& axis, const Placements& placements, const Rooms& rooms = {});

}  // namespace sfsdp::parallel
