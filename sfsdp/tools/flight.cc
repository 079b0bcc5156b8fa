// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>

#include "sfsdp/comm/flight_report.h"
#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

int run_flight(const Request& request, std::ostream& out, std::ostream&) {
  out << comm::explain_flight(comm::read_flight_records(request.get("flight")));
  return 0;
}

}  // namespace sfsdp::tools
