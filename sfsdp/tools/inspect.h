// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp inspect --config F --world N [--graph] [--section.key value …]`: what a config would run, without running it.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

int run_inspect(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
