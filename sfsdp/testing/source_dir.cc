// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::testing {

const std::string& source_dir() {
  static const std::string kDir = SFSDP_SOURCE_DIR;  // defined in CMakeLists.txt
  return kDir;
}

}  // namespace sfsdp::testing
