// SPDX-License-Identifier: BSD-3-Clause
// Whether the kernels that a graph names (kernel=N, by the pass `fuse`) can exist: written from what ops read, without
// the pass's own bookkeeping.
#pragma once

#include <span>
#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// "" or what is wrong: an op without a kernel, ops of one that do not stand together or share no work, or one that reads in
// a kernel what another row, column or block of it makes. A graph in which no op names a kernel is sound.
std::string check_kernels(const ir::Graph& graph);

// "" or what is wrong where the kernel of these ops writes `written` over the memory of `read`: an op that reads elements
// at other places than those at which it writes, outside of rows that it has read whole.
std::string check_written_over(std::span<const ir::Op* const> kernel, const ir::Value& read, const ir::Value& written);

}  // namespace sfsdp::plan
