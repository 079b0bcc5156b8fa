// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "sfsdp/comm/thread/thread_world.h"

namespace sfsdp::testing {

void run_ranks(int world_size, const std::function<void(comm::CommWorld&)>& body) {
  auto worlds = comm::make_thread_worlds(world_size);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&first, &mutex, &body, &world] {
      try {
        body(*world);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        comm::abort_thread_worlds(*world, std::string("another rank failed: ") + error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace sfsdp::testing
