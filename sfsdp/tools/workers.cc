// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/workers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "sfsdp/base/cores.h"

namespace sfsdp::tools {

int64_t threads_of(const Request& request) {
  if (request.has("threads")) return number_of("--threads", request.get("threads"), 1, 1024);
  return usable_cores();
}

void on_threads(int64_t threads, size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!thrown) thrown = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> workers;
  const auto wanted = std::min(static_cast<size_t>(threads), count);
  for (size_t t = 1; t < wanted; ++t) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace sfsdp::tools
