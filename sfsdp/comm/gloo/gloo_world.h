// SPDX-License-Identifier: BSD-3-Clause
// Ranks as processes that talk over TCP, through the Gloo in LibTorch. Torch-free header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

struct GlooOptions {
  int rank = 0;
  int world_size = 1;

  // Where the ranks find each other. The agent of torchrun hosts a store of its own; `sfsdp launch` leaves it to rank 0.
  enum class StoreHost : uint8_t { Rank0, Agent };
  StoreHost store_host = StoreHost::Rank0;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string store_file;  // if not empty: a file all ranks see, instead of TCP
  std::string run_id;      // keeps two runs apart that meet at one store

  std::string interface;             // "eth0"; empty: loopback if all ranks are on one host, else what Gloo picks
  int64_t init_timeout_ms = 300000;  // until all ranks are there, and for every group that is made
  int64_t timeout_ms = 300000;       // of a collective; CommWorld::set_timeout_ms changes it

  // How ranks watch each other. OneHost: over shared memory wherever all ranks of a group are on one host; each call is
  // checked before a byte moves, a dead rank is seen within 0.1 s. Store: over the store, as groups across hosts do:
  // the first calls of each group are checked, and a rank is silent when it misses two heartbeats of a second.
  enum class Watch : uint8_t { OneHost, Store };
  Watch watch = Watch::OneHost;
};

// From RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID and
// GLOO_SOCKET_IFNAME. Throws UserError naming the variable that is missing or no number.
GlooOptions gloo_options_from_env();

// Blocks until all ranks are there.
//   throws: CommError that names the missing ranks after init_timeout_ms, or says why there is no store
std::unique_ptr<CommWorld> make_gloo_world(const GlooOptions& options);

}  // namespace sfsdp::comm
