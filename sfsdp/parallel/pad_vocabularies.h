// SPDX-License-Identifier: BSD-3-Clause
// What:   makes the size of a vocabulary that the ranks do not divide, in rows of tables and heads and in classes of logits, that of as
//         many on each rank: V becomes ranks · ceil(V / ranks).
// Why:    all ranks run one program, of tensors of one size. By torch.chunk's rule rank r then has the rows from r · ceil(V / ranks) on,
//         the last ranks fewer or none; what their tensors have beyond them is padding.
// Leaves: padding that nobody sees. Its weights are 0, as no id asks for it, no class counts it (num_weights=, classes=) and so
//         every gradient of it is 0. vocabulary= of a param is V: what is stored, loaded and saved has as many rows.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::parallel {

// On the whole's sizes, before partition's walk.
//   cuts:   of parameters, by name (find_cuts); those that the ranks do not divide are vocabularies, cut in dimension 0
//   throws: UserError naming op and module path of what reads a padded value otherwise than by lookup, product, elementwise or in a loss
//           in parts
void pad_vocabularies(ir::Graph& graph, const std::map<std::string, int64_t>& cuts, const MeshAxis& axis,
                      bool loss_parallel);

// After the walk: no op is left that would count padding.
//   throws: UserError naming it
void check_padded(const ir::Graph& graph);

}  // namespace sfsdp::parallel
