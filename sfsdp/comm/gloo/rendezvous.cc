// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/gloo/rendezvous.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/gloo/gloo_world.h"
#include "sfsdp/comm/init.h"
#include "sfsdp/comm/null/null_world.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string describe_place(const GlooOptions& options) {
  return options.store_file.empty() ? concat(options.master_addr, ":", options.master_port) : options.store_file;
}

std::string where(const GlooOptions& options, const std::string& what) {
  return concat("CommError on rank ", options.rank, " of ", options.world_size, ": ", what, "\n  ");
}

bool hosts_store(const GlooOptions& options) {
  return options.store_file.empty() && options.store_host == GlooOptions::StoreHost::Rank0 && options.rank == 0;
}

// What to do about an error on the way to the store.
std::string connect_advice(const GlooOptions& options, const std::string& error) {
  if (hosts_store(options)) return "cannot open the store: " + first_line(error);
  if (!options.store_file.empty()) return "cannot use the file: " + first_line(error);
  const char* host = options.store_host == GlooOptions::StoreHost::Agent ? "torchrun" : "rank 0";
  return concat("no store answers in ", options.init_timeout_ms, " ms; expected ", host, " to host it at ",
                describe_place(options), ": check MASTER_ADDR and MASTER_PORT, read ", host, "'s log (",
                first_line(error), ")");
}

// Whether somebody accepts connections there; says nothing about who.
bool answers(const GlooOptions& options) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(options.master_port);
  if (getaddrinfo(options.master_addr.c_str(), port.c_str(), &hints, &found) != 0) return false;
  bool connected = false;
  for (const addrinfo* a = found; a && !connected; a = a->ai_next) {
    const int socket_fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (socket_fd < 0) continue;
    connected = ::connect(socket_fd, a->ai_addr, a->ai_addrlen) == 0;
    close(socket_fd);
  }
  freeaddrinfo(found);
  return connected;
}

// LibTorch's client logs a stack for each attempt that fails and naps up to seconds between them; a rank that starts
// before the one it looks for is no error.
void wait_for_store(const GlooOptions& options) {
  const auto deadline = Clock::now() + milliseconds(options.init_timeout_ms);
  for (milliseconds nap(1); !answers(options); nap = std::min(2 * nap, milliseconds(50))) {
    if (Clock::now() >= deadline)
      throw CommError(where(options, "start") + connect_advice(options, "nobody accepts connections there"));
    std::this_thread::sleep_for(nap);
  }
}

c10::intrusive_ptr<c10d::Store> connect(const GlooOptions& options) {
  if (options.store_file.empty() && !hosts_store(options)) wait_for_store(options);
  try {
    if (!options.store_file.empty()) {
      auto store = c10::make_intrusive<c10d::FileStore>(options.store_file, options.world_size);
      store->setTimeout(milliseconds(options.init_timeout_ms));
      return store;
    }
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.master_port);
    tcp.isServer = hosts_store(options);
    tcp.numWorkers = static_cast<size_t>(options.world_size);
    tcp.waitWorkers = false;  // wait_for names who is missing
    tcp.timeout = milliseconds(options.init_timeout_ms);
    return c10::make_intrusive<c10d::TCPStore>(options.master_addr, tcp);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (hosts_store(options) && text.find("EADDRINUSE") != std::string::npos)
      throw UserError(concat("port ", options.master_port, " is in use on this host\n  expected a free one for the ",
                             "store of rank 0; choose another MASTER_PORT, or sfsdp launch --master-port"));
    throw CommError(where(options, "start") + connect_advice(options, text));
  }
}

std::string env_text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int env_int(const char* name, int64_t low, int64_t high) {
  const std::string text = env_text(name);
  const std::optional<int64_t> value = parse_int(text);
  if (!value || *value < low || *value > high)
    throw UserError(concat("environment variable ", name, text.empty() ? " is not set" : concat(" = \"", text, "\""),
                           "\n  expected a whole number from ", low, " to ", high,
                           "; start the ranks with sfsdp launch -n N -- ..., or with torchrun"));
  return static_cast<int>(*value);
}

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
  text = concat("error on rank ", env_text("RANK"), ": ", text, "\n");
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace

GlooOptions gloo_options_from_env() {
  GlooOptions options;
  options.world_size = env_int("WORLD_SIZE", 1, 1 << 20);
  options.rank = env_int("RANK", 0, options.world_size - 1);
  options.master_port = env_int("MASTER_PORT", 1, 65535);
  if (const std::string addr = env_text("MASTER_ADDR"); !addr.empty()) options.master_addr = addr;
  if (env_text("TORCHELASTIC_USE_AGENT_STORE") == "True") options.store_host = GlooOptions::StoreHost::Agent;
  options.run_id = env_text("TORCHELASTIC_RUN_ID");
  // a restarted run must not meet the keys of its last attempt, which an agent's store still holds
  options.run_id += "/" + env_text("TORCHELASTIC_RESTART_COUNT");
  options.interface = env_text("GLOO_SOCKET_IFNAME");
  return options;
}

