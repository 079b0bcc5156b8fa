// SPDX-License-Identifier: BSD-3-Clause
// The store that torchrun's agent hosts, through LibTorch's client: the one thing here that needs LibTorch. Torch-free header.
#pragma once

#include <memory>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/comm/flight_recorder.h"
#include "sfsdp/comm/tcp/tcp_options.h"

namespace sfsdp::comm {

// Where MASTER_ADDR and MASTER_PORT are a store of torchrun's, as TORCHELASTIC_USE_AGENT_STORE says, connects to it first.
// Else this is make_tcp_world.
//   throws: as make_tcp_world
std::unique_ptr<CommWorld> make_launched_world(TcpOptions options, std::shared_ptr<FlightRecorder> recorder = nullptr);

}  // namespace sfsdp::comm
