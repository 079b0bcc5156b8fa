// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace sfsdp {

const char* version();  // "0.1.0"

}  // namespace sfsdp
