// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/load.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tensor_bytes.h"
#include "sfsdp/train/checkpoint/shard_file.h"
#include "sfsdp/train/checkpoint/store.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train::checkpoint::load_test {
namespace {

namespace fs = std::filesystem;
using testing::MemoryFolder;

// Without communication: every rank's file, then the manifest.
Manifest save(TestMesh mesh, const std::string& folder, int64_t salt, int64_t step = 5) {
  Store store(folder);
  store.lock();
  store.begin(step);
  std::vector<Manifest> fragments;
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const TestState state(mesh, rank, salt);
    fragments.emplace_back();
    fragments.back().run.step = step;
    fragments.back().world_size = mesh.ranks();
    fragments.back().data_ranks = mesh.data_ranks();
    write_shard(store.temporary_path_of(step), concat("rank-", rank, ".safetensors"), share_out(state.pieces()),
                fragments.back());
  }
  const Manifest all = merge(fragments);
  store.publish(all);
  return all;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

TEST_CASE("share_out: each element is written by one rank, and ranks write as many bytes, give or take an element") {
  for (const TestMesh mesh :
       {TestMesh{1, 1}, TestMesh{2, 1}, TestMesh{1, 3}, TestMesh{4, 2}, TestMesh{8, 1}, TestMesh{3, 5},
        TestMesh{1, 1, 4}, TestMesh{2, 2, 2}, TestMesh{1, 2, 3}, TestMesh{3, 3, 3}}) {
    CAPTURE(mesh.shards);
    CAPTURE(mesh.replicas);
    CAPTURE(mesh.tp);
    std::map<std::string, std::map<int64_t, int>> writers;
    std::map<int64_t, int64_t> bytes;
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const TestState state(mesh, rank, 1);
      int64_t width = 8;
      for (const Piece& p : share_out(state.pieces())) {
        CHECK(ir::size_in_bytes(p.dtype) <= width);
        width = ir::size_in_bytes(p.dtype);
        if (p.rank < 0) bytes[rank] += static_cast<int64_t>(p.bytes().size());
        plan::for_each_run(p.place(), plan::whole_box(p.shape), [&](const plan::BoxRun& run) {
          for (int64_t i = 0; i < run.count; ++i) ++writers[concat(p.name, "@", p.rank)][run.second + i];
        });
      }
    }
    const TestState whole({1, 1}, 0, 1);
    for (const Piece& p : whole.pieces()) {
      if (p.rank >= 0) continue;
      CAPTURE(p.name);
      CHECK(static_cast<int64_t>(writers[p.name + "@-1"].size()) == p.numel());
      for (const auto& [element, count] : writers[p.name + "@-1"]) CHECK(count == 1);
    }
    for (int64_t rank = 0; rank < mesh.data_ranks(); ++rank) {
      CHECK(writers[concat("stats@", rank)].size() == 4);
      for (const auto& [element, count] : writers[concat("stats@", rank)]) CHECK(count == 1);
    }
    if (mesh.shards == 1 && mesh.tp == 1)  // else shards are uneven themselves
      for (int64_t rank = 0; rank < mesh.ranks(); ++rank) CHECK(std::abs(bytes[rank] - bytes[0]) <= 16);
  }
}

// On dp_replicate 2 × tp 2: `cut` in uneven parts over tp, each held by two replicas; `own` each replica's, held by two ranks of tp.
TEST_CASE("share_out: two holders along one axis are not the two along another, whose bytes may end elsewhere") {
  std::map<int64_t, std::vector<int>> written;  // elements of `own`, by replica
  for (int64_t rank = 0; rank < 4; ++rank) {
    const int64_t replica = rank / 2, tp = rank % 2;
    Piece cut, own;
    cut.name = "cut";
    cut.shape = {16};
    cut.box = {tp == 0 ? Chunk{0, 10} : Chunk{10, 6}};
    cut.end = cut.box_numel();
    cut.holder = replica;
    cut.along = {"dp_replicate"};
    own.name = "own";
    own.shape = {10};
    own.rank = replica;
    own.end = 10;
    own.holder = tp;
    own.along = {"tp"};
    cut.holders = own.holders = 2;
    written[replica].resize(10);
    for (const Piece& p : share_out({cut, own}))
      for (int64_t i = p.begin; p.name == "own" && i < p.end; ++i) ++written[replica][static_cast<size_t>(i)];
  }
  for (const auto& [replica, counts] : written) CHECK(counts == std::vector<int>(10, 1));
}

