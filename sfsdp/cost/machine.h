// SPDX-License-Identifier: BSD-3-Clause
// A cluster as the cost model sees it: one kind of device, and the links between devices. Read from machines/*.toml.
#pragma once

#include <cstdint>
#include <string>

namespace sfsdp::cost {

// Links of one reach. A ring of n ranks costs base_latency + (n - 1) · hop_latency and moves bytes at `bandwidth`.
struct Link {
  double bandwidth = 0;     // bytes/s per device, each way, as large collectives reach it
  double base_latency = 0;  // s per collective
  double hop_latency = 0;   // s per step of a ring
};

struct Machine {
  std::string name;
  std::string device;  // "H100 SXM 700 W"
  // Device.
  double peak_bf16 = 0;                      // FLOP/s, dense, bf16 and f16
  double peak_f32 = 0;                       // FLOP/s of f32 products
  double matmul_efficiency = 0.75;           // of the peak that large products reach
  double attention_efficiency = 0.5;         // of the bf16 peak that long causal attention reaches (FlashAttention-2)
  double attention_half_length = 300;        // sequence length at which attention reaches half of that
  double vendor_attention_efficiency = 0.5;  // the same of the vendor's kernel (cuDNN)
  int64_t tile_m = 128, tile_n = 256;        // of a product's output per multiprocessor
  int64_t multiprocessors = 1;               // how many tiles run at once; 1: products are not cut into waves
  double half_k = 0;                         // depth of a product at which it reaches half of its rate
  double memory_bandwidth = 0;               // bytes/s, of the data sheet
  double memory_efficiency = 0.8;            // of it that large pointwise kernels reach
  double memory_bytes = 0;
  double launch = 0;  // s per kernel
  // Topology: devices_per_node share `node`; beyond it, `network`.
  int64_t devices_per_node = 1;
  Link node, network;
};

// throws: UserError naming file, key, expected and got
Machine load_machine(const std::string& path);
Machine parse_machine(const std::string& toml, const std::string& file);

}  // namespace sfsdp::cost
