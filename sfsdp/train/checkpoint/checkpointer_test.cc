// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/checkpointer.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/checkpoint_state.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/load.h"

namespace sfsdp::train::checkpoint::checkpointer_test {
namespace {

namespace fs = std::filesystem;
using When = Checkpointer::When;
using testing::MemoryFolder;

CheckpointOptions options_of(const std::string& folder) {
  CheckpointOptions options;
  options.enable = true;
  options.folder = folder;
  options.interval = 2;
  options.total_steps = 100;
  options.seed = 7;
  options.lock_seconds = 0;
  options.about.world_size = options.about.data_ranks = 1;
  return options;
}

// One rank that saves and loads; the state after step k has salt k.
struct Run {
  explicit Run(CheckpointOptions options)
      : checkpointer(
            std::move(options), nullptr, [this] { return state.pieces(); },
            [this](const std::string& line) { said.push_back(line); }) {}
  void step_to(int64_t from, int64_t to) {
    for (int64_t k = from; k <= to; ++k) {
      state = TestState({1, 1}, 0, k);
      checkpointer.after_step({.step = k, .tokens = 10 * k, .seed = 7, .data = {{"samples", 3 * k}}});
    }
    checkpointer.finish();
  }
  bool has(int64_t salt) const { return state.bytes() == TestState({1, 1}, 0, salt).bytes(); }

  TestState state{{1, 1}, 0, -1};
  std::vector<std::string> said;
  Checkpointer checkpointer;
};

// A run that saves steps 2, 4, …, `last`.
void save_until(const std::string& folder, int64_t last, const std::function<void(CheckpointOptions&)>& change = {}) {
  CheckpointOptions options = options_of(folder);
  if (change) change(options);
  Run run(options);
  run.step_to(1, last);
}

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(folder)) names.push_back(entry.name);
  return names;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return contains(line, part); });
}

void flip_byte(const std::string& file, int64_t from_end) {
  std::string bytes = read_text_file(file, 1 << 20);
  bytes[bytes.size() - static_cast<size_t>(from_end)] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a run goes on from the newest checkpoint, with step, tokens and the loader's integers") {
  const MemoryFolder folder;
  CHECK_FALSE(Run(options_of(folder / "c")).checkpointer.load());
  save_until(folder / "c", 5);
  CHECK(names_in(folder / "c") == Names{"lock", "step-2", "step-4"});
  Run run(options_of(folder / "c"));
  const auto loaded = run.checkpointer.load();
  REQUIRE(loaded);
  CHECK(loaded->run == RunState{.step = 4, .tokens = 40, .seed = 7, .data = {{"samples", 12}}});
  CHECK(run.has(4));
}

TEST_CASE("interval, first step, last step: what is saved, and what of it") {
  const MemoryFolder folder;
  save_until(folder / "c", 5, [](CheckpointOptions& o) {
    o.enable_first_step_checkpoint = true;
    o.total_steps = 5;
  });
  CHECK(names_in(folder / "c") == Names{"lock", "step-1", "step-2", "step-4", "step-5"});
  CHECK_FALSE(open_checkpoint(folder / "c/step-4").model_only);
  const Manifest last = open_checkpoint(folder / "c/step-5");
  CHECK(last.model_only);
  CHECK(last.find("w"));
  CHECK_FALSE(last.find("w.exp_avg"));
  save_until(folder / "none", 4, [](CheckpointOptions& o) { o.load_only = true; });
  CHECK_FALSE(fs::exists(folder / "none"));
  save_until(folder / "off", 4, [](CheckpointOptions& o) { o.enable = false; });
  CHECK_FALSE(fs::exists(folder / "off"));
}

