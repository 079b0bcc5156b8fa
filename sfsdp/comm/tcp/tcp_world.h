// SPDX-License-Identifier: BSD-3-Clause
// Ranks as processes, on one or several hosts, that talk over TCP.
#pragma once

#include <memory>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/comm/flight_recorder.h"
#include "sfsdp/comm/tcp/tcp_options.h"

namespace sfsdp::comm {

// Blocks until all ranks are there.
//   recorder: notes every collective of all groups; null: nothing is noted
//   throws: CommError that names the missing ranks after init_timeout_ms, or one that has started twice, or says why there
//           is no store; UserError for a port in use, a token that is missing or wrong
std::unique_ptr<CommWorld> make_tcp_world(const TcpOptions& options,
                                          std::shared_ptr<FlightRecorder> recorder = nullptr);

}  // namespace sfsdp::comm
