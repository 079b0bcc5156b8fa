// SPDX-License-Identifier: BSD-3-Clause
// The store of a run over MPI: a thread of rank 0 holds keys and values, and answers messages.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/mpi/mpi_library.h"

namespace sfsdp::comm {

class FrameReader;

// Rank 0's.
class MpiStoreServer {
 public:
  //   tag: of requests; an answer has the tag that its request names
  MpiStoreServer(std::shared_ptr<Mpi> mpi, int tag);
  ~MpiStoreServer();
  MpiStoreServer(const MpiStoreServer&) = delete;
  MpiStoreServer& operator=(const MpiStoreServer&) = delete;

 private:
  struct Entry {
    std::string value;
    std::chrono::steady_clock::time_point set_at;
  };
  // Lies where it is as long as MPI may read or write it.
  struct Letter {
    std::string text;
    int peer = 0;
    Mpi::Message message;
  };
  using Letters = std::vector<std::unique_ptr<Letter>>;
  void run();
  bool take_request();
  void answer_requests();
  void reply(std::string_view request, int to);
  std::string answer(FrameReader& reader);
  void finish_answers();

  std::shared_ptr<Mpi> mpi_;
  int tag_;
  std::map<std::string, Entry> entries_;
  Letters requests_, answers_;  // on their way
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// A rank's way to it. One request at a time; from any thread.
class MpiStore final : public Store {
 public:
  //   answer_tag: that no other store of this process has
  MpiStore(std::shared_ptr<Mpi> mpi, int tag, int answer_tag);

  void set(const std::string& key, const std::string& value, Patience patience = Patience::Usual) override;
  std::string set_first(const std::string& key, const std::string& value, Patience patience = Patience::Usual) override;
  std::optional<Value> get(const std::string& key) override;
  void interrupt() override { interrupted_ = true; }

 private:
  std::string ask(const std::string& frame, int64_t patience_ms);
  struct Exchange;
  void make(Exchange& exchange, std::chrono::steady_clock::time_point deadline);
  bool is_done_by(Mpi::Request& request, size_t& received, std::chrono::steady_clock::time_point deadline);

  std::shared_ptr<Mpi> mpi_;
  int tag_, answer_tag_;
  std::mutex mutex_;
  bool lost_ = false;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace sfsdp::comm