TEST_CASE("the last save of the model alone is in export_dtype; numbers that it has no room for are no save") {
  const MemoryFolder folder;
  save_until(folder / "c", 4, [](CheckpointOptions& o) {
    o.total_steps = 4;
    o.export_dtype = ir::DType::bf16;
  });
  const Manifest manifest = open_checkpoint(folder / "c/step-4");
  CHECK(manifest.find("w")->dtype == ir::DType::bf16);
  CHECK(manifest.find("ids")->dtype == ir::DType::i64);
  CHECK(open_checkpoint(folder / "c/step-2").find("w")->dtype == ir::DType::f32);

  CheckpointOptions options = options_of(folder / "f16");
  options.total_steps = 1;
  options.export_dtype = ir::DType::f16;
  Run run(options);
  float large = 1e6;
  std::memcpy(run.state.pieces()[0].data, &large, sizeof(large));
  run.checkpointer.after_step({.step = 1, .seed = 7});
  CHECK(contains(message_of([&] { run.checkpointer.finish(); }), "too large for f16"));
}

TEST_CASE("keep_latest_k keeps the newest; others are removed once the new one is there") {
  const MemoryFolder folder;
  save_until(folder / "c", 8, [](CheckpointOptions& o) { o.keep_latest_k = 2; });
  CHECK(names_in(folder / "c") == Names{"lock", "step-6", "step-8"});
  save_until(folder / "all", 8, [](CheckpointOptions& o) { o.keep_latest_k = 0; });
  CHECK(names_in(folder / "all").size() == 5);
  // damaged ones do not count, and stay
  flip_byte(folder / "c/step-8/manifest.json", 1);
  save_until(folder / "c", 4, [](CheckpointOptions& o) { o.keep_latest_k = 2; });
  CHECK(names_in(folder / "c") == Names{"lock", "step-2", "step-4", "step-8"});
}

TEST_CASE("keep_latest_k goes by what was saved last: the branch that load_step left goes first") {
  const MemoryFolder folder;
  const auto keep_two = [](CheckpointOptions& o) { o.keep_latest_k = 2; };
  save_until(folder / "c", 20);
  const auto go_back = [&](int64_t to) {
    CheckpointOptions options = options_of(folder / "c");
    keep_two(options);
    options.load_step = 4;
    Run run(options);
    REQUIRE(run.checkpointer.load()->run.step == 4);
    run.step_to(5, to);
  };
  go_back(6);
  CHECK(names_in(folder / "c") == Names{"lock", "step-20", "step-6"});
  // a clock that went back a year does not make newer saves older
  Manifest manifest = open_checkpoint(folder / "c/step-20");
  manifest.saved_at += 365 * 86400;
  std::ofstream(folder / "c/step-20/manifest.json", std::ios::binary) << print(manifest);
  CheckpointOptions options = options_of(folder / "c");
  keep_two(options);
  options.load_step = 6;
  Run run(options);
  REQUIRE(run.checkpointer.load()->run.step == 6);
  run.step_to(7, 13);
  CHECK(names_in(folder / "c") == Names{"lock", "step-10", "step-12"});
}

TEST_CASE("a damaged checkpoint is named, set aside, and the one before it taken") {
  const MemoryFolder folder;
  save_until(folder / "c", 6);
  flip_byte(folder / "c/step-6/rank-00000.safetensors", 1);
  Run run(options_of(folder / "c"));
  const auto loaded = run.checkpointer.load();
  REQUIRE(loaded);
  CHECK(loaded->run.step == 4);
  CHECK(run.has(4));
  CHECK(names_in(folder / "c") == Names{"lock", "step-2", "step-4", "step-6.damaged"});
  CHECK(contains(run.said, folder / "c/step-6/rank-00000.safetensors: bytes "));
  CHECK(contains(run.said, "now " + folder / "c/step-6.damaged"));
}

