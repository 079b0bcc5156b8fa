// SPDX-License-Identifier: BSD-3-Clause
// How a thread waits for what it can only ask for again and again.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace sfsdp::comm {

// Other threads run at once; who waits longer sleeps, longer and longer: ranks may share cores, and a wait of minutes must not
// take one.
class Nap {
 public:
  explicit Nap(std::chrono::microseconds longest = std::chrono::microseconds(200)) : longest_(longest) {}
  void rest() {
    if (++rests_ <= kYields) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, longest_);
  }
  void wake() {
    rests_ = 0;
    sleep_ = kShortest;
  }

 private:
  static constexpr int kYields = 200;
  static constexpr std::chrono::microseconds kShortest{10};
  std::chrono::microseconds longest_, sleep_ = kShortest;
  int rests_ = 0;
};

}  // namespace sfsdp::comm
