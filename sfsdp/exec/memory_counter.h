// SPDX-License-Identifier: BSD-3-Clause
// Bytes that LibTorch's CPU allocator has given out and not got back (state, values of the graph, and what only LibTorch knows of,
// such as temporaries inside kernels, batches and constants), and the regions of the planned executor. What others take from the
// system (buffers of the transport and of product libraries) is not in it.
#pragma once

#include <cstdint>

namespace sfsdp::exec {

// Counts from the first call on, for all threads: of a process that is one rank, the rank. The first call installs an
// allocator, which must not happen while other threads allocate. A Program whose plans are run makes it.
void count_memory();
int64_t allocated_bytes();       // now, of what was allocated since count_memory()
int64_t most_allocated_bytes();  // since restart_most_allocated()
void restart_most_allocated();   // it begins anew with what is allocated now
// All that LibTorch has asked the system for since count_memory(), given back or not.
struct Allocations {
  int64_t count = 0, bytes = 0;
};
Allocations all_allocations();
// The regions of a plan, which come from the system: so many bytes more, or fewer.
void count_region(int64_t bytes);

class Workspace;
// While it lives, what LibTorch asks for on this thread comes from the workspace as long as there is room, once count_memory() has
// installed the allocator. Null: from the system.
class UseWorkspace {
 public:
  explicit UseWorkspace(Workspace* of);
  ~UseWorkspace();
  UseWorkspace(const UseWorkspace&) = delete;
  UseWorkspace& operator=(const UseWorkspace&) = delete;

 private:
  Workspace* before_;
};

}  // namespace sfsdp::exec
