// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/call.h"

namespace sfsdp::comm {
namespace {

using std::chrono::milliseconds;

std::string where(int rank, int world_size, const std::string& what) {
  return concat("CommError on rank ", rank, " of ", world_size, ": ", what, "\n  ");
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

// IPv4 first: a name such as localhost may have both, and all ranks must come to one.
std::vector<Address> resolve_master(const TcpOptions& options) {
  auto addresses = resolve(options.master_addr, options.master_port);
  std::ranges::stable_partition(addresses, [](const Address& a) { return a.storage.ss_family == AF_INET; });
  return addresses;
}

Address find_listen_address(const TcpOptions& options) {
  try {
    if (options.listen.empty()) return source_address_towards(resolve_master(options).front());
    if (std::isdigit(static_cast<unsigned char>(options.listen[0])) != 0 ||
        options.listen.find(':') != std::string::npos) {
      const bool six = options.listen.find(':') != std::string::npos;
      Address address = parse_address(six ? concat("[", options.listen, "]:1") : options.listen + ":1");
      address.set_port(0);
      return address;
    }
    return address_of_interface(options.listen);
  } catch (const SocketError& error) {
    throw UserError(concat("rank ", options.rank, " cannot listen: ", error.what(), "\n  expected MASTER_ADDR = \"",
                           options.master_addr, "\" to be reachable, or an interface or address of this host in ",
                           "TcpOptions::listen or GLOO_SOCKET_IFNAME"));
  }
}

}  // namespace

TcpOptions tcp_options_from_env() {
  TcpOptions options;
  options.token = JobToken::take_from_environment();
  options.world_size = env_int("WORLD_SIZE", 1, 1 << 20);
  options.rank = env_int("RANK", 0, options.world_size - 1);
  options.master_port = env_int("MASTER_PORT", 1, 65535);
  if (const std::string addr = env_text("MASTER_ADDR"); !addr.empty()) options.master_addr = addr;
  options.agent_hosts = env_text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  options.run_id = env_text("TORCHELASTIC_RUN_ID");
  // a restarted run must not meet the keys of its last attempt, which an agent's store still holds
  options.run_id += "/" + env_text("TORCHELASTIC_RESTART_COUNT");
  options.listen = env_text("GLOO_SOCKET_IFNAME");
  return options;
}

std::string host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, 64> pid_namespace{};
  const ssize_t length = readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1);
  return boot_id + " " + std::string(pid_namespace.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

Rendezvous::Rendezvous(const TcpOptions& options)
    : rank_(options.rank),
      world_size_(options.world_size),
      init_timeout_ms_(options.init_timeout_ms),
      token_(options.token),
      listen_(find_listen_address(options)) {
  SFSDP_CHECK(!options.agent_hosts || options.agent, "no connection to the agent");
  if (token_.empty() && !options.agent_hosts && !listen_.is_loopback())
    throw UserError(concat("rank ", rank_, " of ", world_size_, " listens at ", listen_.text(),
                           ", where other hosts can reach it, without a job token\n  expected ", JobToken::kVariable,
                           " with the same 32 or more hexadecimal digits on all ranks; make them with: openssl rand "
                           "-hex 32"));
  try {
    connect(options, rank_ == 0 ? std::vector{open_store(options)} : find_store(options));
  } catch (const RefusedError& error) {
    throw UserError(concat("rank ", rank_, " of ", world_size_, " is refused by the store of rank 0: ", error.what(),
                           "\n  expected the same ", JobToken::kVariable,
                           " on all ranks, or sfsdp launch, which hands ", "out one; is another run at MASTER_PORT?"));
  }
}

Rendezvous::~Rendezvous() = default;

Address Rendezvous::open_store(const TcpOptions& options) {
  Address place = listen_;
  if (!options.agent_hosts) place.set_port(options.master_port);
  if (options.agent_hosts && token_.empty()) token_ = JobToken::fresh();
  try {
    server_ = std::make_unique<StoreServer>(place, token_, world_size_);
  } catch (const PortInUse&) {
    throw UserError(concat("port ", options.master_port, " is in use on this host\n  expected a free one for the ",
                           "store of rank 0; choose another MASTER_PORT, or sfsdp launch --master-port"));
  } catch (const SocketError& error) {
    throw CommError(where(rank_, world_size_, "start") + "cannot open the store: " + error.what());
  }
  // Who reads the agent's store reads the token: docs/security.md.
  if (options.agent_hosts)
    options.agent->set(concat("sfsdp/", options.run_id, "/store"),
                       concat(server_->address().text(), options.token.empty() ? " " + token_.hex() : ""));
  return server_->address();
}

std::vector<Address> Rendezvous::find_store(const TcpOptions& options) {
  if (!options.agent_hosts) {
    try {
      return resolve_master(options);
    } catch (const SocketError& error) {
      throw CommError(where(rank_, world_size_, "start") + error.what() + "; check MASTER_ADDR");
    }
  }
  try {
    const std::string note = options.agent->wait(concat("sfsdp/", options.run_id, "/store"), init_timeout_ms_);
    const auto words = split(note, ' ');
    if (words.size() == 2 && token_.empty()) token_ = JobToken::from_hex(words[1]);
    return {parse_address(words[0])};
  } catch (const std::exception& error) {
    throw CommError(concat(where(rank_, world_size_, "start"), "rank 0 has not said where its store is, in ",
                           init_timeout_ms_, " ms; read rank 0's log (", error.what(), ")"));
  }
}

void Rendezvous::connect(const TcpOptions& options, const std::vector<Address>& places) {
  const auto deadline = Clock::now() + milliseconds(init_timeout_ms_);
  for (size_t turn = 0;; ++turn) {
    address_ = places[turn % places.size()];
    try {
      const bool last_place = places.size() == 1;
      store_ =
          std::make_unique<StoreClient>(address_, token_, rank_, Purpose::Store,
                                        last_place ? deadline : std::min(deadline, Clock::now() + milliseconds(100)));
      return;
    } catch (const RefusedError&) {
      throw;
    } catch (const SocketError& error) {
      if (Clock::now() < deadline) continue;
      throw CommError(
          concat(where(rank_, world_size_, "start"), "no store answers in ", init_timeout_ms_,
                 " ms; expected rank 0 to host it at ",
                 options.agent_hosts ? address_.text() : concat(options.master_addr, ":", options.master_port),
                 ": check MASTER_ADDR and MASTER_PORT, read rank 0's log (", error.what(), ")"));
    }
  }
}

std::unique_ptr<StoreClient> Rendezvous::connect_heartbeat() const {
  return std::make_unique<StoreClient>(address_, token_, rank_, Purpose::Heartbeat,
                                       Clock::now() + milliseconds(init_timeout_ms_));
}

std::vector<std::string> Rendezvous::wait_for(const std::string& prefix, const std::vector<int>& ranks,
                                              const std::string& what) {
  constexpr int64_t kSliceMs = 500;  // other threads may use the connection in between
  const auto deadline = Clock::now() + milliseconds(init_timeout_ms_);
  try {
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      const auto found = store_->collect(prefix, ranks, std::clamp<int64_t>(left, 0, kSliceMs));
      std::vector<std::string> values, missing;
      for (size_t i = 0; i < found.size(); ++i) {
        if (found[i]) values.push_back(*found[i]);
        if (!found[i]) missing.push_back(std::to_string(ranks[i]));
      }
      if (missing.empty()) return values;
      if (const std::string reason = aborted(); !reason.empty())
        throw AbortedError(where(rank_, world_size_, what) + reason);
      for (size_t i = 0; i < found.size() && why_gone_; ++i)
        if (const std::string why = found[i] ? "" : why_gone_(ranks[i]); !why.empty())
          throw CommError(concat(where(rank_, world_size_, what), "no answer from rank ", ranks[i], ": ", why,
                                 "; read rank ", ranks[i], "'s log"));
      if (Clock::now() < deadline) continue;
      const std::string first = missing[0];
      const size_t count = missing.size();
      if (count > 8) missing.resize(8);
      const auto refused = server_ ? server_->refused() : std::vector<std::string>();
      throw CommError(concat(where(rank_, world_size_, what), "rank", count == 1 ? " " : "s ", join(missing, ", "),
                             count > 8 ? concat(" and ", count - 8, " more") : "", " never arrived in ",
                             init_timeout_ms_, " ms, ", ranks.size() - count, " of ", ranks.size(), " did; read rank ",
                             first, "'s log",
                             refused.empty() ? "" : "; refused, without the run's job token: " + join(refused, ", ")));
    }
  } catch (const SocketError& error) {
    throw CommError(where(rank_, world_size_, what) + "the store of rank 0 is gone: " + error.what() +
                    "; read rank 0's log");
  }
}

void Rendezvous::abort(const std::string& reason) {
  store_->set_first("aborted", concat("rank ", rank_, " aborted: ", reason), StoreClient::Patience::LastWords);
}

std::string Rendezvous::aborted() {
  const auto value = store_->get("aborted");
  return value ? value->text : "";
}

void Rendezvous::say_goodbye(int64_t patience_ms) {
  store_->set("bye/" + std::to_string(rank_), "1", StoreClient::Patience::LastWords);
  if (!server_) return;
  std::vector<int> all(static_cast<size_t>(world_size_));
  std::iota(all.begin(), all.end(), 0);
  const auto deadline = Clock::now() + milliseconds(patience_ms);
  while (Clock::now() < deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    const auto found = store_->collect("bye/", all, std::clamp<int64_t>(left, 0, 500));
    if (std::ranges::all_of(found, [](const auto& value) { return value.has_value(); })) return;
  }
}

}  // namespace sfsdp::comm