TEST_CASE("what is no checkpoint is skipped and stays") {
  const MemoryFolder folder;
  save_until(folder / "c", 4);
  fs::create_directory(folder / "c/step-9");    // no manifest
  fs::create_directory(folder / "c/step-007");  // no name of ours
  fs::create_directory(folder / "c/notes");
  std::ofstream(folder / "c/step-8") << "a file";
  std::ofstream(folder / "c/readme.txt") << "a file";
  fs::create_directory(folder / "c/step-3.tmp");  // left by a crash
  std::ofstream(folder / "c/step-3.tmp/rank-00000.safetensors") << "half";
  Run run(options_of(folder / "c"));
  CHECK(run.checkpointer.load()->run.step == 4);
  CHECK(contains(run.said, folder / "c/step-9" + " is skipped: " + folder / "c/step-9" + ": no manifest.json"));
  run.step_to(5, 6);
  CHECK(names_in(folder / "c") == Names{"lock", "notes", "readme.txt", "step-007", "step-2", "step-3.leftover",
                                        "step-4", "step-6", "step-8", "step-9"});
  // what has the name of the next save is set aside
  run.step_to(8, 8);
  CHECK(open_checkpoint(folder / "c/step-8").run.step == 8);
  CHECK(read_text_file(folder / "c/step-8.damaged", 100) == "a file");
  CHECK(contains(run.said, "what had the name of the new checkpoint is now " + folder / "c/step-8.damaged"));
}

TEST_CASE("a step whose name is a link: its save replaces the link, what that points to stays whole") {
  const MemoryFolder folder;
  save_until(folder / "other", 4);
  save_until(folder / "c", 2);
  fs::create_directory_symlink(folder / "other/step-4", folder / "c/step-4");
  fs::create_directory_symlink(folder / "other/step-2", folder / "c/step-6.tmp");
  fs::create_directory_symlink(folder / "other/step-2", folder / "c/step-1.deleted");
  Run run(options_of(folder / "c"));
  run.step_to(3, 6);
  CHECK(names_in(folder / "c") == Names{"lock", "step-2", "step-4", "step-6", "step-6.leftover"});
  CHECK_FALSE(fs::is_symlink(folder / "c/step-4"));
  CHECK(fs::is_symlink(folder / "c/step-6.leftover"));
  for (const char* step : {"other/step-2", "other/step-4"})
    CHECK(verify(open_checkpoint(folder / step), folder / step).empty());
}

TEST_CASE(
    "what a crash left of a save, and what is not ours, is set aside and said, with its size; nothing is removed") {
  const MemoryFolder folder;
  save_until(folder / "c", 4);
  fs::create_directories(folder / "c/step-6.tmp/a folder");
  std::ofstream(folder / "c/step-6.tmp/notes.txt") << std::string(1 << 20, 'x');
  std::ofstream(folder / "c/step-8.tmp") << "a file";
  fs::create_directory(folder / "c/step-6.leftover");  // of an earlier crash
  fs::create_directory(folder / "c/step-2.deleted");
  std::ofstream(folder / "c/step-2.deleted/manifest.json") << "ours";
  std::ofstream(folder / "c/step-2.deleted/notes.txt") << "not ours";
  {
    Run run(options_of(folder / "c"));
    CHECK(contains(run.said,
                   folder / "c/step-6.tmp is what a crash left of a save: now " + folder / "c/step-6.leftover-2"));
    CHECK(contains(run.said, folder / "c: 2 leftovers of saves that crashes cut short, 1.0 MiB: "));
    CHECK(contains(run.said, folder / "c/step-2.deleted/notes.txt: sfsdp has not written it, so it stays"));
    fs::create_directory(folder / "c/step-6.tmp");  // somebody puts one there while the run lives
    run.step_to(5, 6);
    CHECK(contains(run.said, "now " + folder / "c/step-6.leftover-3"));
  }
  CHECK(names_in(folder / "c") == Names{"lock", "step-2", "step-2.deleted", "step-4", "step-6", "step-6.leftover",
                                        "step-6.leftover-2", "step-6.leftover-3", "step-8.leftover"});
  CHECK(names_in(folder / "c/step-2.deleted") == Names{"notes.txt"});
  CHECK(fs::exists(folder / "c/step-6.leftover-2/a folder"));
  CHECK(read_text_file(folder / "c/step-8.leftover", 100) == "a file");
}

TEST_CASE("retention leaves what is not ours in a checkpoint's folder, and says so") {
  const MemoryFolder folder;
  save_until(folder / "c", 2);
  std::ofstream(folder / "c/step-2/notes.txt") << "not ours";
  CheckpointOptions options = options_of(folder / "c");
  options.keep_latest_k = 2;
  Run run(options);
  run.step_to(3, 6);
  CHECK(contains(run.said, "an older checkpoint could not be removed: " + folder / "c/step-2.deleted/notes.txt"));
  CHECK(names_in(folder / "c/step-2.deleted") == Names{"notes.txt"});
}

