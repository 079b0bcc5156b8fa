// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/shard_file.h"
#include "sfsdp/train/checkpoint/store.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::tools::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using namespace train::checkpoint;  // NOLINT(google-build-using-namespace): the test is about it
using sfsdp::testing::MemoryFolder;

void save(const std::string& folder, TestMesh mesh, int64_t step, int64_t salt) {
  Store store(folder);
  store.lock();
  store.begin(step);
  std::vector<Manifest> fragments(static_cast<size_t>(mesh.ranks()));
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    Manifest& fragment = fragments[static_cast<size_t>(rank)];
    fragment.run.step = step;
    fragment.world_size = mesh.ranks();
    fragment.data_ranks = mesh.data_ranks();
    const TestState state(mesh, rank, salt);
    write_shard(store.temporary_path_of(step), shard_name(static_cast<int>(rank)), share_out(state.pieces()), fragment);
  }
  store.publish(merge(fragments));
}

struct Ran {
  int status = 0;
  std::string out, err;
};

Ran run(std::vector<std::string> args) {
  std::ostringstream out, err;
  Ran ran;
  ran.status = run_command(find_command("checkpoint"), args, run_checkpoint, out, err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void flip_last_byte(const std::string& file) {
  std::string bytes = read_text_file(file, 1 << 20);
  bytes.back() ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("checkpoint ls says of each entry what it is, the newest first") {
  const MemoryFolder folder;
  save(folder.path(), {2, 1}, 4, 1);
  save(folder.path(), {1, 1}, 10, 1);
  save(folder.path(), {1, 1}, 6, 1);
  flip_last_byte(folder / "step-6/manifest.json");
  fs::create_directory(folder / "step-12.tmp");
  fs::create_directory(folder / "other");
  const Ran ran = run({"ls", folder.path()});
  CHECK(ran.status == 0);
  const auto lines = split(ran.out, '\n');
  REQUIRE(lines.size() >= 5);
  CHECK(lines[0] == "step-12.tmp: not finished: a save is running, or a crash has left it");
  CHECK(lines[1].starts_with("step-10: 0.0 MiB, "));
  CHECK(lines[2].starts_with("step-6: damaged: " + folder / "step-6/manifest.json: "));
  CHECK(contains(ran.out, "step-4: "));
  CHECK(contains(ran.out, "of 2 ranks"));
  CHECK(contains(ran.out, "other: not of sfsdp"));
  CHECK(run({"ls", folder / "nothing"}).status == 2);
}

TEST_CASE("checkpoint verify names each wrong place, of one checkpoint or of all") {
  const MemoryFolder folder;
  save(folder.path(), {2, 1}, 4, 1);
  save(folder.path(), {2, 1}, 6, 1);
  CHECK(run({"verify", folder.path()}).status == 0);
  CHECK(contains(run({"verify", folder / "step-4"}).out, "every byte is what was written"));
  flip_last_byte(folder / "step-4/rank-00001.safetensors");
  Ran ran = run({"verify", folder.path()});
  CHECK(ran.status == 1);
  CHECK(contains(ran.out, folder / "step-4/rank-00001.safetensors: bytes "));
  CHECK(contains(ran.out, folder / "step-6: "));
  CHECK(run({"verify", folder / "step-6"}).status == 0);
  fs::remove(folder / "step-6/rank-00000.safetensors");
  CHECK(contains(run({"verify", folder / "step-6"}).out, "rank-00000.safetensors: is not there"));
  CHECK(run({"verify", folder / "lock"}).status == 2);
  flip_last_byte(folder / "step-4/rank-00001.safetensors");  // back again
  std::ofstream(folder / "step-4/rank-00002.safetensors") << "of another save";
  ran = run({"verify", folder / "step-4"});
  CHECK(ran.status == 0);
  CHECK(contains(ran.out, folder / "step-4/rank-00002.safetensors: is not of the checkpoint, and nothing reads it\n"));
  CHECK(contains(ran.out, "every byte is what was written"));
}

TEST_CASE("checkpoint verify takes no step's folder for another step's, as no run goes on from one") {
  const MemoryFolder folder;
  const auto is_refused = [&](const std::string& name, int step) {
    const std::string path = folder / name;
    const std::string line = concat(path, ": holds step ", step, "\n  expected the step of its name\n");
    for (const std::string& asked : {path, path + "/", fs::path(path).parent_path().string()}) {
      CAPTURE(asked);
      const Ran ran = run({"verify", asked});
      CHECK(ran.status == 1);
      CHECK(contains(ran.out, "holds step "));
      CHECK(contains(run({"ls", fs::path(path).parent_path().string()}).out, "damaged: " + line));
    }
  };
  for (const char* name : {"copy", "link", "swap"}) {
    save(folder / name, {1, 1}, 4, 1);
    save(folder / name, {1, 1}, 6, 2);
  }
  fs::copy(folder / "copy/step-4", folder / "copy/step-8");
  is_refused("copy/step-8", 4);
  fs::create_directory_symlink("step-6", folder / "link/step-7");
  is_refused("link/step-7", 6);
  fs::rename(folder / "swap/step-4", folder / "swap/other");
  fs::rename(folder / "swap/step-6", folder / "swap/step-4");
  fs::rename(folder / "swap/other", folder / "swap/step-6");
  is_refused("swap/step-4", 6);
  is_refused("swap/step-6", 4);
  fs::create_directory_symlink("step-6", folder / "link/newest");  // a name that promises no step
  CHECK(run({"verify", folder / "link/newest"}).status == 0);
}

TEST_CASE("checkpoint diff compares elements, whatever ranks and dtypes the two have") {
  const MemoryFolder folder;
  save(folder / "a", {1, 1}, 4, 1);
  save(folder / "b", {1, 1}, 4, 1);
  save(folder / "c", {1, 1}, 4, 2);
  Ran ran = run({"diff", folder / "a/step-4", folder / "b/step-4"});
  CHECK(ran.status == 0);
  CHECK(ran.out == "9 tensors compared, 0 of all differ\n");
  ran = run({"diff", folder / "a/step-4", folder / "c/step-4"});
  CHECK(ran.status == 1);
  CHECK(contains(ran.out, "w: 91 elements differ, by at most "));
  CHECK(contains(ran.out, "ids: 3 elements differ"));
  save(folder / "two", {2, 1}, 4, 1);
  ran = run({"diff", folder / "a/step-4", folder / "two/step-4"});
  CHECK(ran.status == 1);
  CHECK(ran.out == "stats@1: only in the second\n9 tensors compared, 1 of all differ\n");
}

TEST_CASE("checkpoint diff, convert, verify and ls of what tensor parallelism has saved in boxes") {
  const MemoryFolder folder;
  save(folder / "one", {1, 1}, 4, 1);
  save(folder / "data", {2, 1}, 4, 1);
  save(folder / "tp", {1, 1, 3}, 4, 1);
  save(folder / "both", {2, 1, 2}, 4, 1);
  const std::string same = "9 tensors compared, 0 of all differ\n";
  CHECK(run({"diff", folder / "one/step-4", folder / "tp/step-4"}).out == same);
  CHECK(run({"diff", folder / "tp/step-4", folder / "one/step-4"}).out == same);
  CHECK(run({"diff", folder / "data/step-4", folder / "both/step-4"}).out == "10 tensors compared, 0 of all differ\n");
  for (const char* from : {"tp", "both"}) {
    const std::string path = folder / concat(from, "/step-4"), to = folder / concat(from, "-converted");
    CHECK(open_checkpoint(path).find("w")->boxes.size() > 1);
    CHECK(run({"verify", path}).status == 0);
    CHECK(
        contains(run({"ls", path.substr(0, path.rfind('/'))}).out, from == std::string("tp") ? "of 3 ranks" : "of 4"));
    CHECK(run({"convert", path, to, "--ranks", "2"}).status == 0);
    CHECK(open_checkpoint(to + "/step-4").find("w")->boxes.empty());
    CHECK(run({"diff", path, to + "/step-4"}).status == 0);
    for (int64_t rank = 0; rank < 3; ++rank) {  // into boxes again
      const TestState loaded({1, 1, 3}, rank, -1);
      load(open_checkpoint(to + "/step-4"), to + "/step-4", loaded.pieces());
      CHECK(loaded.bytes() == TestState({1, 1, 3}, rank, 1).bytes());
    }
  }
  save(folder / "other", {1, 1, 2}, 4, 2);
  CHECK(contains(run({"diff", folder / "one/step-4", folder / "other/step-4"}).out, "w: 91 elements differ"));
}

TEST_CASE("checkpoint diff says where two runs stand") {
  const MemoryFolder folder;
  const auto written = [&](const std::string& name, int64_t step, int64_t tokens, std::map<std::string, int64_t> data) {
    Store store(folder / name);
    store.lock();
    store.begin(step);
    Manifest fragment;
    fragment.run = {.step = step, .tokens = tokens, .data = std::move(data)};
    const TestState state({1, 1}, 0, 1);
    write_shard(store.temporary_path_of(step), shard_name(0), share_out(state.pieces()), fragment);
    store.publish(merge({fragment}));
    return folder / concat(name, "/step-", step);
  };
  const std::string a = written("a", 4, 64, {{"epoch", 0}, {"row", 12}}),
                    same = written("b", 4, 64, {{"epoch", 0}, {"row", 12}});
  CHECK(run({"diff", a, same}).status == 0);
  const Ran ran = run({"diff", a, written("c", 6, 64, {{"row", 18}})});
  CHECK(ran.status == 1);
  CHECK(ran.out ==
        "step: 4 in the first, 6 in the second\ndata position epoch: 0 in the first, nothing in the second\n"
        "data position row: 12 in the first, 18 in the second\n9 tensors compared, 0 of all differ\n");
}

TEST_CASE("checkpoint convert: other numbers of files, the model alone, other dtypes; the numbers stay") {
  const MemoryFolder folder;
  save(folder / "a", {3, 1}, 4, 1);
  for (const char* ranks : {"1", "2", "5"}) {
    const std::string to = folder / concat("to", ranks);
    const Ran ran = run({"convert", folder / "a/step-4", to, "--ranks", ranks});
    CHECK(ran.out == concat("wrote ", to, "/step-4\n"));
    CHECK(run({"verify", to}).status == 0);
    CHECK(run({"diff", folder / "a/step-4", to + "/step-4"}).status == 0);
    CHECK(open_checkpoint(to + "/step-4").files.size() == static_cast<size_t>(*parse_int(ranks)));
    CHECK(open_checkpoint(to + "/step-4").data_ranks == 3);
  }
  const auto whole = train::SafetensorsFile::open(folder / "to1/step-4/rank-00000.safetensors");
  CHECK(whole.find("w")->shape == std::vector<int64_t>{7, 13});

  CHECK(run({"convert", folder / "a/step-4", folder / "half", "--model-only", "--dtype", "bfloat16"}).status == 0);
  const Manifest half = open_checkpoint(folder / "half/step-4");
  CHECK(half.model_only);
  CHECK(half.find("w")->dtype == ir::DType::bf16);
  CHECK_FALSE(half.find("w.exp_avg"));
  const Ran diff = run({"diff", folder / "a/step-4", folder / "half/step-4"});
  CHECK(contains(diff.out, "w.exp_avg: only in the first"));
  CHECK_FALSE(contains(diff.out, "stats"));

  CHECK(contains(run({"convert", folder / "a/step-4", folder / "to1"}).err, "step-4 is there"));
  CHECK(contains(run({"convert", folder / "a/step-4", folder / "x", "--dtype", "int8"}).err, "expected float32"));
  flip_last_byte(folder / "a/step-4/rank-00002.safetensors");
  const Ran bad = run({"convert", folder / "a/step-4", folder / "y"});
  CHECK(bad.status == 2);
  CHECK(bad.out.empty());  // not a word of something written
  CHECK(contains(bad.err, "rank-00002.safetensors: bytes "));
  CHECK_FALSE(fs::exists(folder / "y/step-4"));
  CHECK_FALSE(fs::exists(folder / "y/step-4.tmp"));
}

TEST_CASE("checkpoint refuses what it does not know") {
  CHECK(contains(run({"convrt", "a", "b"}).err, "did you mean convert?"));
  CHECK(contains(run({"ls"}).err, "expected ls FOLDER"));
  CHECK(run({}).status == 2);
}

}  // namespace sfsdp::tools::checkpoint_test