TEST_CASE("what any mesh saved, any other loads, bit for bit, from just the bytes it needs") {
  const TestMesh meshes[] = {{1, 1},    {2, 1},    {3, 1},    {1, 2},    {2, 2},    {4, 1},
                             {8, 1},    {1, 8},    {3, 2},    {1, 1, 2}, {1, 1, 3}, {1, 1, 5},
                             {2, 1, 2}, {1, 2, 2}, {2, 2, 2}, {3, 1, 3}, {2, 3, 4}};
  for (const TestMesh from : meshes) {
    const MemoryFolder folder;
    save(from, folder.path(), 3);
    const std::string path = folder / "step-5";
    const Manifest manifest = open_checkpoint(path);
    CHECK(verify(manifest, path).empty());
    for (const TestMesh to : meshes)
      for (int64_t rank = 0; rank < to.ranks(); ++rank) {
        CAPTURE(from.ranks());
        CAPTURE(to.ranks());
        CAPTURE(from.tp);
        CAPTURE(to.tp);
        CAPTURE(rank);
        const TestState loaded(to, rank, -1);
        load(manifest, path, loaded.pieces());
        auto expected = TestState(to, rank, 3).bytes();
        expected["stats"] = TestState({from.data_ranks()}, rank / to.tp % from.data_ranks(), 3).bytes()["stats"];
        CHECK(loaded.bytes() == expected);
        if (from.tp > 1 || to.tp > 1) continue;  // what boxes share lies in between what they do not
        int64_t elements = 0, mine = 0;
        for (const PlannedRead& read : plan_reads(manifest, loaded.pieces(), path)) elements += read.end - read.begin;
        for (const Piece& p : loaded.pieces()) mine += p.end - p.begin;
        CHECK(elements == mine);
      }
  }
}

// testdata/step-5 was written by save({2, 1}, folder, 3) before state had an address of its own (plan::StorageLayout).
TEST_CASE("a checkpoint that was written before the storage layout of state had a version loads on any mesh") {
  const std::string path = testing::source_dir() + "/sfsdp/train/checkpoint/testdata/step-5";
  const Manifest manifest = open_checkpoint(path);
  CHECK(manifest.sfsdp_version == "0.1.0");
  CHECK(verify(manifest, path).empty());
  for (const TestMesh to : {TestMesh{1, 1}, TestMesh{2, 1}, TestMesh{3, 2}})
    for (int64_t rank = 0; rank < to.ranks(); ++rank) {
      const TestState loaded(to, rank, -1);
      load(manifest, path, loaded.pieces());
      auto expected = TestState(to, rank, 3).bytes();
      expected["stats"] = TestState(to, rank % 2, 3).bytes()["stats"];
      CHECK(loaded.bytes() == expected);
    }
}

TEST_CASE("what data parallelism saves is byte for byte what it was before there were boxes") {
  const MemoryFolder folder;
  save({2, 1}, folder.path(), 3);
  const std::string before = testing::source_dir() + "/sfsdp/train/checkpoint/testdata/step-5";
  for (const char* name : {"rank-0.safetensors", "rank-1.safetensors"})
    CHECK(read_text_file(folder / concat("step-5/", name), 1 << 20) ==
          read_text_file(concat(before, "/", name), 1 << 20));
  const auto tensors = [](const std::string& path) {
    const std::string text = read_text_file(path + "/manifest.json", 1 << 20);
    return text.substr(text.find("\"files\""));
  };
  CHECK(tensors(folder / "step-5") == tensors(before));
}

TEST_CASE("a rank's file is safetensors: whole tensors by name and shape, parts by their range") {
  const MemoryFolder folder;
  save({2, 1}, folder.path(), 3);
  const auto file = SafetensorsFile::open(folder / "step-5/rank-1.safetensors");
  const TestState state({2, 1}, 1, 3);
  REQUIRE(file.find("w[46:91]"));
  CHECK(file.find("w[46:91]")->shape == std::vector<int64_t>{45});
  CHECK(std::ranges::equal(testing::bytes_of(*file.find("w[46:91]")), state.pieces()[0].bytes()));
  REQUIRE(file.find("stats@1"));
  CHECK(file.find("stats@1")->shape == std::vector<int64_t>{4});
  save({1, 1}, folder / "one", 3);
  const auto whole = SafetensorsFile::open(folder / "one/step-5/rank-0.safetensors");
  CHECK(whole.find("w")->shape == std::vector<int64_t>{7, 13});
  CHECK(whole.find("counter")->shape.empty());
  CHECK(whole.find("half")->dtype == ir::DType::bf16);
  save({2, 1, 2}, folder / "boxes", 3);
  const auto boxes = SafetensorsFile::open(folder / "boxes/step-5/rank-3.safetensors");  // shard 1 of tp rank 1
  REQUIRE(boxes.find("w[0:7,7:13][21:42]"));
  CHECK(boxes.find("w[0:7,7:13][21:42]")->shape == std::vector<int64_t>{21});
  CHECK(boxes.find("half[3:5,0:3][3:6]"));
  save({1, 1, 2}, folder / "tp", 3);
  const auto tp = SafetensorsFile::open(folder / "tp/step-5/rank-1.safetensors");
  REQUIRE(tp.find("w[0:7,7:13]"));
  CHECK(tp.find("w[0:7,7:13]")->shape == std::vector<int64_t>{7, 6});
  CHECK(std::ranges::equal(testing::bytes_of(*tp.find("w[0:7,7:13]")), TestState({1, 1, 2}, 1, 3).pieces()[0].bytes()));
}