TEST_CASE("a step that is a link to a checkpoint is gone on from, and said; a link to nothing is skipped, and said") {
  const MemoryFolder folder;
  save_until(folder / "other", 4);
  save_until(folder / "c", 2);
  fs::create_directory_symlink(folder / "other/step-4", folder / "c/step-4");
  fs::create_directory_symlink(folder / "nowhere", folder / "c/step-9");
  CheckpointOptions options = options_of(folder / "c");
  options.keep_latest_k = 2;
  Run run(options);
  CHECK(run.checkpointer.load()->run.step == 4);
  CHECK(run.has(4));
  CHECK(contains(run.said, "step-4 is a link to \"" + folder / "other/step-4"));
  CHECK(contains(run.said, "checkpoint " + folder / "c/step-9 is skipped: " + folder / "c/step-9: no manifest.json"));
  run.step_to(5, 8);  // retention removes the link alone
  CHECK(names_in(folder / "c") == Names{"lock", "step-6", "step-8", "step-9"});
  CHECK(verify(open_checkpoint(folder / "other/step-4"), folder / "other/step-4").empty());
}

TEST_CASE("retention removes nothing while steps are skipped: a step from before them may be what to go back to") {
  const MemoryFolder folder;
  CheckpointOptions options = options_of(folder / "c");
  options.keep_latest_k = 2;
  Run run(options);
  run.step_to(1, 4);
  for (int64_t k = 5; k <= 12; ++k) run.checkpointer.after_step({.step = k, .seed = 7, .skipped = k - 4});
  CHECK(names_in(folder / "c") == Names{"lock", "step-10", "step-12", "step-2", "step-4", "step-6", "step-8"});
  CHECK(open_checkpoint(folder / "c/step-12").run.skipped == 8);
  run.step_to(13, 14);
  CHECK(names_in(folder / "c") == Names{"lock", "step-12", "step-14"});
}

TEST_CASE("an interval's save that fails is said and the run goes on; the next one makes it good") {
  const MemoryFolder folder;
  Run run(options_of(folder / "c"));
  fs::rename(folder / "c", folder / "gone");  // as a disk that is not mounted for a while
  run.checkpointer.after_step({.step = 2, .seed = 7});
  CHECK(contains(run.said, "checkpoint of step 2 is not saved: " + folder / "c: cannot be listed: No such file"));
  CHECK(contains(message_of([&] { run.checkpointer.finish(); }), "the last checkpoint is not saved"));
  fs::rename(folder / "gone", folder / "c");
  run.step_to(3, 4);
  CHECK(open_checkpoint(folder / "c/step-4").run.step == 4);
}

TEST_CASE("a folder in which all checkpoints are damaged does not begin a run anew") {
  const MemoryFolder folder;
  save_until(folder / "c", 2);
  flip_byte(folder / "c/step-2/rank-00000.safetensors", 1);
  std::string message = message_of([&] { Run(options_of(folder / "c")).checkpointer.load(); });
  CHECK(contains(message, "no checkpoint here can be gone on from"));
  CHECK(contains(message, "rank-00000.safetensors: bytes "));
  CHECK(contains(message, "another checkpoint.folder"));
  save_until(folder / "d", 2);
  flip_byte(folder / "d/step-2/manifest.json", 9);
  message = message_of([&] { Run(options_of(folder / "d")).checkpointer.load(); });
  CHECK(contains(message, "no checkpoint here can be gone on from"));
  CHECK(contains(message, folder / "d/step-2/manifest.json"));
}

TEST_CASE("load_step takes that step or none") {
  const MemoryFolder folder;
  save_until(folder / "c", 6);
  CheckpointOptions options = options_of(folder / "c");
  options.load_step = 2;
  {
    Run run(options);
    CHECK(run.checkpointer.load()->run.step == 2);
    CHECK(run.has(2));
  }
  options.load_step = 3;
  CHECK(contains(message_of([&] { Run(options).checkpointer.load(); }),
                 "checkpoint.load_step = 3: " + folder / "c/step-3"));
  options.load_step = 4;
  flip_byte(folder / "c/step-4/rank-00000.safetensors", 1);
  CHECK(contains(message_of([&] { Run(options).checkpointer.load(); }), "not what was written"));
  CHECK(fs::exists(folder / "c/step-4"));
}

