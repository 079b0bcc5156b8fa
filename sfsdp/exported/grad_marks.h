// SPDX-License-Identifier: BSD-3-Clause
// What a graph says of gradients beside its ops: which blocks ran in torch.utils.checkpoint, and which parameters are read
// under torch.no_grad alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sfsdp/exported/program.h"

namespace sfsdp::exported {

// Paths of the blocks with parameters ("model.layers.3") of which a node ran in torch.utils.checkpoint, each once, in
// the order of the graph. torch.export itself drops the mark; python/sfsdp_export.py keeps it.
std::vector<std::string> checkpointed_blocks(const Contents& program);

// Places in program.state of the parameters that the graph reads, though never where gradients are on: backward does not
// reach them. torch.utils.checkpoint with use_reentrant=True is exported so, also what comes after it.
std::vector<size_t> parameters_without_grad(const Contents& program);

}  // namespace sfsdp::exported