TEST_CASE("a damaged block of a box is named with its box") {
  const MemoryFolder folder;
  const Manifest manifest = save({1, 1, 2}, folder.path(), 3);
  const std::string path = folder / "step-5", name = path + "/rank-1.safetensors";
  const StoredTensor& w = *manifest.find("w");
  std::string bytes = read_text_file(name, 1 << 20);
  bytes[static_cast<size_t>(w.ranges[1].offset)] ^= 1;
  std::ofstream(name, std::ios::binary) << bytes;
  const std::string says = "are not what was written there: elements 0 to 42 of box [0:7,7:13] of \"w\"";
  const std::vector<std::string> wrong = verify(manifest, path);
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].find("are not what was written there: elements 0 to 42 of box [0:7,7:13] of \"w\"") !=
        std::string::npos);
  CHECK_NOTHROW(load(manifest, path, TestState({1, 1, 2}, 0, -1).pieces()));  // the other box alone
  CHECK_THROWS_WITH_AS(load(manifest, path, TestState({1, 1, 2}, 1, -1).pieces()), doctest::Contains(says.c_str()),
                       DamagedError);
}

TEST_CASE("of a box that crosses many blocks each is read once, straight where it can be, and one between is not") {
  const MemoryFolder folder;
  constexpr int64_t kRow = kBlockBytes / 4 * 3;  // a row is three blocks
  const std::vector<int64_t> shape = {3, kRow};
  std::vector<float> memory(static_cast<size_t>(3 * kRow));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  Piece piece;
  piece.name = "w";
  piece.shape = shape;
  piece.end = 3 * kRow;
  piece.data = reinterpret_cast<std::byte*>(memory.data());
  Manifest manifest;
  write_shard(folder.path(), "f", {piece}, manifest);
  std::vector<float> part(3 * 10);
  Piece column = piece;
  column.box = {{0, 3}, {5, 10}};
  column.end = 30;
  column.data = reinterpret_cast<std::byte*>(part.data());
  std::fstream file(folder / "f", std::ios::in | std::ios::out | std::ios::binary);  // the second block of nine
  file.seekp(manifest.tensors[0].ranges[0].offset + kBlockBytes + 17);
  file.put('x');
  file.close();
  CHECK_NOTHROW(load(manifest, folder.path(), {column}));
  for (int64_t i = 0; i < 30; ++i)
    REQUIRE(part[static_cast<size_t>(i)] == static_cast<float>(i / 10 * kRow + 5 + i % 10));
  std::vector<double> wide(30);
  column.dtype = ir::DType::f64;
  column.data = reinterpret_cast<std::byte*>(wide.data());
  load(manifest, folder.path(), {column});
  CHECK(std::ranges::equal(wide, part));
  CHECK_THROWS_AS(load(manifest, folder.path(), {piece}), DamagedError);
}

TEST_CASE("every flipped byte of every file is found and named, by verify and by who reads it") {
  const MemoryFolder folder;
  save({2, 1}, folder.path(), 3);
  const std::string path = folder / "step-5";
  const Manifest manifest = open_checkpoint(path);
  for (const FolderEntry& entry : list_folder(path)) {
    const std::string name = path + "/" + entry.name, good = read_text_file(name, 1 << 20);
    CAPTURE(entry.name);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      std::ofstream(name, std::ios::binary) << bad;
      CAPTURE(at);
      std::string found;
      if (entry.name == kManifestFile) {
        try {
          open_checkpoint(path);
        } catch (const DamagedError& error) {
          found = error.what();
        }
        CHECK(found.starts_with(name + ": "));
        continue;
      }
      const std::vector<std::string> wrong = verify(manifest, path);
      CHECK(wrong.size() == 1);
      CHECK((!wrong.empty() && wrong[0].starts_with(name + ": bytes ")));
      const auto file = std::ranges::find(manifest.files, entry.name, &StoredFile::name);
      const bool in_header = at < static_cast<size_t>(file->header_bytes);
      for (int64_t rank = 0; rank < 2; ++rank) try {
          load(manifest, path, TestState({2, 1}, rank, -1).pieces());
        } catch (const DamagedError& error) {
          found = error.what();
        }
      CHECK(found.empty() == in_header);  // which says nothing that loading needs
      if (!in_header) CHECK(found.starts_with(name + ": bytes "));
    }
    std::ofstream(name, std::ios::binary) << good;
  }
  CHECK(verify(open_checkpoint(path), path).empty());
}