TEST_CASE(
    "a checkpoint of the model alone is not gone on from, unless the optimizer is excluded or all steps are done") {
  const MemoryFolder folder;
  save_until(folder / "c", 6, [](CheckpointOptions& o) { o.total_steps = 6; });
  CheckpointOptions options = options_of(folder / "c");
  {
    Run run(options);
    CHECK(run.checkpointer.load()->run.step == 4);
    CHECK(contains(run.said, "step-6 is skipped: it holds the model alone"));
  }
  options.load_step = 6;
  CHECK(contains(message_of([&] { Run(options).checkpointer.load(); }), "holds the model alone"));
  options.exclude_from_loading = {"optimizer"};
  {
    Run run(options);
    CHECK(run.checkpointer.load()->run.step == 6);
    CHECK(run.state.bytes()["w"] == TestState({1, 1}, 0, 6).bytes()["w"]);
    CHECK(run.state.bytes()["w.exp_avg"] == TestState({1, 1}, 0, -1).bytes()["w.exp_avg"]);
  }
  options = options_of(folder / "c");
  options.total_steps = 6;
  CHECK(Run(options).checkpointer.load()->run.step == 6);
}

TEST_CASE("exclude_from_loading begins each part anew") {
  const MemoryFolder folder;
  save_until(folder / "c", 4);
  const auto load_without = [&](const std::string& what) {
    CheckpointOptions options = options_of(folder / "c");
    options.exclude_from_loading = {what};
    Run run(options);
    const Loaded loaded = *run.checkpointer.load();
    return std::pair(loaded.run, run.state.bytes());
  };
  const RunState all{.step = 4, .tokens = 40, .seed = 7, .data = {{"samples", 12}}};
  const auto saved = TestState({1, 1}, 0, 4).bytes(), fresh = TestState({1, 1}, 0, -1).bytes();
  auto [run, bytes] = load_without("model");
  CHECK(run == all);
  CHECK(bytes.at("w") == fresh.at("w"));
  CHECK(bytes.at("w.exp_avg") == saved.at("w.exp_avg"));
  std::tie(run, bytes) = load_without("train_state");
  CHECK(run.step == 0);
  CHECK(run.tokens == 0);
  CHECK(bytes == saved);
  CHECK(load_without("lr_scheduler").first.lr_offset == 4);
  CHECK(load_without("dataloader").first.data.empty());
}

TEST_CASE("what a checkpoint has and this run has not is named: a layer more, moments of another optimizer") {
  const MemoryFolder folder;
  save_until(folder / "c", 2);
  const auto load_without = [&](TensorKind kind, CheckpointOptions options) {
    TestState state({1, 1}, 0, -1);
    std::string gone;
    const auto pieces = [&] {
      std::vector<Piece> kept = state.pieces();
      const auto last = std::ranges::find(kept, kind, &Piece::kind);
      REQUIRE(last != kept.end());
      gone = last->name;
      kept.erase(last);
      return kept;
    };
    Checkpointer checkpointer(std::move(options), nullptr, pieces, [](const std::string&) {});
    const std::string message = message_of([&] { checkpointer.load(); });
    return contains(message, "\"" + gone + "\", which this run has not") ? "named" : message;
  };
  CHECK(load_without(TensorKind::Parameter, options_of(folder / "c")) == "named");
  CHECK(load_without(TensorKind::Optimizer, options_of(folder / "c")) == "named");
  CheckpointOptions anew = options_of(folder / "c");
  anew.exclude_from_loading = {"optimizer"};
  CHECK(load_without(TensorKind::Optimizer, anew).empty());
}

