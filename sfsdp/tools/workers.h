// SPDX-License-Identifier: BSD-3-Clause
// Threads that share out independent work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

// --threads; without it one per core.  throws: UserError
int64_t threads_of(const Request& request);

// Calls body(0) to body(count - 1), each once, the next one by whichever thread is free. What a call throws is thrown here
// once all threads have ended; later calls are then left out.
void on_threads(int64_t threads, size_t count, const std::function<void(size_t)>& body);

}  // namespace sfsdp::tools
