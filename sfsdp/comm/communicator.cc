// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/communicator.h"

#include <numeric>

namespace sfsdp::comm {

std::shared_ptr<Communicator> CommWorld::all_ranks(const std::string& name) {
  std::vector<int> ranks(static_cast<size_t>(world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(name, ranks);
}

std::shared_ptr<GrowingMemory> CommWorld::make_window(int64_t /*reserved_bytes*/) { return nullptr; }

}  // namespace sfsdp::comm