TEST_CASE("kernels that have changed are said") {
  const MemoryFolder folder;
  save_until(folder / "c", 2, [](CheckpointOptions& o) { o.kernels = {{"products", "onednn.matmul"}}; });
  CHECK(open_checkpoint(folder / "c/step-2").run.kernels.at("products") == "onednn.matmul");
  CheckpointOptions options = options_of(folder / "c");
  options.kernels = {{"products", "aten.mm"}, {"attention", "aten.flash"}};
  {
    Run run(options);
    run.checkpointer.load();
    CHECK(run.said ==
          Names{"other kernels compute than before, so last bits will differ: products = aten.mm, was onednn.matmul"});
  }
  options.kernels["products"] = "onednn.matmul";
  Run run(options);
  run.checkpointer.load();
  CHECK(run.said.empty());
}

TEST_CASE("a schedule that has changed is said") {
  const MemoryFolder folder;
  save_until(folder / "c", 2, [](CheckpointOptions& o) { o.schedule = {{"total_steps", "100"}, {"lr", "0.1"}}; });
  CHECK(open_checkpoint(folder / "c/step-2").run.schedule.at("lr") == "0.1");
  CheckpointOptions options = options_of(folder / "c");
  options.schedule = {{"total_steps", "200"}, {"lr", "0.1"}};
  {
    Run run(options);
    run.checkpointer.load();
    CHECK(run.said == Names{"the learning rate follows another schedule than before: total_steps = 200, was 100"});
  }
  options.schedule["total_steps"] = "100";
  Run run(options);
  run.checkpointer.load();
  CHECK(run.said.empty());
}

TEST_CASE("another seed is refused, as data order and random ops follow it") {
  const MemoryFolder folder;
  save_until(folder / "c", 4);
  CheckpointOptions options = options_of(folder / "c");
  options.seed = 8;
  const std::string message = message_of([&] { Run(options).checkpointer.load(); });
  CHECK(contains(message, "debug.seed = 7, this one has 8"));
  CHECK(contains(message, "--debug.seed 7"));
  options.exclude_from_loading = {"dataloader"};
  CHECK(Run(options).checkpointer.load()->run.step == 4);
}

TEST_CASE("another model is refused by its name, or by those of its arguments that are others") {
  const MemoryFolder folder;
  const auto is = [](CheckpointOptions& options, const char* name, const char* heads) {
    options.about.model = name;
    options.about.model_args = {{"n_heads", heads}, {"tied", "true"}};
  };
  save_until(folder / "c", 4, [&](CheckpointOptions& options) { is(options, "llama3", "4"); });
  CheckpointOptions options = options_of(folder / "c");
  const auto message = [&] { return message_of([&] { Run(options).checkpointer.load(); }); };
  is(options, "llama3", "8");
  CHECK(contains(message(), "another model: model.args.n_heads = 8, was 4\n  expected the same; set --model.args.n_"));
  is(options, "gpt", "8");
  CHECK(
      contains(message(), "another model: llama3, this run's is gpt\n  expected model.name and model.flavor of that"));
}

TEST_CASE("initial_load_path is read where the folder has no checkpoint") {
  const MemoryFolder folder;
  save_until(folder / "from", 4);
  CheckpointOptions options = options_of(folder / "c");
  for (const std::string& path : {folder / "from", folder / "from/step-4"}) {
    options.initial_load_path = path;
    Run run(options);
    const auto loaded = run.checkpointer.load();
    CHECK(loaded->run == RunState{});
    CHECK(loaded->path == folder / "from/step-4");
    CHECK(run.state.bytes()["w"] == TestState({1, 1}, 0, 4).bytes()["w"]);
    CHECK(run.state.bytes()["w.exp_avg"] == TestState({1, 1}, 0, -1).bytes()["w.exp_avg"]);
  }
  options.initial_load_model_only = false;
  {
    Run run(options);
    CHECK(run.checkpointer.load()->run.step == 4);
    CHECK(run.has(4));
  }
  save_until(folder / "c", 2);
  {
    Run run(options);
    CHECK(run.checkpointer.load()->run.step == 2);
    CHECK(contains(run.said, "is not read"));
  }
  options = options_of(folder / "other");
  options.initial_load_path = folder / "nothing";
  CHECK(contains(message_of([&] { Run(options).checkpointer.load(); }), "checkpoint.initial_load_path = "));
}

