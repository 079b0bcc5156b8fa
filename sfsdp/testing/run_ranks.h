// SPDX-License-Identifier: BSD-3-Clause
// Runs a test body on n ranks that are threads of this process.
#pragma once

#include <functional>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::testing {

// Rethrows the first error of any rank; the others' waiting collectives are ended.
void run_ranks(int world_size, const std::function<void(comm::CommWorld&)>& body);

}  // namespace sfsdp::testing
