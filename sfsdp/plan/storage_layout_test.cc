// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/storage_layout.h"

#include <doctest/doctest.h>

#include <functional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/state_addresses.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::plan::storage_layout_test {
namespace {

// Tensor parallelism within data parallelism: a flat buffer of parameters that tp cuts unevenly, a table whose rows dp_shard cuts by a
// list, an embedding that both axes cut, running statistics.
StorageLayout uneven_layout() {
  return {
      .mesh = {{"tp", 2}, {"dp_shard", 2}},
      .entries = {{.name = "step", .kind = StateKind::Counter, .offset = 0, .bytes = 256},
                  {.name = "layers.0.flat.exp_avg",
                   .kind = StateKind::Moment,
                   .shape = {64},
                   .cuts = {{.axes = {"dp_shard"}}},
                   .of = "layers.0.flat",
                   .offset = 256,
                   .bytes = 256},
                  {.name = "layers.0.flat",
                   .dtype = ir::DType::bf16,
                   .shape = {64},
                   .cuts = {{.axes = {"dp_shard"}}},
                   .members = {{.name = "layers.0.w", .shape = {8, 5}, .cuts = {{{"tp"}, {5, 3}}}, .offset = 0},
                               {.name = "layers.0.norm", .shape = {7}, .offset = 32}},
                   .region = Region::Window,
                   .offset = 0,
                   .bytes = 4096},
                  {.name = "table",
                   .shape = {10, 3},
                   .cuts = {{{"dp_shard"}, {9, 1}}},
                   .region = Region::Window,
                   .offset = 4096,
                   .bytes = 4096},
                  {.name = "embedding", .shape = {7, 2}, .cuts = {{{"tp", "dp_shard"}}}, .offset = 512, .bytes = 256},
                  {.name = "mean", .kind = StateKind::Buffer, .shape = {3}, .offset = 768, .bytes = 256}}};
}

std::string refusal(const std::string& text) {
  try {
    parse_storage_layout(text, "F");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// With the hash of its lines, as who edits a layout by hand and means it would write it.
std::string with_right_hash(const std::string& text) {
  const std::string what = refusal(text), expected = "expected storage_layout version=1 hash=";
  const size_t at = what.find(expected);
  if (at == std::string::npos) return text;
  const size_t begin = text.find("hash=");
  return std::string(text).replace(begin + 5, 16, what.substr(at + expected.size(), 16));
}

const StateEntry& entry_of(const StorageLayout& layout, const std::string& name) {
  const StateEntry* entry = find(layout, name);
  REQUIRE_MESSAGE(entry, name);
  return *entry;
}

}  // namespace

TEST_CASE("storage layout: its text says uneven parts by a list, others by a rule, and reads back as it was") {
  const StorageLayout layout = uneven_layout();
  CHECK(check_layout(layout) == "");
  const std::string text = print(layout);
  CHECK(text ==
        concat("storage_layout version=1 hash=", hex(hash(layout)), " entries=6\n",
               "mesh [tp=2, dp_shard=2]\n"
               "entry step kind=counter key=none/f32 shape=[] region=state offset=0 bytes=256\n"
               "entry layers.0.flat.exp_avg kind=moment of=layers.0.flat key=dp_shard/f32 shape=[64] cut.0=dp_shard"
               " region=state offset=256 bytes=256\n"
               "entry layers.0.flat kind=parameter key=tp,dp_shard/bf16 shape=[64] cut.0=dp_shard region=window"
               " offset=0 bytes=4096\n"
               "  member layers.0.w shape=[8,5] cut.0=tp:5,3 offset=0\n"
               "  member layers.0.norm shape=[7] offset=32\n"
               "entry table kind=parameter key=dp_shard/f32 shape=[10,3] cut.0=dp_shard:9,1 region=window offset=4096"
               " bytes=4096\n"
               "entry embedding kind=parameter key=tp,dp_shard/f32 shape=[7,2] cut.0=tp,dp_shard region=state"
               " offset=512 bytes=256\n"
               "entry mean kind=buffer key=none/f32 shape=[3] region=state offset=768 bytes=256\n"));
  const StorageLayout read = parse_storage_layout(text);
  CHECK(print(read) == text);
  CHECK(hash(read) == hash(layout));
  StorageLayout other = layout;
  other.entries[4].offset += 256;
  CHECK(hash(other) != hash(layout));
  CHECK(hash(other, 4) == hash(layout, 4));
  other.mesh[0].size = 4;
  CHECK(hash(other, 4) != hash(layout, 4));
}

TEST_CASE("storage layout: the boxes of all ranks are every element once, however uneven") {
  const StorageLayout layout = uneven_layout();
  const auto rows = [&](const char* name) {
    std::vector<Chunk> parts;
    for (int64_t rank = 0; rank < 4; ++rank) parts.push_back(box_of(layout, entry_of(layout, name), rank).dims[0]);
    return parts;
  };
  CHECK(rows("table") == std::vector<Chunk>{{0, 9}, {9, 1}, {0, 9}, {9, 1}});
  CHECK(largest_part(layout, entry_of(layout, "table")) == 27);
  // 7 rows over tp: 4 and 3; each of these over dp_shard: 2 and 2, 2 and 1
  CHECK(rows("embedding") == std::vector<Chunk>{{0, 2}, {2, 2}, {4, 2}, {6, 1}});
  CHECK(box_of(layout, entry_of(layout, "embedding"), 3).flat == Chunk{0, 2});
  CHECK(rows("mean") == std::vector<Chunk>(4, {0, 3}));

  // Ranks 0 and 1 have rows 0 to 5 of w, 25 elements; ranks 2 and 3 have 15. dp_shard cuts the buffer at element 32, where the norm begins.
  const StateEntry& flat = entry_of(layout, "layers.0.flat");
  CHECK(box_of(layout, flat, 1).dims == std::vector<Chunk>{{32, 32}});
  const auto boxes = [&](const FlatMember& member) {
    std::vector<Box> parts;
    for (int64_t rank = 0; rank < 4; ++rank) parts.push_back(box_of(layout, flat, member, rank));
    return parts;
  };
  CHECK(boxes(flat.members[0]) == std::vector<Box>{{{{0, 5}, {0, 5}}, {0, 25}},
                                                   {{{0, 5}, {0, 5}}, {25, 0}},
                                                   {{{5, 3}, {0, 5}}, {0, 15}},
                                                   {{{5, 3}, {0, 5}}, {15, 0}}});
  CHECK(boxes(flat.members[1])[0].flat == Chunk{0, 0});
  CHECK(boxes(flat.members[1])[3].flat == Chunk{0, 7});
  FlatMember across = flat.members[1];
  across.offset = 30;
  CHECK(box_of(layout, flat, across, 0).flat == Chunk{0, 2});
  CHECK(box_of(layout, flat, across, 1).flat == Chunk{2, 5});

  CHECK(to_string(key_of(flat)) == "tp,dp_shard/bf16");
  CHECK(key_of(entry_of(layout, "step")) == StorageKey{});
  const auto moments = members_of(layout, entry_of(layout, "layers.0.flat.exp_avg"));
  CHECK(moments[0].name == "layers.0.w.exp_avg");
  CHECK(moments[0].cuts == flat.members[0].cuts);
}

TEST_CASE("storage layout: an edited text is refused, with and without the hash of its lines") {
  const std::string good = print(uneven_layout());
  struct Edit {
    const char *from, *to, *says;
  };
  const std::vector<Edit> edits = {
      {"version=1", "version=2", "another sfsdp"},
      {"entries=6", "entries=5", "line 1"},
      {"tp=2", "tp=3", "parts of together 8"},
      {"dp_shard=2]", "cp=2]", "is cut over dp_shard"},
      {"kind=counter", "kind=clock", "kind=KIND"},
      {"kind=buffer", "kind=moment", "is a moment of nothing"},
      {"of=layers.0.flat", "of=table", "is a moment of table"},
      {" of=layers.0.flat", "", "is a moment of nothing"},
      {"key=none/f32", "key=none/float", "key=AXES/DTYPE"},
      {"key=tp,dp_shard/bf16", "key=dp_shard,tp/bf16", "line 5"},
      {"shape=[7]", "shape=[40]", "expected at most 32"},
      {"shape=[3]", "shape=3", "shape=[N,...]"},
      {"shape=[3]", "shape=[300]", "expected room for 1200"},
      {"cut.0=tp:5,3", "cut.0=tp:5,4", "parts of together 9"},
      {"cut.0=tp:5,3", "cut.0=tp:8", "has 1 parts"},
      {"cut.0=tp:5,3", "cut.0=dp_shard:5,3", "is cut over dp_shard"},
      {"cut.0=tp:5,3", "cut.2=tp:5,3", "shape=[N,...]"},
      {"cut.0=tp,dp_shard ", "cut.0=tp,tp ", "is cut over tp"},
      {"norm shape=[7] offset=32", "norm shape=[7] offset=24", "expected at least 25"},
      {"region=state offset=256", "region=io offset=256", "region=REGION"},
      {"region=state offset=256", "region=state offset=0", "lies over"},
      {"offset=256 bytes=256", "offset=256 bytes=320", "lies over"},
      {"offset=768 bytes=256", "offset=-1 bytes=256", "offset=N"},
      {"offset=768 bytes=256", "offset=768 bytes=8", "expected room for 12"},
      {"entry mean", "entry step", "is there twice"},
      {"bytes=256\n", "bytes=256 \n", "line 3"},
  };
  for (const Edit& edit : edits) {
    CAPTURE(edit.from);
    CAPTURE(edit.to);
    std::string text = good;
    const size_t at = text.find(edit.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string(edit.from).size(), edit.to);
    CHECK_FALSE(refusal(text).empty());
    const std::string says = refusal(with_right_hash(text));
    CHECK_MESSAGE(says.find(edit.says) != std::string::npos, says);
  }
  // A text that is sound, but of another run.
  std::string moved = good;
  moved.replace(moved.find("offset=768"), 10, "offset=999");
  CHECK(refusal(moved).find("hash=") != std::string::npos);
  CHECK(refusal(with_right_hash(moved)).empty());
  for (size_t end = 0; end < good.size(); ++end) CHECK_FALSE(refusal(good.substr(0, end)).empty());
}

namespace {

// A training step, then an evaluation that reads the parameters alone; %stats is state that the evaluation reads first.
StepPlan planned(const std::string& text, const char* passes, StorageLayout& layout) {
  ir::Graph graph = ir::parse_or_throw(text);
  const GlobalShapes shapes = global_shapes(graph);
  passes::run_passes(graph, passes::parse_passes(passes));
  return make_plan(std::move(graph), {}, layout, shapes);
}
const char* const kFlat = "wrap, bucket, keep_in_place";
const char* const kEach = "keep_in_place";
std::string training() { return testing::sharded_step_text(2, {{"l.0.a", 5, 7}, {"l.0.b", 64, 1}, {"l.1.c", 3, 3}}); }
std::string evaluation(const char* passes) {
  const std::string params =
      std::string(passes) == kFlat
          ? "  %l.0.flat = param members=[l.0.a, l.0.b] name=l.0.flat numels=[35, 64] offsets=[0, 64]"
            " size=128 : f32[64/dp_shard]\n"
          : "  %l.0.flat = param name=l.0.a rows=5 : f32[3/dp_shard~, 7]\n";
  return concat("graph mesh [dp_shard=2] view local\n", params,
                "  %stats = state name=stats : f32[8]\n"
                "fwd:\n"
                "  %g = all_gather %l.0.flat axis=dp_shard dim=0 : ",
                std::string(passes) == kFlat ? "f32[128]" : "f32[6, 7]",
                "\n"
                "  %s = aten.sum %g : f32[]\n"
                "  %t = aten.sum %stats : f32[]\n"
                "  %y = aten.add.Tensor %s, %t : f32[]\n"
                "  return %y\n");
}

// These steps return what is each rank's own, so verify_plan refuses them for that.
std::string faults_of(const StepPlan& plan) {
  return concat(check_memory_plan(plan.memory), join(check_hazards(plan), "\n"));
}

}  // namespace

TEST_CASE("storage layout: the first graph decides it, a later one is planned against it, and only appends") {
  for (const char* passes : {kFlat, kEach}) {
    CAPTURE(passes);
    StorageLayout layout;
    const StepPlan train = planned(training(), passes, layout);
    const StorageLayout first = layout;
    CHECK(check_layout(first) == "");
    CHECK(print(parse_storage_layout(print(first))) == print(first));
    CHECK(entry_of(first, "step").kind == StateKind::Counter);
    if (passes == kFlat) {
      CHECK(entry_of(first, "l.0.flat").members ==
            std::vector<FlatMember>{{.name = "l.0.a", .shape = {5, 7}, .offset = 0},
                                    {.name = "l.0.b", .shape = {64, 1}, .offset = 64}});
      CHECK(entry_of(first, "l.0.flat.exp_avg").of == "l.0.flat");
    } else {
      CHECK(entry_of(first, "l.0.a.exp_avg").shape ==
            std::vector<int64_t>{5, 7});  // three rows and two, a padding one aside
      CHECK(box_of(first, entry_of(first, "l.0.a.exp_avg"), 1).dims[0] == Chunk{3, 2});
    }

    StepPlan eval = planned(evaluation(passes), kEach, layout);
    CHECK(layout.entries.size() == first.entries.size() + 1);
    CHECK(layout.entries.back().name == "stats");
    CHECK(layout.entries.back().region == Region::State);
    CHECK(hash(layout, first.entries.size()) == hash(first));
    for (const StepPlan* plan : std::vector<const StepPlan*>{&train, &eval}) {
      CHECK(join(check_state_addresses(*plan, layout), "\n") == "");
      CHECK(faults_of(*plan) == "");
      const StepPlan read = parse_plan(print(*plan));
      CHECK(print(read) == print(*plan));
      CHECK(read.memory.state_bytes == plan->memory.state_bytes);
      CHECK(read.layout == plan->layout);
    }
    CHECK(eval.memory.unread.size() == first.entries.size() - 1);
    // Nothing of the evaluation comes and goes where the training step has state.
    for (const Buffer& b : eval.memory.buffers)
      if (b.region == Region::Window) CHECK(b.offset >= end_of(layout, Region::Window));

    const auto refused = [&](const std::function<void(StepPlan&)>& mutate, const std::string& says) {
      StepPlan plan = parse_plan(print(eval));
      mutate(plan);
      const std::string got = join(check_state_addresses(plan, layout), "\n");
      CHECK_MESSAGE(got.find(says) != std::string::npos, got);
    };
    refused([](StepPlan& p) { p.memory.state[0].offset += 4096; }, "where all programs of the run have it");
    refused([](StepPlan& p) { p.memory.state[0].region = Region::State; }, "lies at state +");
    refused([](StepPlan& p) { p.memory.state.erase(p.memory.state.begin()); }, "has no place in the plan");
    refused([](StepPlan& p) { p.memory.unread.pop_back(); }, "nothing else may lie there");
    refused([](StepPlan& p) { p.memory.unread.push_back(p.memory.unread[0]); }, "which has it no more");
    refused([](StepPlan& p) { p.memory.unread[0].name = "other"; }, "other lies at");
    refused([](StepPlan& p) { p.layout->hash ^= 1; }, "that of the run");
    refused([](StepPlan& p) { p.layout->entries -= 1; }, "that of the run");
    refused([](StepPlan& p) { p.layout.reset(); }, "storage layout none");
    refused([](StepPlan& p) { p.graph.mesh[0].size = 4; }, "the plan is of mesh");

    // One that counts its own addresses, as all did before there was a layout.
    StorageLayout own;
    StepPlan alone = planned(evaluation(passes), kEach, own);
    alone.layout = eval.layout;
    CHECK_FALSE(check_state_addresses(alone, layout).empty());
    CHECK(faults_of(alone) == "");

    StepPlan over = parse_plan(print(eval));
    for (UnreadState& u : over.memory.unread) u = {u.name, Region::Window, over.memory.buffers.back().offset, u.bytes};
    CHECK(faults_of(over).find("state that is not read") != std::string::npos);
  }
}

}  // namespace sfsdp::plan::storage_layout_test
