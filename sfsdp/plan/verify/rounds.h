// SPDX-License-Identifier: BSD-3-Clause
// Whether rows for which ranks have no room at once (all_to_all_v room=) are all computed: what the first round leaves is read by a loop
// alone, which runs as often as the offsets say, counts rounds from 1, and adds what the same ops make of the next rounds' rows. Written apart
// from the pass further_rounds.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// "": it is so, or there is room for all rows. Else what is wrong, with what was expected.
std::string check_rounds(const ir::Graph& graph);

}  // namespace sfsdp::plan
