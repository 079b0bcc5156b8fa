// SPDX-License-Identifier: BSD-3-Clause
// Ranks as processes that talk over TCP: who they are, where they meet, how they watch each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sfsdp/comm/tcp/job_token.h"

namespace sfsdp::comm {

// A store that somebody else hosts, of which the ranks need one note: where rank 0's own store is.
class Agent {
 public:
  virtual ~Agent() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set.   throws: std::exception
  virtual std::string wait(const std::string& key, int64_t timeout_ms) = 0;
};

struct TcpOptions {
  int rank = 0;
  int world_size = 1;

  std::string master_addr = "127.0.0.1";  // where rank 0 hosts the store, by name or number
  int master_port = 29500;
  bool agent_hosts = false;      // torchrun's agent hosts a store there, and rank 0 one at another port
  std::shared_ptr<Agent> agent;  // connected to it, if agent_hosts
  std::string run_id;            // keeps two runs apart that meet at one agent
  JobToken token;

  // What this rank listens at: an interface ("eth0") or an address of this host. Empty: the address that this host reaches
  // master_addr from, which is loopback where that is loopback. Ranks of one host talk to each other over loopback.
  std::string listen;
  // Ranks with equal names here are on one host. Empty: those of one machine and one container. For tests, which make several hosts of one.
  std::string host;
  int64_t init_timeout_ms = 300000;  // until all ranks are there, and for every group that is made
  // For how long a collective may wait for a rank to enter it, and for how long no byte of it may move; one whose bytes move
  // may take longer. CommWorld::set_timeout_ms changes it.
  int64_t timeout_ms = 300000;

  // How ranks watch each other. OneHost: over shared memory wherever all ranks of a group are on one host; each call is
  // checked before a byte moves, a dead rank is seen within 0.1 s, a stopped one within 3 s. Store: over the store, as groups
  // across hosts do: the first calls of each group are checked, a dead rank is seen at once, a stopped one within 5 s.
  enum class Watch : uint8_t { OneHost, Store };
  Watch watch = Watch::OneHost;
  // Groups whose ranks are all on one host read each other's memory, where they can and watch is OneHost.
  bool shared_memory = true;
};

// From RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID and
// GLOO_SOCKET_IFNAME, and the job token, which it takes out of the environment. Without an agent.
//   throws: UserError naming the variable that is missing or wrong
TcpOptions tcp_options_from_env();

}  // namespace sfsdp::comm
