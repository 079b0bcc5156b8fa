// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp calibrate [--config F] [--ranks N] [--out F]`: measures this machine and writes a machine file for simulate.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

// Starts N ranks of itself as `sfsdp launch` does, which measure together; rank 0 writes the file. Returns the exit code.
int run_calibrate(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
