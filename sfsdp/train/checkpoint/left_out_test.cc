// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints without the frozen weights: what they say of them, where a start reads them, what is refused.
#include "sfsdp/train/checkpoint/left_out.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/checkpointer.h"
#include "sfsdp/train/checkpoint/convert.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"

namespace sfsdp::train::checkpoint::left_out_test {
namespace {

namespace fs = std::filesystem;
using Kind = WeightSource::Kind;
using testing::MemoryFolder;

constexpr int64_t kBase = 900;  // salt of the frozen weights

// A rank's state whose `w`, `none` and `half` are frozen: they have the salt `base`, all else `salt`.
struct FrozenState {
  FrozenState(TestMesh mesh, int64_t rank, int64_t salt, int64_t base)
      : moving(mesh, rank, salt), still(mesh, rank, base) {}
  std::vector<Piece> pieces() const {
    std::vector<Piece> all = moving.pieces();
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].name == "w" || all[i].name == "none" || all[i].name == "half") {
        all[i] = still.pieces()[i];
        all[i].frozen = true;
      }
    return all;
  }
  std::map<std::string, std::string> bytes() const {
    std::map<std::string, std::string> all;
    for (const Piece& p : pieces()) all[p.name] = std::string(reinterpret_cast<const char*>(p.data), p.bytes().size());
    return all;
  }
  TestState moving, still;
};

struct Job {
  std::string folder;
  TestMesh mesh = {};
  bool leave_out = true;
  WeightSource source = {Kind::Archive, "/base.pt2"};
  int64_t base = kBase;      // what the source has now
  int64_t from = 0, to = 0;  // saves these steps, each
  int64_t load_step = -1;
  std::string initial = {};
  int64_t keep = 0;
};

// Loads, saves steps from … to.  returns: whether the state that was loaded is that of step `from` - 1, on all ranks
bool run(const Job& job, std::vector<std::string>* said = nullptr) {
  std::vector<char> same(static_cast<size_t>(job.mesh.ranks()));
  testing::run_ranks(static_cast<int>(job.mesh.ranks()), [&](comm::CommWorld& world) {
    const int64_t rank = world.rank();
    FrozenState state(job.mesh, rank, -1, -1);
    CheckpointOptions options;
    options.enable = true;
    options.folder = job.folder;
    options.interval = 1;
    options.total_steps = 1000;
    options.keep_latest_k = job.keep;
    options.load_step = job.load_step;
    options.initial_load_path = job.initial;
    options.lock_seconds = 0;
    options.about.world_size = job.mesh.ranks();
    options.about.data_ranks = job.mesh.data_ranks();
    options.frozen.leave_out = job.leave_out;
    options.frozen.source = job.source;
    const auto begin = [&] { state = FrozenState(job.mesh, rank, -1, job.base); };
    options.frozen.read = [&](const WeightSource& source) {
      if (source.kind != job.source.kind) throw UserError("another kind of source");
      const FrozenState read(job.mesh, rank, -1, job.base);
      for (size_t i = 0; i < read.pieces().size(); ++i)
        if (const Piece from = read.pieces()[i], to = state.pieces()[i]; !from.bytes().empty())
          std::memcpy(to.data, from.data, from.bytes().size());
    };
    Checkpointer checkpointer(
        options, &world, [&] { return state.pieces(); },
        [&](const std::string& line) {
          if (said) said->push_back(line);
        });
    const auto loaded = checkpointer.load();
    if (!loaded) begin();
    same[static_cast<size_t>(rank)] =
        loaded && state.bytes() == FrozenState(job.mesh, rank, job.from - 1, kBase).bytes();
    for (int64_t k = job.from; k <= job.to; ++k) {
      // values change in place: pieces alias what the steps compute on
      const TestState next(job.mesh, rank, k);
      for (size_t i = 0; i < next.pieces().size(); ++i)
        if (const Piece& from = next.pieces()[i], to = state.pieces()[i]; !to.frozen && !from.bytes().empty())
          std::memcpy(to.data, from.data, from.bytes().size());
      checkpointer.after_step({.step = k});
    }
    checkpointer.finish();
  });
  return std::ranges::all_of(same, [](char c) { return c != 0; });
}

