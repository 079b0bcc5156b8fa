// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/launch.h"

#include <cstdlib>

#include "sfsdp/base/strings.h"

namespace sfsdp::train::checkpoint {
namespace {

// As the lock's file and the manifest hold it, whatever the environment has.
std::string one_line(std::string id) {
  for (char& c : id)
    if (c < ' ' || c > '~') c = '?';
  return id.substr(0, 1000);
}

}  // namespace

Launch launch_from_environment() {
  const auto text_of = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  const std::string id = text_of("TORCHELASTIC_RUN_ID");
  return {id == "none" ? "" : one_line(id), parse_int(text_of("TORCHELASTIC_RESTART_COUNT")).value_or(0) > 0};
}

}  // namespace sfsdp::train::checkpoint
