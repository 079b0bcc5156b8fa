// SPDX-License-Identifier: BSD-3-Clause
// Ranks of several hosts, made of one: what an axis has within a host goes through shared memory, the rest over TCP.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/comm/tcp/tcp_world.h"
#include "sfsdp/device/cpu/threaded_device.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace hosts_test {

constexpr int kRanks = 4;

int free_port() {
  const Fd held(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  REQUIRE(bind(held.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(held.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin6_port);
}

std::vector<Batch> batches_of(int64_t step, int64_t rank) { return testing::micro_batches_of(step, rank, kRanks, 2); }

std::shared_ptr<Program> hsdp(CompileOptions options) {
  options.max_norm = 0.5;
  options.micro_batches = 2;
  options.seed = 7;
  options.notify = [](const std::string&) {};
  const DeviceMesh mesh = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  return compile_program(meta_init(testing::make_gpt), testing::loss_of, testing::kAdamW, batches_of(0, 0)[0],
                         data_parallel(mesh, {.mode = DataParallelMode::HybridShard}), options);
}

TEST_CASE("HSDP with shards within hosts and replicas between them has the bits of ranks that are threads") {
  const testing::Trained expected = testing::train_on_ranks(hsdp({}), 3, batches_of);
  for (const device::MakeDevice& lanes : {device::MakeDevice(), device::MakeDevice(device::make_threaded_device)}) {
    comm::TcpOptions options;
    options.world_size = kRanks;
    options.master_port = free_port();
    const auto make_world = [&](int rank) {
      comm::TcpOptions own = options;
      own.rank = rank;
      own.host = concat("host ", rank / 2);
      return comm::make_tcp_world(own);
    };
    const auto program = hsdp({.make_device = lanes});
    testing::Trained got;
    testing::run_ranks_on(kRanks, make_world, [&](comm::CommWorld& world) {
      Step step(program, &world);
      for (int64_t k = 0; k < 3; ++k) {
        const StepResult result = step(batches_of(k, world.rank()));
        if (world.rank() == 0) got.results.push_back(result);
      }
      SFSDP_CHECK(world.transport() == "shared memory and tcp", world.transport());
      auto state = testing::gather_all(step);
      if (world.rank() == 0) got.state = std::move(state);
    });
    testing::expect_same_bits(got, expected);
  }
}

}  // namespace hosts_test
}  // namespace sfsdp
