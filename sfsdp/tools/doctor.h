// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp doctor`: what this machine has that a run needs, and how to get what is missing.
#pragma once

#include <iosfwd>

namespace sfsdp::tools {

int run_doctor(std::ostream& out);

}  // namespace sfsdp::tools
