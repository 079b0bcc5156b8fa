// SPDX-License-Identifier: BSD-3-Clause
// report_page.html as text; CMake makes the .cc of it.
#pragma once

#include <string_view>

namespace sfsdp::sim {

std::string_view report_page();

}  // namespace sfsdp::sim
