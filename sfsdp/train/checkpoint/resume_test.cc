// SPDX-License-Identifier: BSD-3-Clause
// load_step and exclude_from_loading over the starts of a launch, and what is said of the branch that is left.
#include "sfsdp/train/checkpoint/resume.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/checkpointer.h"

namespace sfsdp::train::checkpoint::resume_test {
namespace {

namespace fs = std::filesystem;
using testing::MemoryFolder;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A start of a run on one rank: loads, trains to step `last`, ends as by SIGKILL: nothing but what was saved is left.
struct Start {
  Start(CheckpointOptions options, int64_t last) {
    TestState state({1, 1}, 0, -1);
    Checkpointer checkpointer(
        std::move(options), nullptr, [&] { return state.pieces(); },
        [this](const std::string& line) { said += line + "\n"; });
    if (const auto loaded = checkpointer.load()) from = *loaded;
    RunState run = from.run;
    for (++run.step; run.step <= last; ++run.step) checkpointer.after_step(run);
  }
  Loaded from;
  std::string said;
};

CheckpointOptions options_of(const std::string& folder, const Launch& launch) {
  CheckpointOptions options;
  options.enable = true;
  options.folder = folder;
  options.interval = 2;
  options.lock_seconds = 0;
  options.total_steps = 100;
  options.keep_latest_k = 0;
  options.launch = launch;
  options.about.world_size = options.about.data_ranks = 1;
  return options;
}

void flip_last_byte(const std::string& file) {
  std::string bytes = read_text_file(file, 1 << 20);
  bytes.back() ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

const Launch kFirst{"a", false}, kRestarted{"a", true}, kOther{"b", false};

}  // namespace

TEST_CASE("load_step holds for the first start of a launch; its restarts go on from what it has saved") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kOther), 8);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  options.load_step = 4;
  const Start first(options, 5);  // ends before it has saved anything
  CHECK(first.from.run.step == 4);
  CHECK(contains(first.said, "checkpoint.load_step = 4 goes back from step-8: 2 checkpoints of later steps stay"));
  options.launch = kRestarted;
  CHECK(Start(options, 7).from.run.step == 4);
  const Start second(options, 11);
  CHECK(second.from.run.step == 6);  // and not step-8, which another launch has saved
  CHECK(contains(second.said,
                 "checkpoint.load_step = 4 held for an earlier start of this launch: it goes on from what the "
                 "launch has saved since, step-6"));
  CHECK(Start(options, 0).from.run.step == 10);
  options.launch = kOther;  // another launch means the key as it stands there
  CHECK(Start(options, 0).from.run.step == 4);
}

TEST_CASE("under load_step a damaged checkpoint of the launch's own is set aside and the one before it taken") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kOther), 8);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  options.load_step = 4;
  Start(options, 12);  // saves 6 to 12
  options.launch = kRestarted;
  flip_last_byte(folder / "c/step-12/rank-00000.safetensors");
  const Start second(options, 0);
  CHECK(second.from.run.step == 10);
  CHECK(fs::exists(folder / "c/step-12.damaged"));
  CHECK(contains(second.said, "checkpoint " + folder / "c/step-12 is skipped, now " + folder / "c/step-12.damaged: "));
  flip_last_byte(folder / "c/step-10/manifest.json");  // whose it is cannot be seen
  const Start third(options, 0);
  CHECK(third.from.run.step == 8);
  CHECK(contains(third.said, "checkpoint " + folder / "c/step-10 is skipped: "));
  for (const char* own : {"c/step-8/rank-00000.safetensors", "c/step-6/rank-00000.safetensors"})
    flip_last_byte(folder / own);
  CHECK(Start(options, 0).from.run.step == 4);                 // as the first start did
  flip_last_byte(folder / "c/step-4/rank-00000.safetensors");  // and load_step's own is that or none
  CHECK_THROWS_WITH_AS(Start(options, 0), doctest::Contains("not what was written"), UserError);
}

TEST_CASE("retention may have removed load_step's checkpoint: a restart needs it no more") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kOther), 4);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  options.load_step = 2;
  options.keep_latest_k = 2;
  Start(options, 9);
  REQUIRE_FALSE(fs::exists(folder / "c/step-2"));
  options.launch = kRestarted;
  CHECK(Start(options, 0).from.run.step == 8);
  options.launch = kOther;
  CHECK_THROWS_WITH_AS(Start(options, 0), doctest::Contains("checkpoint.load_step = 2: "), UserError);
}

