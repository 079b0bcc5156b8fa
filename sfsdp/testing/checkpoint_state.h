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
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// How a rank of shards × replicas stores: sharded tensors in equal ranges, as a flat bucket cuts them; `counter` whole on
// all ranks; `stats` each data rank's own.
struct TestMesh {
  int64_t shards = 1, replicas = 1;
  int64_t ranks() const { return shards * replicas; }
};

// One rank's state: memory, and the pieces that point to it.
class TestState {
 public:
  // Element i of tensor t is a function of `salt`, t and i; of `stats` of the rank too. salt < 0: all zero.
  TestState(TestMesh mesh, int64_t rank, int64_t salt) : mesh_(mesh), rank_(rank) {
    add("w", TensorKind::Parameter, ir::DType::f32, {7, 13}, salt);
    add("bias", TensorKind::Parameter, ir::DType::f32, {13}, salt);
    add("none", TensorKind::Parameter, ir::DType::f32, {0, 4}, salt);
    add("ids", TensorKind::Buffer, ir::DType::i64, {3}, salt);
    add("half", TensorKind::Parameter, ir::DType::bf16, {5, 3}, salt);
    add("w.exp_avg", TensorKind::Optimizer, ir::DType::f32, {7, 13}, salt);
    add("counter", TensorKind::Optimizer, ir::DType::f32, {}, salt, /*whole=*/true);
    add("table", TensorKind::Buffer, ir::DType::f32, {53, 61}, salt);  // more than a page for each of two ranks
    add("stats", TensorKind::Buffer, ir::DType::f32, {4}, salt < 0 ? salt : salt + 100 * rank, /*whole=*/true, rank);
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
           bool whole = false, int64_t own = -1) {
    Piece p;
    p.name = name;
    p.kind = kind;
    p.dtype = dtype;
    p.shape = std::move(shape);
    p.rank = own;
    const int64_t numel = p.numel();
    const Chunk mine = whole ? Chunk{0, numel} : chunk_of(numel, mesh_.shards, rank_ % mesh_.shards);
    p.begin = mine.offset;
    p.end = mine.offset + mine.length;
    if (own < 0) {
      p.holder = whole ? rank_ : rank_ / mesh_.shards;
      p.holders = whole ? mesh_.ranks() : mesh_.replicas;
    }
    memory_.emplace_back(static_cast<size_t>(mine.length * ir::size_in_bytes(dtype)) + 1);
    p.data = memory_.back().data();
    for (int64_t i = p.begin; i < p.end; ++i) fill(p, i, salt);
    pieces_.push_back(p);
  }
  static void fill(const Piece& p, int64_t i, int64_t salt) {
    const auto width = static_cast<size_t>(ir::size_in_bytes(p.dtype));
    const uint64_t bits =
        salt < 0 ? 0 : (static_cast<uint64_t>(salt) * 1000003 + p.name.size() * 7919 + i) * 2654435761u;
    uint64_t kept = bits & 0x3fff3fff3fff3fffu;  // no nan in any dtype
    std::memcpy(p.data + static_cast<size_t>(i - p.begin) * width, &kept, width);
  }

  TestMesh mesh_;
  int64_t rank_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<Piece> pieces_;
};

}  // namespace sfsdp::train::checkpoint
