// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a run meet: a key-value store that all can reach, and who has come to it. Torch-free header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/comm/gloo/gloo_world.h"

namespace c10d {
class Store;
}

namespace sfsdp::comm {

class Rendezvous {
 public:
  // Connects to the store; rank 0 opens it unless an agent has.
  //   throws: CommError; UserError if the port is in use
  explicit Rendezvous(const GlooOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // A second connection, for another thread.
  std::unique_ptr<Rendezvous> clone() const;

  void set(const std::string& key, const std::string& value);
  // "" if nobody has set it.
  std::string get(const std::string& key);
  // Sets the key if nobody has; what it is then.
  std::string set_first(const std::string& key, const std::string& value);

  // Waits until each of `ranks` has set prefix + its number; what they have set.
  //   what:   "start", "group dp_shard": where in the message of the CommError that names who has not come
  //   throws: AbortedError as soon as any rank has called abort
  std::vector<std::string> wait_for(const std::string& prefix, const std::vector<int>& ranks, const std::string& what);

  void abort(const std::string& reason);
  // "rank 2 aborted: loss is nan", or "".
  std::string aborted();

  // If this rank hosts the store, lets the other ranks close before it goes away, as long as its patience lasts.
  void say_goodbye(int64_t patience_ms);

  c10d::Store* store() const;
  std::string place() const;  // "127.0.0.1:29500"

 private:
  struct Impl;
  explicit Rendezvous(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// LibTorch appends a stack to its messages.
std::string first_line(const std::string& message);

// Equal for processes that can map the same memory and see each other's process numbers.
std::string host_identity();

}  // namespace sfsdp::comm
