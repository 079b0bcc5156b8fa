// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_world.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/messages/message_communicator.h"
#include "sfsdp/testing/comm_suite.h"

namespace sfsdp::comm::mpi_world_test {
namespace {

using testing::Mismatch;

GetEnv env_of(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST_CASE("mpi: processes of mpirun and srun are known by what their launchers set") {
  CHECK(is_started_by_mpi(env_of({{"OMPI_COMM_WORLD_SIZE", "2"}})));
  CHECK(is_started_by_mpi(env_of({{"PMI_SIZE", "4"}})));
  CHECK(is_started_by_mpi(env_of({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}})));
  CHECK(is_started_by_mpi(env_of({{"PMIX_RANK", "0"}})));
  CHECK_FALSE(is_started_by_mpi(env_of({})));
  CHECK_FALSE(is_started_by_mpi(env_of({{"OMPI_COMM_WORLD_SIZE", "1"}})));
  CHECK_FALSE(is_started_by_mpi(env_of({{"SLURM_NTASKS", "8"}})));
  CHECK_FALSE(is_started_by_mpi(env_of({{"OMPI_COMM_WORLD_SIZE", "2"}, {"WORLD_SIZE", "2"}})));
}

TEST_CASE("mpi: ranks have torchrun's names") {
  using Names = std::map<std::string, std::string>;
  CHECK(ranks_by_torchruns_names(env_of({{"OMPI_COMM_WORLD_RANK", "3"},
                                         {"OMPI_COMM_WORLD_SIZE", "4"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})) ==
        Names{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  CHECK(ranks_by_torchruns_names(env_of({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS_PER_NODE", "2(x3)"}})) ==
        Names{{"RANK", "5"}});
  const auto local_ranks = [](std::map<std::string, std::string> variables) {
    const auto names = ranks_by_torchruns_names(env_of(variables));
    const auto found = names.find("LOCAL_WORLD_SIZE");
    return found == names.end() ? "" : found->second;
  };
  CHECK(local_ranks({{"SLURM_NTASKS_PER_NODE", "4"}}) == "4");
  // Without --ntasks-per-node: 2, 2, 2 and 1 tasks.
  for (const auto& [node, tasks] : {std::pair{"0", "2"}, {"2", "2"}, {"3", "1"}, {"4", ""}})
    CHECK(local_ranks({{"SLURM_NODEID", node}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}}) == tasks);
  CHECK(local_ranks({{"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "3,16"}}) == "16");
  CHECK(local_ranks({{"SLURM_NODEID", "1"},
                     {"SLURM_STEP_TASKS_PER_NODE", "4,1"},
                     {"SLURM_TASKS_PER_NODE", "4(x2)"},
                     {"SLURM_NTASKS_PER_NODE", "4"}}) == "1");
  CHECK(local_ranks({{"SLURM_NODEID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x"}}).empty());
  CHECK(local_ranks({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"SLURM_NTASKS_PER_NODE", "4"}}) == "2");
}

// What follows runs in processes that mpirun has started: tests/e2e/mpi.sh. MPI is started once in each.
std::shared_ptr<Mpi> mpi() {
  static const auto one = std::make_shared<Mpi>();
  return one;
}

void run_mpi(const std::function<void(CommWorld&)>& body) {
  {
    const auto world = make_mpi_world(mpi(), 60'000);
    try {
      body(*world);
    } catch (const std::exception& error) {
      world->abort(error.what());  // the others do not wait
      FAIL("rank ", world->rank(), ": ", error.what());
    }
  }
  mpi()->end_by(Mpi::End::Stop);  // errors that a test wants are no reason to go without
}

TEST_CASE("mpi ranks: every collective has the bits of sums in rank order" * doctest::skip()) {
  run_mpi(testing::check_collectives);
  run_mpi(testing::check_large);
  run_mpi(testing::check_windows);
  run_mpi(testing::check_groups);
}

TEST_CASE("mpi ranks: every exchange brings each rank its parts" * doctest::skip()) {
  run_mpi(testing::check_exchanges);
  run_mpi(testing::check_large_exchanges);
}

TEST_CASE("mpi ranks: groups are used by threads of their own" * doctest::skip()) {
  run_mpi(testing::check_two_threads);
}

TEST_CASE("mpi ranks: those that disagree about a call are named on every rank" * doctest::skip()) {
  for (const auto mismatch : {Mismatch::Kind, Mismatch::Bytes, Mismatch::DType, Mismatch::Op, Mismatch::Name})
    run_mpi([=](CommWorld& world) { testing::check_mismatch(world, mismatch); });
  run_mpi(testing::check_exchange_mismatches);
}

TEST_CASE("mpi ranks: those that disagree about a call after many that were alike are named" * doctest::skip()) {
  run_mpi([](CommWorld& world) { testing::check_late_mismatch(world, kComparedCalls + 1); });
}

TEST_CASE("mpi ranks: one that does not come is named after the timeout" * doctest::skip()) {
  run_mpi(testing::check_late_peer);
}

TEST_CASE("mpi ranks: an abort ends the calls of the others, with its reason" * doctest::skip()) {
  run_mpi([](CommWorld& world) {
    const auto group = world.all_ranks("dp_shard");
    group->barrier({"", ""});
    if (world.rank() == 0) return world.abort("the loss is nan");
    const std::string error = testing::comm_error_of([&] { group->barrier({"%b", ""}); });
    SFSDP_CHECK(error.find("rank 0 aborted: the loss is nan") != std::string::npos, error);
  });
}

TEST_CASE("mpi ranks: who waits for one that has left does not wait for the timeout" * doctest::skip()) {
  run_mpi([](CommWorld& world) {
    const auto group = world.all_ranks("dp_shard");
    group->barrier({"", ""});
    if (world.rank() == 1) return;
    const std::string error = testing::comm_error_of([&] { group->barrier({"%b", ""}); });
    SFSDP_CHECK(error.find("no answer from rank 1 in ") != std::string::npos, error);
    SFSDP_CHECK(error.find("it has closed its communicators; it finished sequence 1") != std::string::npos, error);
  });
}

// tests/e2e/mpi.sh stops one of two such ranks: nearly always in the middle of a message, as these are large.
TEST_CASE("mpi process: large messages until a rank is stopped" * doctest::skip()) {
  const auto world = make_mpi_world(mpi(), 60'000);
  const auto group = world->all_ranks("dp_shard");
  std::vector<std::byte> mine(48 << 20), all(mine.size() * static_cast<size_t>(world->world_size()));
  // One write a line: std::cerr writes each piece by itself, and mpirun mixes the pieces of two ranks.
  const std::string sends = "rank " + std::to_string(world->rank()) + " sends\n";
  std::cerr << testing::comm_error_of([&] {
                 for (int i = 0;; ++i) {
                   group->all_gather(mine, all, {"%large", ""});
                   if (i == 2) std::cerr << sends;
                 }
               }) + "\n";
}

}  // namespace
}  // namespace sfsdp::comm::mpi_world_test
