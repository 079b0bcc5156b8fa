// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a run meet: the store that rank 0 hosts, and who has come to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/comm/tcp/store_client.h"
#include "sfsdp/comm/tcp/store_server.h"
#include "sfsdp/comm/tcp/tcp_options.h"

namespace sfsdp::comm {

class Rendezvous {
 public:
  // Connects to the store; rank 0 opens it.
  //   throws: CommError; UserError if the port is in use, the token is not that of the run, or there is none although
  //   ranks listen where other hosts can reach them
  explicit Rendezvous(const TcpOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  StoreClient& store() { return *store_; }
  // A connection of its own, for another thread; the store notes when it ends without a goodbye.
  std::unique_ptr<StoreClient> connect_heartbeat() const;

  // Waits until each of `ranks` has set prefix + its number; what they have set.
  //   what:   "start", "group dp_shard": where in the message of the CommError that names who has not come
  //   throws: AbortedError as soon as any rank has called abort, CommError as soon as one that has not come is gone
  std::vector<std::string> wait_for(const std::string& prefix, const std::vector<int>& ranks, const std::string& what);

  // Asked twice a second of each rank that is waited for: why it will not come, "" while it may.
  using WhyGone = std::function<std::string(int rank)>;
  void watch(WhyGone why_gone) { why_gone_ = std::move(why_gone); }

  void abort(const std::string& reason);
  // "rank 2 aborted: loss is nan", or "".   throws: SocketError
  std::string aborted();

  // If this rank hosts the store, lets the other ranks close before it goes away, as long as its patience lasts.
  void say_goodbye(int64_t patience_ms);

  std::string place() const { return address_.text(); }
  // Where this rank listens for ranks of other hosts; port 0.
  const Address& listen_address() const { return listen_; }
  const JobToken& token() const { return token_; }

 private:
  Address open_store(const TcpOptions& options);
  std::vector<Address> find_store(const TcpOptions& options);
  void connect(const TcpOptions& options, const std::vector<Address>& places);

  int rank_, world_size_;
  int64_t init_timeout_ms_;
  JobToken token_;
  Address listen_, address_;
  WhyGone why_gone_;                     // unset until the ranks know of each other
  std::unique_ptr<StoreServer> server_;  // of rank 0
  std::unique_ptr<StoreClient> store_;
};

// Equal for processes that can map the same memory and see each other's process numbers.
std::string host_identity();

}  // namespace sfsdp::comm