std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

std::string host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, 64> pid_namespace{};
  const ssize_t length = readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1);
  return boot_id + " " + std::string(pid_namespace.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

struct Rendezvous::Impl {
  GlooOptions options;
  c10::intrusive_ptr<c10d::Store> store;
};

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rendezvous::Rendezvous(const GlooOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->store = c10::make_intrusive<c10d::PrefixStore>("sfsdp/" + options.run_id, connect(options));
}

Rendezvous::~Rendezvous() = default;

std::unique_ptr<Rendezvous> Rendezvous::clone() const {
  auto impl = std::make_unique<Impl>();
  impl->options = impl_->options;
  impl->store = impl_->store->clone();
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
}

void Rendezvous::set(const std::string& key, const std::string& value) { impl_->store->set(key, value); }

std::string Rendezvous::get(const std::string& key) {
  return impl_->store->check({key}) ? impl_->store->get_to_str(key) : "";
}

std::string Rendezvous::set_first(const std::string& key, const std::string& value) {
  return impl_->store->compareSet(key, std::string(), value);
}

std::vector<std::string> Rendezvous::wait_for(const std::string& prefix, const std::vector<int>& ranks,
                                              const std::string& what) {
  const auto deadline = Clock::now() + milliseconds(impl_->options.init_timeout_ms);
  std::vector<std::string> values(ranks.size());
  std::vector<size_t> absent(ranks.size());  // indices into ranks
  std::iota(absent.begin(), absent.end(), 0);
  try {
    milliseconds nap(1);
    while (true) {
      std::erase_if(absent, [&](size_t i) {
        const std::string key = prefix + std::to_string(ranks[i]);
        const bool is_here = impl_->store->check({key});
        if (is_here) values[i] = impl_->store->get_to_str(key);
        return is_here;
      });
      if (absent.empty()) return values;
      if (const std::string reason = aborted(); !reason.empty())
        throw AbortedError(where(impl_->options, what) + reason);
      if (Clock::now() >= deadline) break;
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, milliseconds(50));
    }
    std::vector<std::string> missing;
    for (const size_t i : absent) missing.push_back(std::to_string(ranks[i]));
    const std::string first = missing[0];
    const size_t count = missing.size();
    if (count > 8) missing.resize(8);
    throw CommError(concat(where(impl_->options, what), "rank", count == 1 ? " " : "s ", join(missing, ", "),
                           count > 8 ? concat(" and ", count - 8, " more") : "", " never arrived in ",
                           impl_->options.init_timeout_ms, " ms, ", ranks.size() - count, " of ", ranks.size(),
                           " did; read rank ", first, "'s log"));
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {  // of the store
    throw CommError(where(impl_->options, what) + "the store is gone: " + first_line(error.what()) +
                    (impl_->options.store_host == GlooOptions::StoreHost::Rank0 ? "; read rank 0's log" : ""));
  }
}

void Rendezvous::abort(const std::string& reason) {
  set_first("aborted", concat("rank ", impl_->options.rank, " aborted: ", reason));
}

std::string Rendezvous::aborted() { return get("aborted"); }

void Rendezvous::say_goodbye(int64_t patience_ms) {
  set("bye/" + std::to_string(impl_->options.rank), "1");
  if (!hosts_store(impl_->options)) return;
  const auto deadline = Clock::now() + milliseconds(patience_ms);
  for (int rank = 0; rank < impl_->options.world_size && Clock::now() < deadline;) {
    if (impl_->store->check({"bye/" + std::to_string(rank)}))
      ++rank;
    else
      std::this_thread::sleep_for(milliseconds(5));
  }
}

c10d::Store* Rendezvous::store() const { return impl_->store.get(); }

std::string Rendezvous::place() const { return describe_place(impl_->options); }

}  // namespace sfsdp::comm

std::unique_ptr<sfsdp::comm::CommWorld> sfsdp::init() {
  if (!std::getenv("RANK") && !std::getenv("WORLD_SIZE")) return comm::make_null_world(1);
  if (std::get_terminate() == __gnu_cxx::__verbose_terminate_handler) std::set_terminate(comm::tell_error_of_rank);
  const comm::GlooOptions options = comm::gloo_options_from_env();
  if (options.world_size == 1) return comm::make_null_world(1);
  return comm::make_gloo_world(options);
}
