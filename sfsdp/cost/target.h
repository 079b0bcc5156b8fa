// SPDX-License-Identifier: BSD-3-Clause
// What a plan must know of the device that it is made for: what its kernels and communicators need beside their operands, and how memory is
// aligned. The table is in target.cc, each row with its source.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

struct Target {
  std::string name;                    // "cpu", or that of the machine file
  int64_t product_bytes = 0;           // that a library's product may use while it runs
  int64_t communicator_bytes = 0;      // buffers of one communicator
  int64_t blocks = 1;                  // that run at once: each keeps a partial sum of a column
  bool joins_products = false;         // one product of several layers' weights is faster than one after the other
  bool adds_in_products = false;       // a product of bf16 adds to an f32 sum as it writes (beta = 1)
  bool accumulates_in_memory = false;  // attention's backward adds up the queries' gradient in f32 in memory
  bool masks_documents = false;        // attention takes documents as a mask that is made just before it
  bool is_cpu = false;                 // a processor, which runs the kernels of kernels/
  int64_t alignment = 256;             // bytes, of a buffer
  int64_t window_alignment = 4096;     // of one that collectives touch, which other processes may map
};

// This machine's processor.
Target cpu_target();
Target target_of(const Machine& machine);

// Bytes that the kernel of these ops needs while it runs, beside what it reads and makes. At least one page.
int64_t workspace_bytes(std::span<const ir::Op* const> kernel, const Target& target);
// The most that a kernel of the graph needs. On a processor, which runs a kernel op by op, also what a kernel alone makes and reads.
int64_t workspace_bytes(const ir::Graph& graph, const Kernels& kernels, const Target& target);

}  // namespace sfsdp::cost
