// SPDX-License-Identifier: BSD-3-Clause
// What saving and loading take beside the state, counted by the kernel: the most pages that the process ever had.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/process_memory.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/saver.h"
#include "sfsdp/train/checkpoint/shard_file.h"

namespace sfsdp::train::checkpoint::memory_test {
namespace {

using testing::growth;
using testing::kMib;
using testing::kSanitized;
using testing::MemoryFolder;

// Huge pages, stacks of threads, texts of manifests; the kernel counts in batches of pages per core.
constexpr int64_t kSlack = 3 * kMib;

// Rank `rank`'s part of a tensor of 3/4 of `mib`, and one of the rest.
struct State {
  explicit State(int64_t mib, ir::DType dtype = ir::DType::f32, int64_t rank = 0, int64_t ranks = 1) {
    for (const int64_t quarters : {3, 1}) {
      Piece p;
      p.name = concat("w", quarters);
      p.dtype = dtype;
      const int64_t numel = quarters * mib / 4 * kMib / 4;  // of f32
      p.shape = {numel};
      p.begin = numel * rank / ranks;
      p.end = numel * (rank + 1) / ranks;
      memory.emplace_back(static_cast<size_t>((p.end - p.begin) * ir::size_in_bytes(dtype)), std::byte{0x3f});
      p.data = memory.back().data();
      pieces.push_back(p);
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<Piece> pieces;
};

void save(Saver& saver, const State& state, bool in_background, std::optional<ir::DType> dtype = {}) {
  SaveRequest request;
  request.pieces = state.pieces;
  request.about.run.step = 1;
  request.dtype = dtype;
  request.in_background = in_background;
  saver.start(std::move(request));
  CHECK(saver.wait()->failure == "");
}

}  // namespace

TEST_CASE("memory: a save takes nothing beside the state, one in the background one copy that is kept for the next" *
          doctest::skip(kSanitized)) {
  const MemoryFolder folder;
  const State state(64), half(32);
  Store store(folder / "c");
  store.lock();
  {
    Saver saver(store, nullptr, 0);
    CHECK(growth([&] { save(saver, state, false); }) <= kSlack);
    const int64_t first = growth([&] { save(saver, half, true); });
    CHECK(first <= 32 * kMib + kSlack);
    CHECK(first >= 31 * kMib);  // or nothing is counted
    CHECK(growth([&] { save(saver, half, true); }) <= kSlack);
    CHECK(growth([&] { save(saver, state, true); }) <= 32 * kMib + kSlack);  // never both buffers
  }
  Saver saver(store, nullptr, 0);
  CHECK(growth([&] { save(saver, state, false, ir::DType::bf16); }) <= 32 * kMib + kSlack);
}

TEST_CASE("memory: a load takes one block per rank, whatever cut and dtype" * doctest::skip(kSanitized)) {
  const MemoryFolder folder;
  Store store(folder / "c");
  store.lock();
  {
    Saver saver(store, nullptr, 0);
    save(saver, State(64), false);
  }
  const std::string path = store.path_of(1);
  const State same(64), bf16(64, ir::DType::bf16);
  CHECK(growth([&] { load(open_checkpoint(path), path, same.pieces); }) <= kBlockBytes + kSlack);
  CHECK(growth([&] { load(open_checkpoint(path), path, bf16.pieces); }) <= kBlockBytes + kSlack);
  std::vector<State> cut;
  for (int64_t rank = 0; rank < 3; ++rank) cut.emplace_back(64, ir::DType::f32, rank, 3);
  const auto load_on_ranks = [&] {
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      load(open_checkpoint(path), path, cut[static_cast<size_t>(world.rank())].pieces);
    });
  };
  CHECK(growth(load_on_ranks) <= 3 * kBlockBytes + kSlack);
  for (const State& state : cut)
    for (const Piece& p : state.pieces) CHECK(std::ranges::count(p.bytes(), std::byte{0x3f}) == std::ssize(p.bytes()));
}

TEST_CASE("memory: of a matrix a load of some columns takes one block, and so does one of all from boxes of columns" *
          doctest::skip(kSanitized)) {
  const MemoryFolder folder;
  const auto columns = [](int64_t first, int64_t count, std::vector<std::byte>& memory) {
    Piece p;
    p.name = "w";
    p.shape = {4096, 4096};
    if (count < 4096) p.box = {{0, 4096}, {first, count}};
    p.end = 4096 * count;
    memory.assign(static_cast<size_t>(p.end * 4), std::byte{0x3f});
    p.data = memory.data();
    return p;
  };
  std::vector<std::byte> all, some;
  const Piece whole = columns(0, 4096, all), part = columns(1000, 1000, some);
  Store store(folder / "c");
  store.lock();
  std::vector<Manifest> fragments(2);
  for (Manifest& fragment : fragments) fragment.run.step = 1;
  store.begin(1);
  write_shard(store.temporary_path_of(1), shard_name(0), {whole}, fragments[0]);
  store.publish(merge({fragments[0]}));
  CHECK(growth([&] { load(open_checkpoint(store.path_of(1)), store.path_of(1), {part}); }) <= kBlockBytes + kSlack);
  std::vector<std::byte> left, right;
  for (Manifest& fragment : fragments) fragment.run.step = 2;
  store.begin(2);
  write_shard(store.temporary_path_of(2), shard_name(0), {columns(0, 3000, left)}, fragments[0]);
  write_shard(store.temporary_path_of(2), shard_name(1), {columns(3000, 1096, right)}, fragments[1]);
  store.publish(merge(fragments));
  std::ranges::fill(all, std::byte{0});
  CHECK(growth([&] { load(open_checkpoint(store.path_of(2)), store.path_of(2), {whole}); }) <= kBlockBytes + kSlack);
  CHECK(std::ranges::count(all, std::byte{0x3f}) == std::ssize(all));
}

}  // namespace sfsdp::train::checkpoint::memory_test
