// SPDX-License-Identifier: BSD-3-Clause
// comm.mode = fake_backend: of how many ranks this one process is rank 0. Torch-free.
#pragma once

#include <cstdint>
#include <functional>

namespace sfsdp::train {

// NGPU, or else WORLD_SIZE, or else 1.
//   variable: of the environment, as std::getenv
//   throws:   UserError where that is no number from 1 to 2^20, or where a launcher has started more than this process
int64_t imagined_ranks(const std::function<const char*(const char*)>& variable);

}  // namespace sfsdp::train
