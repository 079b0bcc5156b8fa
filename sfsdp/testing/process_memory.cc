// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/process_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::testing {
namespace {

int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":"))
      return *parse_int(trim(line.substr(key.size() + 1, line.size() - key.size() - 4))) * 1024;
  throw UserError("no " + key + " in /proc/self/status\n  expected Linux's");
}

}  // namespace

int64_t growth(const std::function<void()>& body) {
  ::malloc_trim(0);                                           // what is free already would not be counted
  std::ofstream("/proc/self/clear_refs") << 5 << std::flush;  // the peak is what there is now. Source: proc(5)
  const int64_t before = status_bytes("VmRSS");
  SFSDP_CHECK(status_bytes("VmHWM") < before + kMib, "the kernel does not begin a new peak");
  body();
  return status_bytes("VmHWM") - before;
}

}  // namespace sfsdp::testing
