// SPDX-License-Identifier: BSD-3-Clause
// What the flight records of the ranks say together: who holds up whom, and in which collective.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/comm/flight_recorder.h"

namespace sfsdp::comm {

// The records of a folder: every file whose name ends in a number and ".json", whatever stands in front of it.
//   throws: UserError for a folder without any, or naming a file that is none
std::vector<FlightRecord> read_flight_records(const std::string& folder);

// In words: why each record was written; for every group in which somebody waits, the collective (name, module path, sequence,
// bytes), who is in it, who came late and who never entered it; calls that differ; and at last the ranks that hold up all
// others, or those that wait for each other.
//   records: of one run, one per rank, at least one; ranks without one are named
std::string explain_flight(const std::vector<FlightRecord>& records);

// "0-3, 7": at most 12 pieces, then how many ranks more.
std::string rank_list(std::vector<int> ranks);

}  // namespace sfsdp::comm
