// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/thread/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/comm/thread/thread_world.h"

namespace sfsdp::testing {
namespace {

// The first error in time; one that only says that another rank has aborted gives way to it.
class FirstError {
 public:
  enum class Sort { Consequence, Cause };
  void add(Sort sort, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    auto& place = sort == Sort::Cause ? cause_ : consequence_;
    if (!place) place = std::move(error);
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (consequence_) std::rethrow_exception(consequence_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_, consequence_;
};

void run_rank(comm::CommWorld& world, const std::function<void(comm::CommWorld&)>& body, FirstError& first) {
  try {
    body(world);
  } catch (const comm::AbortedError&) {
    first.add(FirstError::Sort::Consequence, std::current_exception());
  } catch (const std::exception& error) {
    first.add(FirstError::Sort::Cause, std::current_exception());
    world.abort(error.what());
  } catch (...) {  // such as what doctest's REQUIRE throws
    first.add(FirstError::Sort::Cause, std::current_exception());
    world.abort("an exception that is no std::exception");
  }
}

}  // namespace

void run_ranks_on(int world_size, const MakeWorld& make_world, const std::function<void(comm::CommWorld&)>& body) {
  FirstError first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&first, &make_world, &body, rank] {
      std::unique_ptr<comm::CommWorld> world;
      try {
        world = make_world(rank);
      } catch (...) {
        first.add(FirstError::Sort::Cause, std::current_exception());
        return;
      }
      run_rank(*world, body, first);
    });
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

void run_ranks(int world_size, const std::function<void(comm::CommWorld&)>& body, int64_t timeout_ms) {
  auto worlds = comm::make_thread_worlds(world_size, timeout_ms);
  run_ranks_on(
      world_size, [&](int rank) { return std::move(worlds[static_cast<size_t>(rank)]); }, body);
}

}  // namespace sfsdp::testing
