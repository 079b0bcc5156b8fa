// SPDX-License-Identifier: BSD-3-Clause
// Collectives of one group of processes of one host, over memory that all of them see. What lies in a window is read where it
// lies: a gather is one copy, a reduction one pass. Other data goes through a staging area, piece by piece.
//
// Naive idea: each rank writes into its peers' memory. What breaks it: a rank that is late, or that has been killed and started
// anew, writes into what the others already use for something else. Here ranks only read their peers, between two meetings.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/growing_memory.h"
#include "sfsdp/comm/board.h"
#include "sfsdp/comm/call.h"
#include "sfsdp/comm/chunks.h"
#include "sfsdp/comm/flight_recorder.h"
#include "sfsdp/comm/group_communicator.h"
#include "sfsdp/comm/shm/windows.h"

namespace sfsdp::comm {

struct ShmSlot;

// What a rank of a group shows to its peers: a slot for the call that it makes, and its staging area.
class ShmArea {
 public:
  ShmArea();  // throws: std::system_error
  MemoryId id() const { return memory_.id(); }
  ShmSlot& slot() const;
  // Two halves, used in turn.
  std::span<std::byte> stage(uint64_t turn, size_t bytes);

 private:
  GrowingMemory memory_;
};

class ShmCommunicator final : public GroupCommunicator {
 public:
  //   areas: of the peers, in group order; null for this rank
  ShmCommunicator(CallSite site, std::unique_ptr<Board> board, std::unique_ptr<ShmArea> own,
                  std::vector<std::unique_ptr<PeerMemory>> areas, std::shared_ptr<const Windows> windows,
                  std::shared_ptr<const Timeout> timeout_ms, std::shared_ptr<FlightRecorder> recorder);
  ~ShmCommunicator() override;

  void abort(const std::string& reason) override { board_->abort(site().global_rank(), reason); }

  bool shares_memory() const override { return true; }
  void leave() override { board_->leave(rank()); }
  bool is_broken() const override { return broken_; }

 protected:
  void run_checked(const Call& call, std::span<const std::byte> in, std::span<std::byte> out) override;

 private:
  using Parts = std::vector<std::span<const std::byte>>;  // by rank

  void act(std::span<const std::byte> in, std::span<std::byte> out);
  void show(std::span<const std::byte> data);
  void show_counts();
  std::vector<Range> compare_counts();
  void meet();
  bool are_parts_in_place() const;
  std::span<const std::byte> part(int rank, std::span<const std::byte> own);
  Parts parts(std::span<const std::byte> own);
  const std::byte* place(int rank);
  const ShmSlot& slot(int rank) const;
  std::span<const std::byte> peer_stage(int rank, size_t bytes) const;

  void move(std::span<const std::byte> in, std::span<std::byte> out);
  void move_staged(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<Range>& sent);
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out);
  void reduce_scatter_staged(std::span<const std::byte> in, std::span<std::byte> out);
  void all_reduce(std::span<std::byte> data);
  void all_reduce_staged(std::span<std::byte> data);

  std::unique_ptr<Board> board_;
  std::unique_ptr<ShmArea> own_;
  std::vector<std::unique_ptr<PeerMemory>> areas_;  // by rank; null for this one
  std::shared_ptr<const Windows> windows_;
  std::shared_ptr<const Timeout> timeout_ms_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::vector<std::map<uint64_t, std::unique_ptr<PeerMemory>>> mapped_;  // windows by rank and inode
  uint64_t sequence_ = 0;
  uint64_t turn_ = 0;           // of the staging area
  const Call* call_ = nullptr;  // that runs
  bool broken_ = false;
};

}  // namespace sfsdp::comm
