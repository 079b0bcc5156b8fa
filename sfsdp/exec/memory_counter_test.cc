// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/memory_counter.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <thread>

namespace sfsdp {
namespace {

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

}  // namespace
}  // namespace sfsdp