std::string refusal(const Job& job) {
  try {
    run(job);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> steps_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a digest is that of all elements, however they are cut, and of their places") {
  std::vector<uint16_t> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i * 7919);
  const auto digest = [&](size_t begin, size_t end) {
    return digest_of(std::as_bytes(std::span(values).subspan(begin, end - begin)), 2, static_cast<int64_t>(begin));
  };
  const uint64_t whole = digest(0, 1000);
  for (const size_t cut : {0, 1, 333, 999, 1000}) CHECK(digest(0, cut) + digest(cut, 1000) == whole);
  std::swap(values[3], values[700]);
  CHECK(digest(0, 1000) != whole);
  std::swap(values[3], values[700]);
  values[999] ^= 1;
  CHECK(digest(0, 1000) != whole);
  CHECK(digest_of({}, 8, 0) == 0);
}

TEST_CASE("frozen weights that are left out: the manifest says which, from where, and the same digests on any mesh") {
  std::map<std::string, uint64_t> digests;
  for (const TestMesh mesh :
       {TestMesh{1, 1}, TestMesh{3, 1}, TestMesh{2, 2}, TestMesh{1, 4}, TestMesh{1, 1, 3}, TestMesh{2, 2, 2}}) {
    const MemoryFolder folder;
    std::vector<std::string> said;
    run({.folder = folder / "c", .mesh = mesh, .from = 1, .to = 1}, &said);
    const Manifest m = open_checkpoint(folder / "c/step-1");
    CHECK(m.source == WeightSource{Kind::Archive, "/base.pt2"});
    REQUIRE(m.left_out().size() == 3);
    CHECK(parse_manifest(print(m), "F") == m);
    for (const StoredTensor* t : m.left_out()) {
      CAPTURE(t->name);
      CHECK(t->ranges.empty());
      CHECK(*t->digest == digests.try_emplace(t->name, *t->digest).first->second);
    }
    CHECK(m.find("half")->dtype == ir::DType::bf16);
    CHECK(m.find("w")->shape == std::vector<int64_t>{7, 13});
    CHECK_FALSE(m.find("table")->digest);
    CHECK(contains(join(said, "\n"), "Checkpoints leave out 3 frozen tensors"));
  }
  CHECK(digests.at("none") == 0);
  CHECK(digests.at("w") != digests.at("half"));
}

TEST_CASE("a run goes on without them from any mesh on any other, and its checkpoints are smaller") {
  for (const TestMesh from : {TestMesh{1, 1}, TestMesh{2, 2}, TestMesh{2, 1, 2}})
    for (const TestMesh to : {TestMesh{1, 1}, TestMesh{3, 1}, TestMesh{1, 2}, TestMesh{1, 1, 2}, TestMesh{1, 2, 2}}) {
      const MemoryFolder folder;
      run({.folder = folder / "c", .mesh = from, .from = 1, .to = 2});
      run({.folder = folder / "all", .mesh = from, .leave_out = false, .from = 1, .to = 2});
      CHECK(open_checkpoint(folder / "c/step-2").bytes() < open_checkpoint(folder / "all/step-2").bytes());
      // per-rank statistics of another number of ranks are others
      if (from.data_ranks() == to.data_ranks())
        CHECK(run({.folder = folder / "c", .mesh = to, .from = 3, .to = 3}));
      else
        run({.folder = folder / "c", .mesh = to, .from = 3, .to = 3});
      CHECK(open_checkpoint(folder / "c/step-3").source.kind == Kind::Archive);
    }
}

