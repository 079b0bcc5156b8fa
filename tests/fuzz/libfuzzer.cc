// SPDX-License-Identifier: BSD-3-Clause
// libFuzzer's entry point: which target, says SFSDP_FUZZ in the environment. driver.cc needs no clang.
#include <cstdlib>

#include "sfsdp/base/error.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sfsdp::fuzz::Target* const target = [] {
    const char* name = std::getenv("SFSDP_FUZZ");
    for (const auto& each : sfsdp::fuzz::targets())
      if (name && each.name == name) return &each;
    std::abort();
  }();
  try {
    target->read({reinterpret_cast<const char*>(data), size});
  } catch (const sfsdp::UserError&) {
  }
  return 0;
}
