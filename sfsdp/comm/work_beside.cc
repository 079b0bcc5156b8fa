// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/work_beside.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sfsdp::comm {

void work_beside(Communicator& ranks, const std::function<void()>& work, const std::string& what) {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::thread worker([&] {
    work();
    const std::lock_guard lock(mutex);
    done = true;
    ended.notify_one();
  });
  std::vector<std::byte> all(static_cast<size_t>(ranks.size()));
  std::exception_ptr lost;  // a rank is: the work still ends here, as it holds what the caller owns
  do {
    std::unique_lock lock(mutex);
    ended.wait_for(lock, std::chrono::seconds(1), [&] { return done; });
    const std::byte mine{static_cast<unsigned char>(done)};
    lock.unlock();
    try {
      ranks.all_gather({&mine, 1}, all, {what, ""});
    } catch (...) {
      lost = std::current_exception();
    }
  } while (!lost && std::ranges::find(all, std::byte{0}) != all.end());
  worker.join();
  if (lost) std::rethrow_exception(lost);
}

}  // namespace sfsdp::comm
