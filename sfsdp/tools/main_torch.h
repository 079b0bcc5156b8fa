// SPDX-License-Identifier: BSD-3-Clause
// The commands that need LibTorch. `sfsdp` holds main_exec.cc, which becomes `sfsdp-torch`, a binary in the same folder;
// that one, and an sfsdp built without LibTorch, hold main_torch.cc.
#pragma once

#include <string>
#include <vector>

namespace sfsdp::tools {

// train, inspect, plan, simulate, calibrate, doctor, export without --archive.
//   args: after the command's name
//   returns: the exit status; main_exec.cc returns only where sfsdp-torch cannot be started, with a message
int run_with_torch(const std::string& name, const std::vector<std::string>& args);

}  // namespace sfsdp::tools
