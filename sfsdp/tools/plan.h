// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp plan`: the finished plan of a config's step as text, verified; why its buckets are as they are.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

int run_plan(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
