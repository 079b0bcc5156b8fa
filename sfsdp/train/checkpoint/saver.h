// SPDX-License-Identifier: BSD-3-Clause
// One save of all ranks: each writes its file, rank 0 makes the checkpoint visible; on the caller's thread or on one of
// its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"
#include "sfsdp/train/checkpoint/store.h"

namespace sfsdp::train::checkpoint {

struct SaveRequest {
  std::vector<Piece> pieces;            // all of this rank's
  std::vector<StoredTensor> left_out;   // all that no rank writes, with this rank's part of the digests
  Manifest about;                       // without files and tensors
  std::optional<ir::DType> dtype = {};  // floating parameters are written in this one
  bool in_background = false;
  std::string failure = {};  // why this rank cannot save what it has
};

struct SaveResult {
  std::string path;
  std::string failure;                // "": saved, and it survives a crash
  std::vector<std::string> warnings;  // lines about older checkpoints; rank 0 alone has any
  int64_t step = 0;
  bool model_only = false;
  int64_t bytes = 0;
  double seconds = 0;        // until it was on the disk
  double stall_seconds = 0;  // of them the caller waited
};

// Every text of all ranks, in rank order: a collective call. A null communicator is one rank's.
std::vector<std::string> gather_texts(comm::Communicator* ranks, const std::string& mine, const char* what);

// A rank's saver: idle, or one save in flight. Its calls are made by one thread, in the same order on all ranks.
class Saver {
 public:
  //   store: of rank 0, locked; other ranks only take paths from it
  //   ranks: a group of all ranks that nothing else uses, as saves run beside the steps; null: one rank
  //   keep:  as Store::purge
  Saver(Store& store, std::shared_ptr<comm::Communicator> ranks, int64_t keep)
      : store_(store), ranks_(std::move(ranks)), keep_(keep) {}
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Nothing may be in flight. In the background: the state is copied once, into one buffer that is kept for the next
  // save, and may change when the call returns.
  void start(SaveRequest request);
  // Waits for the save in flight; none: there is none.
  std::optional<SaveResult> wait();
  // There is one in flight, and it has ended: wait() returns at once.
  bool has_ended() const { return result_ && ended_.load(std::memory_order_acquire); }

 private:
  struct Freed {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  void reserve(size_t bytes);
  void stage(SaveRequest& request);
  void run(const SaveRequest& request);
  void write(const SaveRequest& request);
  int rank() const { return ranks_ ? ranks_->rank() : 0; }

  Store& store_;
  std::shared_ptr<comm::Communicator> ranks_;
  int64_t keep_;
  std::unique_ptr<std::byte[], Freed> staging_;
  size_t staging_bytes_ = 0;
  std::span<const std::byte> image_;  // this rank's file in `staging_`; empty: the pieces lie in the caller's memory
  std::optional<SaveResult> result_;  // of the save in flight: the thread's until it is joined
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace sfsdp::train::checkpoint
