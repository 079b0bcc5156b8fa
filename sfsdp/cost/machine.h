// SPDX-License-Identifier: BSD-3-Clause
// A cluster as the cost model sees it: one kind of device, and the links between devices. Read from machines/*.toml, and
// written by `sfsdp calibrate` for the machine it runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sfsdp/cost/bus_bandwidth.h"
#include "sfsdp/cost/measured.h"

namespace sfsdp::cost {

// Links of one reach. A ring of n ranks costs base_latency + (n - 1) · hop_latency and moves bytes at `bandwidth`
// (NCCL's Simple protocol; collective_cost.cc knows the others).
struct Link {
  double bandwidth = 0;         // bytes/s per device, each way, as large collectives reach it between two nodes
  double base_latency = 0;      // s per collective
  double hop_latency = 0;       // s per step of a ring
  double overlap_slowdown = 0;  // share by which a kernel is slower while a collective runs on these links: NCCL's
                                // kernels hold multiprocessors and memory bandwidth
  double congestion = 0;        // network: of k nodes each reaches bandwidth / (1 + congestion · log2 k)
  // Where a kind has a curve, it takes the place of bandwidth and congestion. `node`: over the ranks of a group within a
  // node; `network`: over the nodes of a group that fills them.
  BusBandwidths bus = {};
};

// Whose kernel of attention a framework calls: FlashAttention-2, the vendor's (cuDNN), or FlashAttention's algorithm in
// Triton, before version 2.
enum class Attention : uint8_t { Flash, Vendor, Triton };

struct Machine {
  std::string name;
  std::string device;  // "H100 SXM 700 W"
  // Device.
  double peak_bf16 = 0;                      // FLOP/s, dense, bf16 and f16
  double peak_f32 = 0;                       // FLOP/s of f32 products
  double matmul_efficiency = 0.75;           // of the peak that large products reach
  Attention attention = Attention::Flash;    // that frameworks call on it
  double attention_efficiency = 0.5;         // of the bf16 peak that long causal attention reaches (FlashAttention-2)
  double attention_half_length = 300;        // sequence length at which attention reaches half of that
  double vendor_attention_efficiency = 0.5;  // the same of the others
  double triton_attention_efficiency = 0.25;
  int64_t tile_m = 128, tile_n = 256;  // of a product's output per multiprocessor
  int64_t multiprocessors = 1;         // how many tiles run at once; 1: products are not cut into waves
  double half_k = 0;                   // depth of a product at which it reaches half of its rate
  double memory_bandwidth = 0;         // bytes/s, of the data sheet
  double memory_efficiency = 0.8;      // of it that large pointwise kernels reach
  double memory_bytes = 0;
  double launch = 0;                // s per kernel
  double dispatch = 0;              // s of the host per op that it issues (PyTorch from Python)
  bool inline_collectives = false;  // they take the time of what computes, where they start: no core is free for them
  // Topology: devices_per_node share `node`; beyond it, `network`.
  int64_t devices_per_node = 1;
  Link node, network;
  Measured measured;  // preferred to all of the above where it has an answer
};

// The share of the device's peak that its usual attention kernel reaches.
double attention_efficiency(const Machine& machine);
std::string_view to_string(Attention attention);  // flash, vendor, triton
// None for another text.
std::optional<Attention> find_attention(std::string_view text);

// The machines that are known by name: those of machines/, in the sources or beside the installed program. Sorted.
std::vector<std::string> machine_names();
// name: of a known machine, or the path of a machine file.
// attention: the kernel that is called; without one, the file's.
//   throws: UserError naming file, key, expected and got; or the known names
Machine load_machine(const std::string& name, std::optional<Attention> attention = {});
Machine parse_machine(const std::string& toml, const std::string& file);
// What parse_machine reads back as the same machine, to a relative 1e-15; `comment` goes on top, as # lines.
std::string print_machine(const Machine& machine, const std::string& comment);

}  // namespace sfsdp::cost
