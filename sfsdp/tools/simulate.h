// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp simulate --config F --machine M --world N [--execution fused|eager] [--attention flash|vendor] [--jitter x]
// [--trace out.json] [--memory depth] [--json] [--section.key value …]`: what a step of that config would take on that
// machine.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

int run_simulate(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
