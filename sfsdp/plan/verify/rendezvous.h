// SPDX-License-Identifier: BSD-3-Clause
// Whether ranks that run these programs would all come to an end: each communicator's collectives meet in order.
#pragma once

#include <functional>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::plan {

// Runs the programs of all ranks of `mesh` with everything but collectives and waits left out. A start never blocks; a
// collective runs when every rank of its group has started it and all earlier ones of that communicator are done; a wait
// and a collective that is no start block until it is done. That the events of all ranks, merged, have no cycle is the
// same as that this run ends.
//   program_of: of a rank; ranks may share one
// Returns "" or what is wrong: which ranks stand where, waiting for what, or which calls that meet differ in kind, type
// or operation.
std::string check_rendezvous(const DeviceMesh& mesh, const std::function<const ir::Graph&(int64_t rank)>& program_of);

}  // namespace sfsdp::plan
