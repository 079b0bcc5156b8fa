// SPDX-License-Identifier: BSD-3-Clause
// The store through which the ranks of a run meet: keys and values, served by a thread of rank 0. Whoever has not proved the
// job token (handshake.h) can neither read nor write it, nor delay those who have.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sfsdp/comm/tcp/handshake.h"
#include "sfsdp/comm/tcp/job_token.h"
#include "sfsdp/comm/tcp/socket.h"

namespace sfsdp::comm {

class StoreServer {
 public:
  //   throws: PortInUse, SocketError
  StoreServer(const Address& listen, const JobToken& token, int world_size);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  Address address() const { return address_; }
  // Who has been refused for its token: "rank 3 at 127.0.0.1:50123". From any thread.
  std::vector<std::string> refused() const;

 private:
  struct Entry {
    std::string value;
    Clock::time_point set_at;
  };
  // Several ranks that wait for the same keys: they are answered together.
  struct Gate {
    std::string prefix;
    std::vector<uint32_t> numbers;
    std::set<std::string> missing;
    std::map<int, Clock::time_point> waiters;  // by descriptor: until when
  };
  struct Client {
    Fd fd;
    Hello hello;
    std::string in, out;
  };

  void run();
  void on_event(int fd, uint32_t events);
  void add(Doorman::Guest guest);
  void drop(int fd);
  // Both return false for a client to be dropped.
  bool read(Client& client);
  bool write(Client& client);
  void answer(Client& client, std::string_view request);
  void send(Client& client, const std::string& frame);
  void set(const std::string& key, std::string value);
  void collect(Client& client, std::string prefix, std::vector<uint32_t> numbers, int64_t wait_ms);
  void answer_waiters(Gate& gate, bool only_late);
  std::string collected(const Gate& gate) const;
  void watch(int fd, uint32_t events, int how) const;
  int next_timeout_ms() const;

  Doorman doorman_;
  Address address_;
  Fd epoll_, stop_;
  std::map<std::string, Entry> entries_;
  std::map<int, Client> clients_;  // by descriptor
  std::map<std::string, Gate> gates_;
  mutable std::mutex mutex_;
  std::vector<std::string> refused_;
  std::thread thread_;
};

}  // namespace sfsdp::comm