TEST_CASE("a source that has changed is refused by name on all ranks, and the checkpoint stays what it is") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .mesh = {2, 1}, .from = 1, .to = 2});
  const std::string digest = hex(*open_checkpoint(folder / "c/step-2").find("w")->digest);
  const std::string said = refusal({.folder = folder / "c", .mesh = {3, 1}, .base = kBase + 1, .from = 3, .to = 3});
  CHECK(contains(said,
                 "step-2 leaves out frozen weights, and those of the archive \"/base.pt2\" are not what they were"));
  CHECK(contains(said, "\"w\" has digest "));
  CHECK(contains(said, "and 1 more tensor\n  expected " + digest));
  CHECK(contains(said, "put back what the run began with"));
  CHECK(steps_in(folder / "c") == Names{"step-1", "step-2"});
  CHECK(run({.folder = folder / "c", .mesh = {2, 1}, .from = 3, .to = 3}));
}

TEST_CASE("a checkpoint that others take their frozen weights from outlives retention; without it they are refused") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .leave_out = false, .from = 1, .to = 1});
  CHECK(run({.folder = folder / "c", .from = 2, .to = 6, .keep = 2}));
  CHECK(steps_in(folder / "c") == Names{"step-1", "step-5", "step-6"});
  CHECK(open_checkpoint(folder / "c/step-6").source == WeightSource{Kind::Checkpoint, "step-1"});
  fs::rename(folder / "c", folder / "moved");  // the name is one of the same folder
  CHECK(run({.folder = folder / "moved", .from = 7, .to = 7, .keep = 2}));
  CHECK(open_checkpoint(folder / "moved/step-7").source == WeightSource{Kind::Checkpoint, "step-1"});
  // a run that holds them again needs it no more
  CHECK(run({.folder = folder / "moved", .leave_out = false, .from = 8, .to = 9, .keep = 2}));
  CHECK(steps_in(folder / "moved") == Names{"step-8", "step-9"});
}

TEST_CASE(
    "a save of the step that the frozen weights are read from holds them, as it takes the name of the one that did") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .mesh = {2, 1}, .leave_out = false, .from = 1, .to = 1});
  run({.folder = folder / "c", .mesh = {2, 1}, .from = 1, .to = 1});  // goes on from step 1, is stopped before the next
  CHECK(open_checkpoint(folder / "c/step-1").left_out().empty());
  CHECK(run({.folder = folder / "c", .mesh = {2, 1}, .from = 2, .to = 2}));
  CHECK(open_checkpoint(folder / "c/step-2").source == WeightSource{Kind::Checkpoint, "step-1"});
}

TEST_CASE("a save in the place of a step that others take their frozen weights from says so") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .leave_out = false, .from = 1, .to = 2});
  Names said;
  run({.folder = folder / "c", .from = 3, .to = 4}, &said);
  CHECK(!contains(join(said, "\n"), "is saved again"));
  run({.folder = folder / "c", .from = 2, .to = 2, .load_step = 1}, &said);
  CHECK(contains(join(said, "\n"), "step-2 is saved again, and step-4, step-3 take their frozen weights from the one"));
}

TEST_CASE("an archive that has moved is the one that this run is given, in messages and in the next checkpoint") {
  const MemoryFolder folder;
  const WeightSource moved = {Kind::Archive, "/moved.pt2"};
  run({.folder = folder / "c", .from = 1, .to = 1});
  CHECK(contains(refusal({.folder = folder / "c", .source = moved, .base = kBase + 1, .from = 2, .to = 2}),
                 "those of the archive \"/moved.pt2\" are not what they were"));
  CHECK(run({.folder = folder / "c", .source = moved, .from = 2, .to = 2}));
  CHECK(open_checkpoint(folder / "c/step-2").source == moved);
}

