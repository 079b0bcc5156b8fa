// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/memory_counter.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <thread>

#include "sfsdp/exec/workspace.h"

namespace sfsdp {
namespace memory_counter_test {

TEST_CASE("what LibTorch's allocator gives out is counted, for all threads, until it is given back") {
  exec::count_memory();
  const int64_t before = exec::allocated_bytes();
  {
    const at::Tensor x = at::empty({1000});
    CHECK(exec::allocated_bytes() - before == 4000);
    CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64 == 0);
    exec::restart_most_allocated();
    std::thread([] { CHECK(at::empty({500}).numel() == 500); }).join();
    CHECK(exec::most_allocated_bytes() - before == 6000);
    CHECK(exec::allocated_bytes() - before == 4000);
    x.resize_({2000});
    CHECK(exec::allocated_bytes() - before == 8000);
    CHECK(exec::most_allocated_bytes() - before == 12000);  // the old block lives until it is copied
  }
  CHECK(exec::allocated_bytes() == before);
}

TEST_CASE("a workspace gives the lowest place that is free, and the system what it has no room for") {
  alignas(64) static std::byte memory[4096];
  exec::Workspace workspace;
  workspace.set_memory(memory, sizeof memory);
  std::byte* const a = workspace.allocate(100);
  std::byte* const b = workspace.allocate(1000);
  std::byte* const c = workspace.allocate(64);
  CHECK(a == memory);
  CHECK(b == memory + 128);
  CHECK(c == memory + 128 + 1024);
  CHECK(workspace.allocate(2881) == nullptr);
  workspace.free(b);
  CHECK(workspace.allocate(1025) == c + 64);
  CHECK(workspace.allocate(1024) == b);
  CHECK(workspace.blocks() == 4);
  CHECK(workspace.allocate(5000) == nullptr);
  CHECK(workspace.allocate(SIZE_MAX - 3) == nullptr);
}

TEST_CASE("what LibTorch asks for on a thread that uses a workspace comes from there, and goes back from any thread") {
  exec::count_memory();
  alignas(64) static std::byte memory[8192];
  exec::Workspace workspace;
  workspace.set_memory(memory, sizeof memory);
  const int64_t count = exec::all_allocations().count, bytes = exec::allocated_bytes();
  at::Tensor kept;
  {
    const exec::UseWorkspace use(&workspace);
    kept = at::full({500}, 3.0F);
    CHECK(workspace.blocks() == 1);
    CHECK(exec::all_allocations().count == count);
    CHECK(at::empty({5000}).numel() == 5000);  // there is no room
    CHECK(exec::all_allocations().count == count + 1);
    {
      const exec::UseWorkspace none(nullptr);
      CHECK(at::empty({5}).numel() == 5);
    }
    CHECK(exec::all_allocations().count == count + 2);
    std::thread([&] { CHECK(at::empty({5}).numel() == 5); }).join();
    CHECK(exec::all_allocations().count == count + 3);
  }
  const auto* at = static_cast<const std::byte*>(kept.const_data_ptr());
  CHECK((at > memory && at + 2000 <= memory + sizeof memory));
  CHECK(exec::allocated_bytes() == bytes);
  std::thread([&] { kept.reset(); }).join();
  CHECK(workspace.blocks() == 0);
}

}  // namespace memory_counter_test
}  // namespace sfsdp
