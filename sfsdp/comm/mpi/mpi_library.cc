// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/mpi/mpi_library.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/mpi/nap.h"

namespace sfsdp::comm {
namespace {

constexpr const char* kName = "libsfsdp_mpi.so";

// Beside the binary, as it is built, or where libraries are installed.
std::vector<std::string> places() {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> found;
  for (const char* way : {".", "../lib", "../lib64", SFSDP_MPI_LIBDIR})
    found.push_back((folder / way / kName).string());
  return found;
}

void* open_library() {
  for (const std::string& place : places()) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) continue;
    // MPI loads components of its own that look for its names among those of the process.
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    throw UserError(
        concat(place, ": cannot be loaded: ", dlerror(), "\n  expected the MPI library that it was built with"));
  }
  throw UserError(
      concat("this process was started by mpirun or srun, but ", kName, " is not beside ",
             std::filesystem::path(places()[0]).parent_path().parent_path().string(),
             "\n  expected it to be built, which needs MPI's C headers (Debian: libopenmpi-dev); without MPI, "
             "start the ranks with sfsdp launch or torchrun"));
}

// The tasks of a node by Slurm's list, in which "2(x3),1" is 2, 2, 2, 1.
std::optional<int64_t> tasks_of_node(std::string_view list, int64_t node) {
  for (const std::string& item : split(list, ',')) {
    const size_t times = item.find("(x");
    const auto tasks = parse_int(item.substr(0, times));
    const auto nodes = times == std::string::npos ? std::optional<int64_t>(1)
                                                  : parse_int(item.substr(times + 2, item.size() - times - 3));
    if (!tasks || !nodes || *nodes < 1) return std::nullopt;
    if (node < *nodes) return tasks;
    node -= *nodes;
  }
  return std::nullopt;
}

// srun says how many tasks each node of a step has; --ntasks-per-node is there only if it was given, and is the largest.
std::optional<int64_t> local_ranks_by_slurm(const GetEnv& env) {
  const char* node = env("SLURM_NODEID");
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const char* list = env(name); list && node && parse_int(node))
      if (const auto tasks = tasks_of_node(list, *parse_int(node))) return tasks;
  const char* most = env("SLURM_NTASKS_PER_NODE");
  return most ? parse_int(most) : std::nullopt;
}

}  // namespace

Mpi::Mpi() : library_(open_library()) {
  const auto find = reinterpret_cast<decltype(&sfsdp_mpi_functions)>(dlsym(library_, "sfsdp_mpi_functions"));
  functions_ = find ? find(kSfsdpMpiAbi) : nullptr;
  if (!functions_ || functions_->abi != kSfsdpMpiAbi)
    throw UserError(concat(kName, " is of another version than this binary, which expects table ", kSfsdpMpiAbi,
                           "\n  expected both of one build of sfsdp"));
  start();
}

Mpi::Mpi(const SfsdpMpiFunctions& functions) : functions_(&functions) { start(); }

void Mpi::start() {
  try {
    check(functions_->start(&started_));
  } catch (const TransportError& failure) {
    throw UserError(concat("MPI does not start: ", failure.what()));
  }
  if (started_.threads > 0) return;
  functions_->stop();
  throw UserError(
      "MPI serves only the thread that has started it, but ranks tell each other that they live from threads of their "
      "own"
      "\n  expected it started by MPI_Init_thread with MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED, or left to sfsdp");
}

Mpi::~Mpi() {
  if (end_ == End::Stop) functions_->stop();
}

int Mpi::take_tags(int count) {
  SFSDP_CHECK(next_tag_ <= functions_->largest_tag() - count, "MPI has ", functions_->largest_tag(), " tags");
  return std::exchange(next_tag_, next_tag_ + count);
}

template <class Call>
int Mpi::call(Call call) {
  if (started_.threads == 2) return call();
  const std::lock_guard lock(mutex_);
  return call();
}

void Mpi::check(int error) const {
  if (error == 0) return;
  std::array<char, 512> text{};
  functions_->describe(error, text.data(), text.size());
  throw TransportError(text.data());
}

Mpi::Request Mpi::send(const void* data, size_t bytes, int to, int tag) {
  Request request = nullptr;
  check(call([&] { return functions_->send(data, bytes, to, tag, &request); }));
  return request;
}

Mpi::Request Mpi::receive(void* data, size_t bytes, int from, int tag) {
  Request request = nullptr;
  check(call([&] { return functions_->receive(data, bytes, from, tag, &request); }));
  return request;
}

bool Mpi::test(Request& request, size_t& received) {
  int done = 0;
  check(call([&] { return functions_->test(&request, &done, &received); }));
  return done != 0;
}

bool Mpi::end(std::span<Message* const> messages, std::chrono::milliseconds patience) {
  const auto cancel = [&](Request& request) {
    call([&] {
      functions_->cancel(&request);
      return 0;
    });
  };
  const auto is_over = [&](Request& request) {
    size_t received = 0;
    try {
      return test(request, received);
    } catch (const TransportError&) {
      request = nullptr;  // MPI has given it up
      return true;
    }
  };
  for (Message* message : messages)
    if (message->request && message->way == Way::Received) cancel(message->request);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (Nap nap;; nap.rest()) {
    bool all = true;
    for (Message* message : messages)
      if (message->request && !is_over(message->request)) all = false;
    if (all || std::chrono::steady_clock::now() >= deadline) return all;
  }
}

Mpi::Arrived Mpi::probe(int tag) {
  Arrived arrived;
  int found = 0;
  check(call([&] { return functions_->probe(tag, &found, &arrived.from, &arrived.bytes); }));
  arrived.any = found != 0;
  return arrived;
}

bool is_started_by_mpi(const GetEnv& env) {
  if (env("WORLD_SIZE")) return false;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* size = env(name)) return parse_int(size).value_or(1) > 1;
  if (!env("PMIX_RANK")) return false;
  const char* size = env("SLURM_NTASKS");  // srun says so beside PMIx
  return !size || parse_int(size).value_or(1) > 1;
}

std::map<std::string, std::string> ranks_by_torchruns_names(const GetEnv& env) {
  struct Name {
    const char* torchrun;
    std::array<const char*, 3> launchers;  // Open MPI's, MPICH's, Slurm's
  };
  static constexpr Name kNames[] = {
      {"RANK", {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}},
      {"WORLD_SIZE", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}},
      {"LOCAL_RANK", {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}},
      {"LOCAL_WORLD_SIZE", {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", nullptr}},
  };
  std::map<std::string, std::string> names;
  for (const Name& name : kNames)
    for (const char* launcher : name.launchers)
      if (const char* value = launcher ? env(launcher) : nullptr; value && parse_int(value)) {
        names[name.torchrun] = value;
        break;
      }
  if (const auto ranks = local_ranks_by_slurm(env)) names.try_emplace("LOCAL_WORLD_SIZE", std::to_string(*ranks));
  return names;
}

bool adopt_ranks_of_mpi() {
  const GetEnv env = [](const char* name) { return std::getenv(name); };
  if (!is_started_by_mpi(env)) return false;
  for (const auto& [name, value] : ranks_by_torchruns_names(env)) ::setenv(name.c_str(), value.c_str(), 1);
  return true;
}

}  // namespace sfsdp::comm