TEST_CASE("a file that is cut, longer or gone is named before anything is read") {
  const MemoryFolder folder;
  save({2, 1}, folder.path(), 3);
  const std::string path = folder / "step-5", file = path + "/rank-1.safetensors";
  const auto message = [&] {
    try {
      open_checkpoint(path);
    } catch (const DamagedError& error) {
      return first_line(error.what());
    }
    return std::string();
  };
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  CHECK(message() == concat(file, ": ", size - 1, " bytes"));
  fs::resize_file(file, size + 1);
  CHECK(message() == concat(file, ": ", size + 1, " bytes"));
  fs::remove(file);
  CHECK(message() == file + ": is not there");
  fs::create_directory(file);
  CHECK(message() == file + ": is not there");
  fs::remove(path + "/manifest.json");
  CHECK(message() == path + ": no manifest.json");
}

TEST_CASE("load names a tensor that is not there, of another shape or kind, and converts other floats") {
  const MemoryFolder folder;
  const Manifest manifest = save({2, 1}, folder.path(), 3);
  const std::string path = folder / "step-5";
  std::vector<float> memory(91);
  Piece piece;
  piece.name = "w";
  piece.shape = {7, 13};
  piece.end = 91;
  piece.data = reinterpret_cast<std::byte*>(memory.data());
  const auto message = [&] {
    try {
      load(manifest, path, {piece});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message() == "");
  const std::vector<float> expected = memory;
  piece.name = "v";
  CHECK(first_line(message()) == path + ": no tensor \"v\"");
  piece.name = "w";
  piece.shape = {13, 7};
  CHECK(message() == path + ": tensor \"w\" has shape [7, 13]\n  expected [13, 7], as the model has it");
  piece.shape = {7, 13};
  piece.dtype = ir::DType::i32;
  CHECK(first_line(message()) == path + ": tensor \"w\" is f32");
  std::vector<double> wide(91);
  piece.dtype = ir::DType::f64;
  piece.data = reinterpret_cast<std::byte*>(wide.data());
  CHECK(message() == "");
  CHECK(std::ranges::equal(wide, expected));
}

TEST_CASE("load refuses numbers that the dtype it is to convert to has no room for") {
  const MemoryFolder folder;
  std::vector<float> values = {1, -70000, 65504, 1e30F, INFINITY};
  Piece piece;
  piece.name = "w";
  piece.shape = {5};
  piece.end = 5;
  piece.data = reinterpret_cast<std::byte*>(values.data());
  Store store(folder.path());
  store.lock();
  store.begin(1);
  Manifest manifest;
  manifest.run.step = 1;
  manifest.world_size = manifest.data_ranks = 1;
  write_shard(store.temporary_path_of(1), shard_name(0), {piece}, manifest);
  store.publish(manifest);
  std::vector<uint16_t> half(5);
  piece.dtype = ir::DType::f16;
  piece.data = reinterpret_cast<std::byte*>(half.data());
  std::string message;
  try {
    load(manifest, folder / "step-1", {piece});
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(first_line(message) == (folder / "step-1") + ": 2 numbers of \"w\" are too large for f16");
}

TEST_CASE("a range of several blocks has a hash for each, and a part of it is read by blocks") {
  const MemoryFolder folder;
  const int64_t numel = (kBlockBytes * 2 + kBlockBytes / 2) / 4;
  std::vector<float> memory(static_cast<size_t>(numel));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  Piece piece;
  piece.name = "w";
  piece.shape = {numel};
  piece.end = numel;
  piece.data = reinterpret_cast<std::byte*>(memory.data());
  Manifest manifest;
  write_shard(folder.path(), "f", {piece}, manifest);
  REQUIRE(manifest.tensors[0].ranges[0].hashes.size() == 3);
  std::vector<float> part(static_cast<size_t>(kBlockBytes / 4));
  piece.begin = kBlockBytes / 4 - 3;
  piece.end = piece.begin + kBlockBytes / 4;
  piece.data = reinterpret_cast<std::byte*>(part.data());
  load(manifest, folder.path(), {piece});
  for (size_t i = 0; i < part.size(); ++i) REQUIRE(part[i] == static_cast<float>(static_cast<size_t>(piece.begin) + i));
  // a byte of the last block: who reads the first two does not meet it
  std::fstream file(folder / "f", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  CHECK_NOTHROW(load(manifest, folder.path(), {piece}));
  piece.begin += kBlockBytes / 4;
  piece.end = numel;
  CHECK_THROWS_AS(load(manifest, folder.path(), {piece}), DamagedError);
}

}  // namespace sfsdp::train::checkpoint::load_test
