// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/version.h"

namespace sfsdp {

const char* version() { return SFSDP_VERSION; }

}  // namespace sfsdp