TEST_CASE("a source that is gone, damaged, or a circle is refused, and nothing is renamed") {
  const MemoryFolder folder;
  run({.folder = folder / "base", .leave_out = false, .from = 1, .to = 1});
  run({.folder = folder / "c", .from = 1, .to = 2, .initial = folder / "base"});
  CHECK(open_checkpoint(folder / "c/step-2").source == WeightSource{Kind::Checkpoint, folder / "base/step-1"});
  CHECK(run({.folder = folder / "c", .from = 3, .to = 3}));
  fs::rename(folder / "base", folder / "away");
  std::string said = refusal({.folder = folder / "c", .from = 4, .to = 4});
  CHECK(contains(said, concat("step-3 leaves out frozen weights, which are of the checkpoint \"",
                              folder / "base/step-1", "\", but ")));
  CHECK(contains(said, "put back"));
  fs::rename(folder / "away", folder / "base");
  const std::string file = folder / "base/step-1/rank-00000.safetensors";
  std::string bytes = read_text_file(file, 1 << 20);
  for (size_t at = bytes.size() / 4; at < bytes.size(); at += 8) bytes[at] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  said = refusal({.folder = folder / "c", .from = 4, .to = 4});
  CHECK(contains(said, "are not what was written there"));
  CHECK(steps_in(folder / "c") == Names{"step-1", "step-2", "step-3"});

  Manifest own = open_checkpoint(folder / "c/step-3");
  own.source = {Kind::Checkpoint, "step-3"};
  std::ofstream(folder / "c/step-3/manifest.json") << print(own);
  CHECK(contains(refusal({.folder = folder / "c", .from = 4, .to = 4}), "in a circle"));
  StretchReader reader(folder / "c/step-3");
  CHECK_THROWS_WITH_AS(reader.read(piece_of(*own.find("w")), 0, 1), doctest::Contains("in a circle"), UserError);
}

TEST_CASE("convert keeps what is left out; readers take it from the source, and diff needs none for digests") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .mesh = {2, 1}, .leave_out = false, .from = 1, .to = 1});
  run({.folder = folder / "c", .mesh = {2, 1}, .from = 2, .to = 2});
  const std::string converted = convert(folder / "c/step-2", folder / "d", {.ranks = 3});
  const Manifest m = open_checkpoint(converted), before = open_checkpoint(folder / "c/step-2");
  CHECK(m.source == WeightSource{Kind::Checkpoint, folder / "c/step-1"});
  CHECK(*m.find("half")->digest == *before.find("half")->digest);
  StretchReader reader(converted), all(folder / "c/step-1");
  const auto got = reader.read(piece_of(*m.find("half")), 2, 15);
  const std::vector<std::byte> kept(got.begin(), got.end());
  const auto expected = all.read(piece_of(*m.find("half")), 2, 15);
  CHECK(std::ranges::equal(kept, expected));
  int64_t compared = 0;
  CHECK(differences(folder / "c/step-2", converted, &compared).empty());
  CHECK(differences(folder / "c/step-1", folder / "c/step-2", &compared).size() ==
        7);  // `stats` twice, and what else has another salt
  run({.folder = folder / "initial", .source = {}, .from = 1, .to = 1});
  StretchReader drawn(folder / "initial/step-1");
  CHECK_THROWS_WITH_AS(drawn.read(piece_of(*m.find("w")), 0, 1), doctest::Contains("checkpoint.frozen = all"),
                       UserError);
  CHECK(differences(folder / "initial/step-1", converted, &compared).size() == 7);
}

TEST_CASE("a manifest that lies about what is left out is damaged") {
  const MemoryFolder folder;
  run({.folder = folder / "c", .from = 1, .to = 1});
  const std::string path = folder / "c/step-1/manifest.json";
  const std::string text = read_text_file(path, 1 << 20);
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& with) {
    std::string changed = text.substr(text.find('\n') + 1);
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    const std::string first = concat("{\"format\": \"sfsdp checkpoint 1\", \"xxh3\": \"", hex(xxh3(changed)), "\",\n");
    CHECK_THROWS_WITH_AS(parse_manifest(first + changed, "F"), doctest::Contains(with.c_str()), DamagedError);
  };
  refused("\"from\": \"archive\"", "\"from\": \"there\"", "from is \"there\"");
  refused("\"digest\": \"", "\"digest\": \"x", "16 hexadecimal digits");
  refused("{\"name\": \"half\", \"dtype\"", "{\"name\": \"table\", \"dtype\"", "\"table\" twice");
  refused("\"left_out\": {", "\"left_out\": [{", "F: ");
}

}  // namespace sfsdp::train::checkpoint::left_out_test
