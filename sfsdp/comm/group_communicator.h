// SPDX-License-Identifier: BSD-3-Clause
// A communicator of a group of processes, as their world sees it.
#pragma once

#include <atomic>
#include <cstdint>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

using Timeout = std::atomic<int64_t>;  // ms; the world's

class GroupCommunicator : public Communicator {
 public:
  virtual bool shares_memory() const = 0;
  // This rank makes no more calls: who waits for one is told.
  virtual void leave() = 0;
  // A call has failed: the peers are going down too.
  virtual bool is_broken() const = 0;
};

}  // namespace sfsdp::comm
