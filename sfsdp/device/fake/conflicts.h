// SPDX-License-Identifier: BSD-3-Clause
// Whether two lanes may use the same bytes at the same time, one of them writing: by vector clocks, so that it is found whatever the
// order was in which they happened to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/device/device.h"

namespace sfsdp::device {

// By lane, how many of its kernels are known to be over.
using Clock = std::vector<int64_t>;
void join(Clock& clock, const Clock& other);

class Conflicts {
 public:
  struct Access {
    size_t lane = 0;
    int64_t time = 0;  // the number of the kernel on its lane, from 1; 0: none
    std::string name;
  };

  // Notes that the kernel uses these bytes. Returns the kernel that it is in conflict with, if there is one.
  //   clock: what is known to be over when the kernel begins
  std::vector<std::string> note(const Bytes& bytes, bool writes, const Access& access, const Clock& clock);

 private:
  // Bytes with one history, up to the next one's.
  struct Segment {
    Access write;
    std::vector<Access> reads;  // since then, the latest of each lane
  };
  void split(const std::byte* at);

  std::map<const std::byte*, Segment> segments_;
};

}  // namespace sfsdp::device
