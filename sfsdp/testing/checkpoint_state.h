// SPDX-License-Identifier: BSD-3-Clause
// A few tensors of a few hundred bytes, cut for any mesh: what the tests of checkpoints save and load. For tests only.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// How a rank of replicas × shards × tp stores: along tp boxes of `w` and its moment (dimension 1), `half` and `table` (dimension
// 0), and of each box equal ranges over shards, as a flat bucket cuts them; `counter` whole on all ranks; `stats` each data rank's own.
struct TestMesh {
  int64_t shards = 1, replicas = 1, tp = 1;
  int64_t ranks() const { return shards * replicas * tp; }
  int64_t data_ranks() const { return shards * replicas; }
};

struct TestCut {
  int64_t cut = -1;    // the dimension along tp
  bool whole = false;  // on all ranks of the data axes
  int64_t own = -1;    // the data rank whose it is
};

// One rank's state: memory, and the pieces that point to it.
class TestState {
 public:
  // Element i of tensor t is a function of `salt`, t and i; of `stats` of the rank too. salt < 0: all zero.
  TestState(TestMesh mesh, int64_t rank, int64_t salt) : mesh_(mesh), rank_(rank) {
    add("w", TensorKind::Parameter, ir::DType::f32, {7, 13}, salt, {.cut = 1});
    add("bias", TensorKind::Parameter, ir::DType::f32, {13}, salt);
    add("none", TensorKind::Parameter, ir::DType::f32, {0, 4}, salt);
    add("ids", TensorKind::Buffer, ir::DType::i64, {3}, salt);
    add("half", TensorKind::Parameter, ir::DType::bf16, {5, 3}, salt, {.cut = 0});
    add("w.exp_avg", TensorKind::Optimizer, ir::DType::f32, {7, 13}, salt, {.cut = 1});
    add("counter", TensorKind::Optimizer, ir::DType::f32, {}, salt, {.whole = true});
    add("table", TensorKind::Buffer, ir::DType::f32, {53, 61}, salt,
        {.cut = 0});  // more than a page for each of two ranks
    const int64_t data_rank = rank / mesh.tp;
    add("stats", TensorKind::Buffer, ir::DType::f32, {4}, salt < 0 ? salt : salt + 100 * data_rank,
        {.whole = true, .own = data_rank});
  }
  const std::vector<Piece>& pieces() const { return pieces_; }
  // All bytes of this rank by name.
  std::map<std::string, std::string> bytes() const {
    std::map<std::string, std::string> all;
    for (const Piece& p : pieces_) all[p.name] = std::string(reinterpret_cast<const char*>(p.data), p.bytes().size());
    return all;
  }

 private:
  void add(const std::string& name, TensorKind kind, ir::DType dtype, std::vector<int64_t> shape, int64_t salt,
           const TestCut& stored = {}) {
    Piece p;
    p.name = name;
    p.kind = kind;
    p.dtype = dtype;
    p.shape = std::move(shape);
    p.rank = stored.own;
    const bool is_cut = stored.cut >= 0 && mesh_.tp > 1;
    if (is_cut) {
      p.box = plan::whole_box(p.shape).dims;
      Chunk& dim = p.box[static_cast<size_t>(stored.cut)];
      dim = chunk_of(dim.length, mesh_.tp, rank_ % mesh_.tp);
    }
    const int64_t numel = p.box_numel(), shard = rank_ / mesh_.tp % mesh_.shards;
    const Chunk mine = stored.whole ? Chunk{0, numel} : chunk_of(numel, mesh_.shards, shard);
    p.begin = mine.offset;
    p.end = mine.offset + mine.length;
    const auto share_along = [&](const char* axis, int64_t place, int64_t size) {
      if (size == 1) return;
      p.along.emplace_back(axis);
      p.holder = p.holder * size + place;
      p.holders *= size;
    };
    if (stored.own < 0) share_along("dp_replicate", rank_ / mesh_.tp / mesh_.shards, mesh_.replicas);
    if (stored.own < 0 && stored.whole) share_along("dp_shard", shard, mesh_.shards);
    if (!is_cut) share_along("tp", rank_ % mesh_.tp, mesh_.tp);
    memory_.emplace_back(static_cast<size_t>(mine.length * ir::size_in_bytes(dtype)) + 1);
    p.data = memory_.back().data();
    plan::for_each_run(p.place(), plan::whole_box(p.shape), [&](const plan::BoxRun& run) {
      for (int64_t i = 0; i < run.count; ++i) fill(p, run.first + i, run.second + i, salt);
    });
    pieces_.push_back(p);
  }
  // Element `i` of what the piece counts in, which is element `whole` of the tensor.
  static void fill(const Piece& p, int64_t i, int64_t whole, int64_t salt) {
    const auto width = static_cast<size_t>(ir::size_in_bytes(p.dtype));
    const uint64_t bits =
        salt < 0 ? 0 : (static_cast<uint64_t>(salt) * 1000003 + p.name.size() * 7919 + whole) * 2654435761u;
    uint64_t kept = bits & 0x3fff3fff3fff3fffu;  // no nan in any dtype
    std::memcpy(p.data + static_cast<size_t>(i - p.begin) * width, &kept, width);
  }

  TestMesh mesh_;
  int64_t rank_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<Piece> pieces_;
};

}  // namespace sfsdp::train::checkpoint
