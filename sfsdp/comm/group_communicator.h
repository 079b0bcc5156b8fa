// SPDX-License-Identifier: BSD-3-Clause
// A communicator of a group of processes, as their world sees it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

using Timeout = std::atomic<int64_t>;  // ms; the world's

class GroupCommunicator : public Communicator {
 public:
  explicit GroupCommunicator(CallSite site) : site_(std::move(site)) {}

  int rank() const final { return site_.rank; }
  int size() const final { return static_cast<int>(site_.ranks.size()); }
  const std::string& name() const final { return site_.group; }

  virtual bool shares_memory() const = 0;
  // This rank makes no more calls: who waits for one is told.
  virtual void leave() = 0;
  // A call has failed: the peers are going down too.
  virtual bool is_broken() const = 0;

 protected:
  const CallSite& site() const { return site_; }

 private:
  CallSite site_;
};

}  // namespace sfsdp::comm
