// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/cpu/choose_device.h"

#include "sfsdp/base/check.h"
#include "sfsdp/device/cpu/threaded_device.h"

namespace sfsdp::device {

std::string_view lanes_for(const Cores& cores) {
  return cores.ranks > 1 && cores.count / cores.ranks > cores.threads ? "threads" : "inline";
}

MakeDevice cpu_device(std::string_view lanes, const Cores& cores) {
  if (lanes == "auto") lanes = lanes_for(cores);
  SFSDP_CHECK(lanes == "inline" || lanes == "threads", "lanes: ", lanes);
  return lanes == "threads" ? make_threaded_device : MakeDevice();
}

}  // namespace sfsdp::device
