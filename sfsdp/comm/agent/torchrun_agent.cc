// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/agent/torchrun_agent.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/agent/rank_threads.h"
#include "sfsdp/comm/init.h"
#include "sfsdp/comm/mpi/mpi_world.h"
#include "sfsdp/comm/null/null_world.h"
#include "sfsdp/comm/tcp/socket.h"
#include "sfsdp/comm/tcp/tcp_world.h"

namespace sfsdp::comm {
namespace {

using std::chrono::milliseconds;

// LibTorch appends a stack to its messages.
std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

// LibTorch's client logs a stack for each attempt that fails and naps up to seconds between them; a rank that starts
// before the one it looks for is no error.
void wait_for_listener(const TcpOptions& options, Clock::time_point deadline) {
  for (milliseconds nap(1);; nap = std::min(2 * nap, milliseconds(50))) {
    try {
      for (const Address& address : resolve(options.master_addr, options.master_port)) {
        try {
          connect_to(address, deadline);
          return;
        } catch (const SocketError&) {
          // the next address, or the next attempt
        }
      }
    } catch (const SocketError&) {
      if (Clock::now() + nap >= deadline) throw;
    }
    if (Clock::now() + nap >= deadline) throw SocketError("nobody accepts connections there");
    std::this_thread::sleep_for(nap);
  }
}

class TorchrunAgent final : public Agent {
 public:
  //   throws: CommError
  explicit TorchrunAgent(const TcpOptions& options) {
    try {
      wait_for_listener(options, Clock::now() + milliseconds(options.init_timeout_ms));
      c10d::TCPStoreOptions tcp;
      tcp.port = static_cast<uint16_t>(options.master_port);
      tcp.isServer = false;
      tcp.waitWorkers = false;
      tcp.timeout = milliseconds(options.init_timeout_ms);
      store_ = c10::make_intrusive<c10d::TCPStore>(options.master_addr, tcp);
    } catch (const std::exception& error) {
      throw CommError(concat("CommError on rank ", options.rank, " of ", options.world_size,
                             ": start\n  no store answers in ", options.init_timeout_ms,
                             " ms; expected torchrun to host it at ", options.master_addr, ":", options.master_port,
                             ": check MASTER_ADDR and MASTER_PORT, read torchrun's log (", first_line(error.what()),
                             ")"));
    }
  }
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string wait(const std::string& key, int64_t timeout_ms) override {
    try {
      store_->wait({key}, milliseconds(timeout_ms));
      return store_->get_to_str(key);
    } catch (const std::exception& error) {
      throw SocketError(first_line(error.what()));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// What std::terminate does in a launched rank: the text of LibTorch's and our errors, and whose they are, in one write, as
// ranks share a terminal. The C++ library's own handler names a mangled type instead of the rank.
[[noreturn]] void tell_error_of_rank() {
  std::string text = "an exception that is no std::exception";
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    text = "std::terminate without an exception";
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {  // the text says so
  }
  const char* rank = std::getenv("RANK");
  text = concat("error on rank ", rank ? rank : "", ": ", text, "\n");
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace

std::unique_ptr<CommWorld> make_launched_world(TcpOptions options, std::shared_ptr<FlightRecorder> recorder) {
  if (options.agent_hosts) options.agent = std::make_shared<TorchrunAgent>(options);
  return make_tcp_world(options, std::move(recorder));
}

}  // namespace sfsdp::comm

std::unique_ptr<sfsdp::comm::CommWorld> sfsdp::init() {
  const bool by_mpi = comm::adopt_ranks_of_mpi();
  if (!std::getenv("RANK") && !std::getenv("WORLD_SIZE")) return comm::make_null_world(1);
  if (std::get_terminate() == __gnu_cxx::__verbose_terminate_handler) std::set_terminate(comm::tell_error_of_rank);
  if (by_mpi) {
    auto world = comm::make_mpi_world(std::make_shared<comm::Mpi>(), comm::TcpOptions().timeout_ms);
    comm::share_cores(*world);
    return world;
  }
  comm::TcpOptions options = comm::tcp_options_from_env();
  if (options.world_size == 1) return comm::make_null_world(1);
  return comm::make_launched_world(std::move(options));
}