TEST_CASE("what exclude_from_loading has begun anew at the first start is not begun anew at a restart") {
  for (const char* what : {"lr_scheduler", "train_state", "dataloader", "optimizer", "model"}) {
    CAPTURE(std::string(what));
    const MemoryFolder folder;
    Start(options_of(folder / "c", kOther), 4);
    CheckpointOptions options = options_of(folder / "c", kFirst);
    options.exclude_from_loading = {what};
    const bool resets_step = std::string(what) == "train_state";
    const Start first(options, resets_step ? 2 : 6);
    CHECK(first.from.left_out == std::vector<std::string>{what});
    CHECK(first.from.run.lr_offset == (std::string(what) == "lr_scheduler" ? 4 : 0));
    options.launch = kRestarted;
    const Start second(options, 0);
    CHECK(second.from.run.step == (resets_step ? 2 : 6));
    CHECK(second.from.run.lr_offset == first.from.run.lr_offset);
    CHECK(second.from.has_model);
    CHECK(second.from.left_out.empty());
    CHECK(
        contains(second.said, std::string("checkpoint.exclude_from_loading = ") + what + " held for an earlier start"));
  }
}

TEST_CASE("where all that a launch has saved is damaged, its restart begins as its first start did") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kOther), 4);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  options.exclude_from_loading = {"lr_scheduler"};
  Start(options, 6);
  flip_last_byte(folder / "c/step-6/rank-00000.safetensors");
  options.launch = kRestarted;
  const Start second(options, 0);
  CHECK(second.from.run.step == 4);
  CHECK(second.from.run.lr_offset == 4);
  CHECK(fs::exists(folder / "c/step-6.damaged"));
}

TEST_CASE("what was set aside counts as refused: a folder that holds nothing else never begins anew by itself") {
  const MemoryFolder folder;
  CheckpointOptions options = options_of(folder / "c", kFirst);
  Start(options, 4);
  for (const char* step : {"2", "4"}) flip_last_byte(folder / concat("c/step-", step, "/rank-00000.safetensors"));
  CHECK_THROWS_WITH_AS(Start(options, 0), doctest::Contains("step-2/rank-00000.safetensors: bytes"), UserError);
  REQUIRE(fs::exists(folder / "c/step-4.damaged"));
  REQUIRE(fs::exists(folder / "c/step-2.damaged"));
  const auto refusal = [&] {
    try {
      return concat("from step ", Start(options, 0).from.run.step);
    } catch (const PassingError& error) {
      return concat("may pass: ", error.what());
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  for (int start = 0; start < 2; ++start) {
    const std::string text = refusal();
    CHECK(contains(text, folder / "c: no checkpoint here can be gone on from"));
    CHECK(contains(text, folder / "c/step-4.damaged: "));
    CHECK(contains(text, folder / "c/step-2.damaged: "));
    CHECK(contains(text, "to begin anew set another checkpoint.folder, or move what this one holds elsewhere"));
  }
  options.load_step = 4;
  CHECK(contains(refusal(), folder / "c/step-4.damaged: "));
  CHECK_FALSE(contains(refusal(), folder / "c/step-2.damaged: "));
  options.load_step = -1;
  options.initial_load_path = folder / "from";
  Start(options_of(folder / "from", kOther), 2);
  CHECK(contains(refusal(), folder / "c/step-4.damaged: "));
  for (const char* step : {"2", "4"})
    fs::rename(folder / concat("c/step-", step, ".damaged"), folder / concat("old-", step));
  const Start anew(options, 2);  // what its user asked for
  CHECK(anew.from.path == folder / "from/step-2");
  fs::rename(folder / "old-4", folder / "c/step-4.damaged");  // beside a whole one it refuses nothing
  CHECK(Start(options, 0).from.run.step == 2);
}

TEST_CASE("what a run could not read again it does not save, and says so") {
  const MemoryFolder folder;
  CheckpointOptions options = options_of(folder / "c", kFirst);
  constexpr int64_t kMost = int64_t{1} << 60;
  TestState state({1, 1}, 0, -1);
  std::string said;
  Checkpointer checkpointer(
      options, nullptr, [&] { return state.pieces(); }, [&](const std::string& line) { said += line + "\n"; });
  checkpointer.after_step({.step = 2, .tokens = kMost});
  CHECK(contains(said, "Saved " + folder / "c/step-2"));
  checkpointer.after_step({.step = 4, .tokens = kMost + 1});
  CHECK(contains(said, concat("checkpoint of step 4 is not saved: what a rank wrote: tokens is ", kMost + 1)));
  CHECK_FALSE(fs::exists(folder / "c/step-4"));
  CHECK_THROWS_AS(checkpointer.finish(), UserError);
}

TEST_CASE("a save beyond the last number that a manifest may have is refused before it gets its name") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kFirst), 2);
  const std::string file = folder / "c/step-2/manifest.json";
  std::string text = read_text_file(file, 1 << 20);
  const std::string save = "\"save\": 1,";
  REQUIRE(contains(text, save));
  text.replace(text.find(save), save.size(), concat("\"save\": ", int64_t{1} << 60, ","));
  const std::string rest = text.substr(text.find('\n') + 1);
  std::ofstream(file) << "{\"format\": \"sfsdp checkpoint 1\", \"xxh3\": \"" << hex(xxh3(rest)) << "\",\n" << rest;
  const Start second(options_of(folder / "c", kFirst), 4);
  CHECK(second.from.run.step == 2);
  CHECK(contains(second.said, "checkpoint of step 4 is not saved: " + folder / "c/step-4: save is "));
  CHECK_FALSE(fs::exists(folder / "c/step-4"));
}