TEST_CASE("two runs on one folder: the second names the first") {
  const MemoryFolder folder;
  const Run first(options_of(folder / "c"));
  const std::string message = message_of([&] { Run(options_of(folder / "c")); });
  CHECK(contains(message, folder / "c: another run writes its checkpoints here: \"host "));
  CHECK(contains(message, concat("process ", ::getpid(), ", since ")));
  CHECK(contains(message, "\n  expected a folder for each run"));
  CHECK_THROWS_AS(Run(options_of(folder / "c")), PassingError);  // a restart may find the first one gone
  CheckpointOptions reader = options_of(folder / "c");
  reader.load_only = true;
  CHECK_NOTHROW(Run{reader});
}

TEST_CASE("a start waits for its predecessor's end, and says so") {
  const MemoryFolder folder;
  auto first = std::make_unique<Run>(options_of(folder / "c"));
  CheckpointOptions options = options_of(folder / "c");
  options.lock_seconds = 3600;
  std::vector<std::string> said;
  TestState state({1, 1}, 0, -1);
  const Checkpointer second(
      options, nullptr, [&] { return state.pieces(); },
      [&](const std::string& line) {
        said.push_back(line);
        first.reset();
      });
  REQUIRE(said.size() == 1);
  CHECK(contains(said, folder / "c: another run writes its checkpoints here: \"host "));
  CHECK(contains(said, "; waits up to 3600 s for its end"));
}

TEST_CASE("a folder that is a file, or cannot be made, is named before the first step") {
  const MemoryFolder folder;
  std::ofstream(folder / "file") << "x";
  CHECK(contains(message_of([&] { Run(options_of(folder / "file")); }), folder / "file: is no folder"));
  CHECK(contains(message_of([&] { Run(options_of(folder / "file/c")); }), "\n  expected a folder there, not a file"));
  // a place that nobody may write to, not even root
  CHECK(contains(message_of([&] { Run(options_of("/proc/sfsdp/c")); }), "/proc/sfsdp: cannot be made: "));
  fs::create_directory(folder / "linked");
  fs::create_symlink(folder / "elsewhere", folder / "linked/lock");
  CHECK(contains(message_of([&] { Run(options_of(folder / "linked")); }), "linked/lock: cannot be opened"));
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
  fs::create_directories(folder / "taken/lock");
  CHECK(contains(message_of([&] { Run(options_of(folder / "taken")); }),
                 "\n  expected a file of that name, not a folder"));
}

TEST_CASE("a failed save is an error of all ranks at the end; the state in the background is that of its step") {
  const MemoryFolder folder;
  testing::run_ranks(3, [&](comm::CommWorld& world) {
    CheckpointOptions options = options_of(folder / "c");
    options.in_background = true;
    options.about.world_size = options.about.data_ranks = 3;
    TestState state({3, 1}, world.rank(), 2);
    std::vector<std::string> said;
    Checkpointer checkpointer(
        options, &world, [&] { return state.pieces(); }, [&](const std::string& line) { said.push_back(line); });
    checkpointer.after_step({.step = 2, .seed = 7});
    for (const Piece& p : state.pieces()) std::ranges::fill(p.bytes(), std::byte{0x55});  // the next step's
    checkpointer.finish();
    CHECK(static_cast<int>(said.size()) == (world.rank() == 0 ? 1 : 0));
    if (world.rank() == 0) CHECK(said[0].starts_with("Saved " + folder / "c/step-2: "));
    checkpointer.load();
    CHECK(state.bytes() == TestState({3, 1}, world.rank(), 2).bytes());
    const std::string failure = message_of([&] {
      if (world.rank() == 0) fs::rename(folder / "c", folder / "gone");
      checkpointer.save({.step = 4, .seed = 7}, When::Now);
      checkpointer.finish();
    });
    CHECK(contains(failure, "the last checkpoint is not saved: rank 0: "));
    CHECK(contains(failure, "c: cannot be listed"));
  });
}

}  // namespace sfsdp::train::checkpoint::checkpointer_test
