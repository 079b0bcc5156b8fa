// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"

namespace sfsdp {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(
      concat(file, ":", line, ": internal error: expected ", condition, message.empty() ? "" : "; ", message));
}

}  // namespace sfsdp