TEST_CASE("a leftover of a crash is no checkpoint that a run has reported: it refuses nothing") {
  const MemoryFolder folder;
  fs::create_directories(folder / "c/step-2.leftover");
  CHECK(Start(options_of(folder / "c", kFirst), 0).from.run.step == 0);
}

TEST_CASE("a launcher that gives no id: the first start gives one, its restarts find it in the folder") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", {}), 4);
  CheckpointOptions options = options_of(folder / "c", {});
  options.exclude_from_loading = {"lr_scheduler"};
  CHECK(Start(options, 4).from.run.lr_offset == 4);
  options.launch.restarted = true;
  CHECK(Start(options, 6).from.run.lr_offset == 4);
  const Start third(options, 0);
  CHECK(third.from.run.step == 6);
  CHECK(third.from.left_out.empty());
  std::ofstream(folder / "c/lock") << "host h, process 1, since then\nlaunch some other\n";
  CHECK(Start(options, 0).from.run.lr_offset == 6);
}

TEST_CASE("a start that leaves the branch saved last says so, and how to go on from it") {
  const MemoryFolder folder;
  Start(options_of(folder / "c", kOther), 8);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  CHECK(Start(options, 0).said.empty());
  options.load_step = 2;
  Start(options, 4);
  const Start plain(options_of(folder / "c", kOther), 9);
  CHECK(plain.from.run.step == 8);
  CHECK(contains(plain.said, "step-8 is the highest step, but step-4 was saved after it, at "));
  CHECK(contains(plain.said, ": checkpoint.load_step = 4 goes on from that"));
}

TEST_CASE("initial_load_path of which nothing would be loaded is refused") {
  const MemoryFolder folder;
  Start(options_of(folder / "from", kOther), 4);
  CheckpointOptions options = options_of(folder / "c", kFirst);
  options.initial_load_path = folder / "from";
  options.exclude_from_loading = {"model"};
  CHECK_THROWS_WITH_AS(Start(options, 0), doctest::Contains("nothing of it would be loaded"), UserError);
  options.initial_load_model_only = false;
  const Start whole(options, 0);
  CHECK(whole.from.run.step == 4);
  CHECK_FALSE(whole.from.has_model);
}

TEST_CASE("the launch is that of torchrun's variables, where these are a run's own") {
  const auto with = [](const char* id, const char* count) {
    id ? ::setenv("TORCHELASTIC_RUN_ID", id, 1) : ::unsetenv("TORCHELASTIC_RUN_ID");
    count ? ::setenv("TORCHELASTIC_RESTART_COUNT", count, 1) : ::unsetenv("TORCHELASTIC_RESTART_COUNT");
    const Launch launch = launch_from_environment();
    ::unsetenv("TORCHELASTIC_RUN_ID");
    ::unsetenv("TORCHELASTIC_RESTART_COUNT");
    return std::pair(launch.id, launch.restarted);
  };
  CHECK(with(nullptr, nullptr) == std::pair(std::string(), false));
  CHECK(with("none", "0") == std::pair(std::string(), false));
  CHECK(with("none", "2") == std::pair(std::string(), true));
  CHECK(with("job 7", "1") == std::pair(std::string("job 7"), true));
  CHECK(with("a\nb\xff", "x") == std::pair(std::string("a?b?"), false));
}

}  // namespace sfsdp::train::checkpoint::resume_test
