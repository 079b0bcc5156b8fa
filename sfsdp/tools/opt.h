// SPDX-License-Identifier: BSD-3-Clause
// sfsdp opt FILE --pass a,b: IR text in, passes, IR text out.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

// `args`: without program and subcommand. The exit status: 0, 1 for a graph or pass with errors, 2 for wrong usage.
int run_opt(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
