// SPDX-License-Identifier: BSD-3-Clause
// A rank's connection to the store (store_server.h). One request at a time; from any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/tcp/handshake.h"
#include "sfsdp/comm/tcp/job_token.h"
#include "sfsdp/comm/tcp/socket.h"

namespace sfsdp::comm {

// Errors are SocketErrors.
class StoreClient final : public Store {
 public:
  //   throws: RefusedError, SocketError
  StoreClient(const Address& store, const JobToken& token, int rank, Purpose purpose, Clock::time_point deadline);

  void set(const std::string& key, const std::string& value, Patience patience = Patience::Usual) override;
  std::string set_first(const std::string& key, const std::string& value, Patience patience = Patience::Usual) override;
  std::optional<Value> get(const std::string& key) override;
  // The values of prefix + number, as soon as all are there, or after wait_ms, or once "aborted" is set; nullopt where there
  // is none.
  std::vector<std::optional<std::string>> collect(const std::string& prefix, const std::vector<int>& numbers,
                                                  int64_t wait_ms);

  void interrupt() override;

 private:
  std::string ask(const std::string& frame, int64_t patience_ms);

  std::mutex mutex_;
  Fd fd_;
  bool lost_ = false;  // the connection is shut down
};

}  // namespace sfsdp::comm
