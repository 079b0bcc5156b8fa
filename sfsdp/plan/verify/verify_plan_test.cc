// SPDX-License-Identifier: BSD-3-Clause
// Mutations: a sound plan is broken in one place, and the verifier must say where.
#include "sfsdp/plan/verify/verify_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/rendezvous.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::plan::verify_plan_test {
namespace {

// A block of Llama under HSDP 2 × 2, as `sfsdp inspect --graph` printed it, after `sfsdp opt --pass fuse`.
const std::string& step_text() {
  static const std::string kText = [] {
    std::ifstream file(testing::source_dir() + "/sfsdp/plan/testdata/llama_step.txt");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }();
  return kText;
}

StepPlan sound_plan() { return make_plan(ir::parse_or_throw(step_text())); }

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = step_text();
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

// The line that begins with `begin`, moved in front of the one that begins with `place`.
std::string moved(const std::string& begin, const std::string& place) {
  auto lines = split(step_text(), '\n');
  const auto find = [&](const std::string& start) {
    const auto line = std::ranges::find_if(lines, [&](const std::string& l) { return l.starts_with("  " + start); });
    REQUIRE_MESSAGE(line != lines.end(), start);
    return line;
  };
  const auto line = find(begin);
  const std::string text = *line;
  lines.erase(line);
  lines.insert(find(place), text);
  return join(lines, "\n");
}

// What the verifier says of a graph text, parsed as it is.
std::string errors_of_text(const std::string& text) {
  const ir::ParseResult parsed = ir::parse(text);
  if (!parsed.ok()) return ir::to_string(parsed.diagnostics);
  StepPlan plan;
  plan.graph = parsed.graph.clone();
  if (ir::verify(plan.graph).empty()) plan = make_plan(std::move(plan.graph));
  return join(verify_plan(plan), "\n");
}

Buffer& buffer_of(StepPlan& plan, const std::string& name) {
  for (Buffer& b : plan.memory.buffers)
    if (b.value->name() == name) return b;
  FAIL("no buffer of %" << name);
  return plan.memory.buffers[0];
}

template <class Is>
void erase_edges(StepPlan& plan, Is is) {
  REQUIRE(std::erase_if(plan.edges, is) > 0);
}

// The last op that has a kernel; its number is not the first.
ir::Op* kernel_op(StepPlan& plan) {
  ir::Op* last = nullptr;
  for (const auto& op : plan.graph.ops())
    if (op->has_attr("kernel")) last = op.get();
  REQUIRE(last);
  return last;
}

// Puts the reader of a product's result into the product's kernel, where it reads other rows than those of its tile.
void join_reader(StepPlan& plan) {
  ir::Op* before = nullptr;
  for (const auto& op : plan.graph.ops()) {
    if (!op->has_attr("kernel")) continue;
    const bool reads = before && cost::class_of(*op) == cost::Class::Product &&
                       std::ranges::any_of(op->operands, [&](const ir::Value* v) {
                         return v && ir::storage_of(v)->producer() == before;
                       });
    if (reads) {
      op->attrs["kernel"] = before->attrs["kernel"];
      return;
    }
    before = op.get();
  }
  FAIL("no op whose result a product reads next");
}

void erase_buffer(StepPlan& plan, const std::string& name) {
  std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value->name() == name; });
}

struct Mutation {
  const char* what;
  const char* expected;
  std::function<void(StepPlan&)> apply;
};

void expect_caught(const std::vector<Mutation>& mutations) {
  for (const Mutation& m : mutations) {
    CAPTURE(m.what);
    StepPlan plan = sound_plan();
    m.apply(plan);
    const std::string errors = join(verify_plan(plan), "\n");
    CHECK_MESSAGE(errors.find(m.expected) != std::string::npos, "got: ", errors);
  }
}

}  // namespace

TEST_CASE("a plan is sound, prints, parses back and has the same hash") {
  const StepPlan plan = sound_plan();
  CHECK(join(verify_plan(plan), "\n") == "");
  const std::string text = print(plan);
  const StepPlan again = parse_plan(text, "plan.txt");
  CHECK(print(again) == text);
  CHECK(hash(again) == hash(plan));
  CHECK(join(verify_plan(again), "\n") == "");
  CHECK(plan.lanes.size() == 3);
}

TEST_CASE("broken plans are caught: lanes, memory, head") {
  expect_caught({
      {"two collectives of a lane change places", "in place",
       [](StepPlan& p) { std::swap(p.lanes[0].collectives[0], p.lanes[0].collectives[1]); }},
      {"a collective is on no lane", "is on no lane", [](StepPlan& p) { p.lanes[0].collectives.pop_back(); }},
      {"a collective is on another's lane", "is on the lane of",
       [](StepPlan& p) {
         p.lanes[1].collectives.push_back(p.lanes[0].collectives.back());
         p.lanes[0].collectives.pop_back();
       }},
      {"a collective is twice on a lane", "on two lanes, or twice",
       [](StepPlan& p) { p.lanes[0].collectives.push_back(p.lanes[0].collectives[0]); }},
      {"a product is on a lane of collectives", "is no collective",
       [](StepPlan& p) { p.lanes[0].collectives.push_back(p.graph.find_value("106")->producer()); }},
      {"two buffers that live at once share an address", "overlap",
       [](StepPlan& p) {
         buffer_of(p, "norm_output.flat.grad.packed").offset = buffer_of(p, "norm_output.flat.grad.rs.start").offset;
       }},
      {"an address is not aligned", "expected a multiple of",
       [](StepPlan& p) { buffer_of(p, "norm_output.flat.full.start").offset += 4; }},
      {"an address is aligned, but not for the window", "expected a multiple of 4096",
       [](StepPlan& p) { buffer_of(p, "norm_output.flat.full.start").offset += 256; }},
      {"a buffer leaves its region", "bytes of region window",
       [](StepPlan& p) { buffer_of(p, "norm_output.flat.full.start").offset = p.memory.region_bytes[1]; }},
      {"a region is a byte too small", "bytes of region window",
       [](StepPlan& p) { --p.memory.region_bytes[static_cast<size_t>(Region::Window)]; }},
      {"what is gathered lies outside of the window", "lies in region state",
       [](StepPlan& p) { buffer_of(p, "norm_output.flat.full.start").region = Region::State; }},
      {"an activation lies where the batch does", "lies in region io",
       [](StepPlan& p) { buffer_of(p, "106").region = Region::Io; }},
      {"the batch lies among activations", "lies in region window",
       [](StepPlan& p) { p.memory.buffers[0].region = Region::Window; }},
      {"a value has no buffer", "has no place in memory",
       [](StepPlan& p) { erase_buffer(p, "norm_output.flat.grad.packed"); }},
      {"a buffer is too small", "has a buffer of 256 bytes",
       [](StepPlan& p) { buffer_of(p, "norm_output.flat.grad.packed").bytes = 256; }},
      {"a buffer is given up before its last reader", "is kept from op",
       [](StepPlan& p) { --buffer_of(p, "norm_output.flat.full.start").last; }},
      {"a sent buffer is given up when its collective starts", "is kept from op",
       [](StepPlan& p) {
         Buffer& b = buffer_of(p, "norm_output.flat.grad.packed");
         b.last = b.first + 1;
       }},
      {"a buffer begins after its value is made", "is kept from op", [](StepPlan& p) { ++buffer_of(p, "106").first; }},
      {"a value has two buffers", "has two buffers",
       [](StepPlan& p) { p.memory.buffers.push_back(buffer_of(p, "106")); }},
      {"state has a buffer of the arena", "needs none",
       [](StepPlan& p) {
         Buffer b = buffer_of(p, "106");
         b.value = p.graph.find_value("layers.0.flat");
         p.memory.buffers.push_back(b);
       }},
      {"the live bytes are wrong", "live_bytes", [](StepPlan& p) { p.memory.live_bytes -= 256; }},
      {"the peak is elsewhere", "peak_position", [](StepPlan& p) { ++p.memory.peak_position; }},
  });
}

TEST_CASE("broken plans are caught: kernels, edges, state") {
  expect_caught({
      {"a parameter has no place", "has no place in state",
       [](StepPlan& p) {
         std::erase_if(p.memory.state, [](const Buffer& b) { return b.value->name() == "layers.0.flat"; });
       }},
      {"a parameter has two", "each once", [](StepPlan& p) { p.memory.state.push_back(p.memory.state[0]); }},
      {"a parameter's place is too small", "bytes of state", [](StepPlan& p) { p.memory.state.back().bytes = 1; }},
      {"a parameter's place is larger than it", "bytes of state",
       [](StepPlan& p) { p.memory.state.back().bytes += 256; }},
      {"a parameter is given up", "state is there for the whole step", [](StepPlan& p) { --p.memory.state[0].last; }},
      {"a parameter comes late", "state is there for the whole step", [](StepPlan& p) { ++p.memory.state[0].first; }},
      {"two parameters share an address", "overlap",
       [](StepPlan& p) { p.memory.state.back().offset = p.memory.state[p.memory.state.size() - 2].offset; }},
      {"an activation counts as state", "in state", [](StepPlan& p) { p.memory.state.push_back(buffer_of(p, "106")); }},
      {"a kernel has no workspace", "workspace of lane compute = 0", [](StepPlan& p) { p.memory.workspaces[0] = 0; }},
      {"kernels have more than the largest needs", "workspace of lane compute",
       [](StepPlan& p) { ++p.memory.workspaces[0]; }},
      {"a communicator has less than its target says", "workspace of a communicator = 1048575",
       [](StepPlan& p) { --p.memory.workspaces[1]; }},
      {"a region is larger than what lies in it", "region state = ", [](StepPlan& p) { ++p.memory.region_bytes[0]; }},
      {"a region is larger than what lies in it", "region window = ", [](StepPlan& p) { ++p.memory.region_bytes[1]; }},
      {"a lane has no workspace", "workspaces", [](StepPlan& p) { p.memory.workspaces.pop_back(); }},
      {"an edge leads to no task", "an edge from", [](StepPlan& p) { p.edges.back().to.number = 1 << 20; }},
      {"an edge leads to no lane", "an edge from", [](StepPlan& p) { p.edges.back().from.lane = 9; }},
      {"an edge stays on its lane", "an edge from", [](StepPlan& p) { p.edges[0].to.lane = p.edges[0].from.lane; }},
      {"an edge is there twice", "each once", [](StepPlan& p) { p.edges.push_back(p.edges.back()); }},
      {"edges are out of order", "each once", [](StepPlan& p) { std::swap(p.edges[0], p.edges[1]); }},
      {"there are no edges", "expected an edge between them", [](StepPlan& p) { p.edges.clear(); }},
      {"compute does not wait for a gather", "before lane dp_shard/0 has written it",
       [](StepPlan& p) { erase_edges(p, [](const Edge& e) { return e.from.lane == 1 && e.to.lane == 0; }); }},
      {"collectives do not wait for kernels", "while lane compute reads that",
       [](StepPlan& p) { erase_edges(p, [](const Edge& e) { return e.from.lane == 0; }); }},
      {"an op of a kernel reads what the whole kernel makes", "in the kernel that makes it",
       [](StepPlan& p) { join_reader(p); }},
      {"an op has no kernel", "has no kernel", [](StepPlan& p) { kernel_op(p)->attrs.erase("kernel"); }},
      {"kernels are out of order", "after kernel=", [](StepPlan& p) { kernel_op(p)->attrs["kernel"] = int64_t{0}; }},
  });
}

// Two gradients and what lies beside them in a bucket, and a chain of ops that need one place.
StepPlan plan_in_place() {
  return make_plan(ir::parse_or_throw(R"(graph mesh [dp_shard=2] view local
  %w = param name=w : f32[64/dp_shard, 64]
  %x = input name=x : f32[64, 64] own(dp_shard)
  %y = input name=y : bf16[64, 64] own(dp_shard)
fwd:
  %h = aten.mm %x, %x kernel=0 : f32[64, 64]
  %n = aten.neg %h kernel=1 : f32[64, 64]
  %m = aten.mm %n, %n kernel=2 : f32[64, 64]
bwd:
  %g = aten.mm %m, %x kernel=3 : f32[64, 64]
  %k = aten.mm %y, %y kernel=4 : bf16[64, 64]
  %k.wide = cast %k kernel=4 : f32[64, 64]
  %p = pack [%g, %k.wide] inside=[0, 1] offsets=[0, 4096] : f32[8192]
  %s = reduce_scatter.start %p axis=dp_shard dim=0 : async f32[4096]
  %r = wait %s : f32[4096]
  return %r
)"));
}

Inside& inside_of(StepPlan& plan, const std::string& name) {
  for (Inside& i : plan.memory.inside)
    if (i.value->name() == name) return i;
  FAIL("nothing inside is %" << name);
  return plan.memory.inside[0];
}

// check_hazards alone, which does not know where the planner would put anything.
TEST_CASE("results inside other buffers: in the text, and what is wrong with them is caught") {
  const StepPlan sound = plan_in_place();
  REQUIRE(join(verify_plan(sound), "\n") == "");
  const std::string text = print(sound);
  CHECK(text.substr(text.find("inside:")) ==
        "inside:\n  %g inside %p at +0\n  %k.wide inside %p at +16384\n"
        "  %n inside %h at +0\nviews:\n");
  CHECK(print(parse_plan(text)) == text);
  CHECK(
      std::ranges::none_of(sound.graph.ops(), [](const auto& op) { return op->is("pack") && op->has_attr("kernel"); }));
  const Mutation mutations[] = {
      {"a gradient lies elsewhere in the bucket", "does not copy %g",
       [](StepPlan& p) { inside_of(p, "g").offset = 256; }},
      {"two gradients lie at one place", "does not copy %k.wide",
       [](StepPlan& p) { inside_of(p, "k.wide").offset = 0; }},
      {"a gradient leaves the bucket", "within another's buffer",
       [](StepPlan& p) { inside_of(p, "k.wide").offset = 1 << 20; }},
      {"a gradient lies before the bucket", "within another's buffer",
       [](StepPlan& p) { inside_of(p, "g").offset = -4096; }},
      {"a gradient lies in another buffer", "does not copy %g",
       [](StepPlan& p) { inside_of(p, "g").host = p.graph.find_value("m"); }},
      {"a gradient lies nowhere", "does not copy %g",
       [](StepPlan& p) { std::erase_if(p.memory.inside, [](const Inside& i) { return i.value->name() == "g"; }); }},
      {"a product is written over what it reads", "reads other elements",
       [](StepPlan& p) {
         erase_buffer(p, "m");
         p.memory.inside.push_back({p.graph.find_value("m"), p.graph.find_value("h"), 0});
       }},
      {"a product is written over a part of what it reads", "a part of",
       [](StepPlan& p) { buffer_of(p, "m").offset = buffer_of(p, "h").offset + 4096; }},
      {"a value is written over one that is read later", "which holds",
       [](StepPlan& p) {
         erase_buffer(p, "m");
         p.memory.inside.push_back({p.graph.find_value("m"), p.graph.find_value("x"), 0});
       }},
      {"a bucket lies where what its gradients are computed from does", "reads other elements",
       [](StepPlan& p) { buffer_of(p, "p").offset = buffer_of(p, "m").offset; }},
  };
  for (const Mutation& m : mutations) {
    CAPTURE(m.what);
    StepPlan plan = plan_in_place();
    m.apply(plan);
    const std::string errors = join(check_hazards(plan), "\n");
    CHECK_MESSAGE(errors.find(m.expected) != std::string::npos, "got: ", errors);
    CHECK_FALSE(verify_plan(plan).empty());
  }
  const std::pair<const char*, const char*> texts[] = {
      {"inside=[0, 1]", "inside=[1, 0]"}, {"inside=[0, 1]", "inside=[0, 2]"}, {"inside=[0, 1]", "inside=[0]"}};
  for (const auto& [from, to] : texts) {  // the last one: a pack with something to copy is a kernel
    CAPTURE(to);
    std::string changed = text;
    changed.replace(changed.find(from), std::string(from).size(), to);
    std::string wrong;
    try {
      wrong = join(verify_plan(parse_plan(changed)), "\n");
    } catch (const UserError& error) {
      wrong = error.what();
    }
    CHECK(wrong.find("pack") != std::string::npos);
  }
}

// Rules that check_memory, which knows what the planner makes, would mend or hide.
TEST_CASE("hazards alone: what a collective touches outside of the window, two lanes that write one place") {
  StepPlan outside = sound_plan();
  buffer_of(outside, "norm_output.flat.full.start").region = Region::State;
  CHECK(join(check_hazards(outside), "\n").find("touches, lies in region state\n  expected window") !=
        std::string::npos);
  StepPlan plan = make_plan(ir::parse_or_throw(R"(graph mesh [dp_shard=2] view local
  %w = param name=w : f32[512/dp_shard]
  %x = input name=x : f32[1024] own(dp_shard)
fwd:
  %s = all_gather.start %w axis=dp_shard dim=0 : async f32[1024]
  %n = aten.neg %x kernel=0 : f32[1024]
  %g = wait %s : f32[1024]
  %y = aten.add.Tensor %n, %g kernel=1 : f32[1024]
  return %y
)"));
  REQUIRE(join(check_hazards(plan), "\n") == "");
  buffer_of(plan, "n").offset = buffer_of(plan, "s").offset;
  const std::string wrong = join(check_hazards(plan), "\n");
  CHECK_MESSAGE(wrong.find("%n may be written over %s while lane dp_shard/0 writes that") != std::string::npos, wrong);
}

// Tied weights whose loss is in chunks: the last part of the gradient and the embedding's are added in one kernel.
TEST_CASE("hazards: a sum that its kernel alone reads is not written, so that another result may lie in its buffer") {
  const auto plan_of = [](const char* rest) {
    return make_plan(ir::parse_or_throw(concat(R"(graph mesh [] view local
  %x = input name=x : f32[8]
fwd:
  %s = aten.neg %x kernel=0 : f32[8]
  %p = aten.relu %x kernel=1 : f32[8]
  %a = add_into %s, %p donates=[0] kernel=2 : f32[8]
)",
                                               rest)));
  };
  const StepPlan one = plan_of("  %y = aten.add.Tensor %a, %x kernel=2 : f32[8]\n  return %y\n");
  CHECK(join(verify_plan(one), "\n") == "");
  REQUIRE(one.memory.inside.size() == 1);
  CHECK(one.memory.inside[0].value->name() == "y");
  CHECK(one.memory.inside[0].host->name() == "s");
  const StepPlan two = plan_of("  %b = add_into %a, %x donates=[0] kernel=2 : f32[8]\n  return %b\n");
  CHECK(join(verify_plan(two), "\n") == "");
  // read by the next kernel, it is written, and nothing lies over it
  const StepPlan read = plan_of(
      "  %y = aten.add.Tensor %a, %x kernel=2 : f32[8]\n  %z = aten.add.Tensor %a, %y kernel=3 : f32[8]\n  return "
      "%z\n");
  CHECK(join(verify_plan(read), "\n") == "");
  CHECK(std::ranges::none_of(read.memory.inside,
                             [](const Inside& i) { return i.value->name() == "y" && i.host->name() == "s"; }));
}

TEST_CASE("a parameter without elements has a place of its own, like any other") {
  const StepPlan plan = make_plan(ir::parse_or_throw(R"(graph mesh [] view local
  %e = param name=e : f32[0, 4]
  %w = param name=w : f32[4]
  %f = state name=f : f32[0]
  %x = input name=x : f32[4]
fwd:
  %n = aten.neg %e kernel=0 : f32[0, 4]
  %y = aten.add.Tensor %x, %w kernel=1 : f32[4]
  return %n, %y
)"));
  CHECK(join(verify_plan(plan), "\n") == "");
  CHECK(plan.memory.state[1].offset == 256);
  CHECK(plan.memory.state_bytes == 3 * 256);
  CHECK(join(verify_plan(parse_plan(print(plan))), "\n") == "");
}

TEST_CASE("a plan's target: known ones are held against their table, others' numbers are the text's own") {
  const std::string text = print(sound_plan());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    REQUIRE(changed.find(from) < changed.find('\n'));
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::string product = "product_bytes=10518528", communicator = "communicator_bytes=1048576";
  for (const auto& [from, to] : {std::pair<std::string, std::string>{product, "product_bytes=4096"},
                                 {communicator, "communicator_bytes=4096"},
                                 {"blocks=16", "blocks=17"},
                                 {"accumulates_in_memory=0", "accumulates_in_memory=1"},
                                 {"is_cpu=1", "is_cpu=0"},
                                 {" alignment=256", " alignment=1"},
                                 {"window_alignment=4096", "window_alignment=256"}}) {
    CAPTURE(to);
    CHECK_THROWS_WITH_AS(parse_plan(with(from, to)), doctest::Contains("of target cpu"), UserError);
  }
  CHECK_THROWS_WITH_AS(parse_plan(with("target=cpu", "target=dgx_h100")),
                       doctest::Contains("product_bytes=10518528 of target dgx_h100\n  expected 33554432"), UserError);
  const std::string own = with("target=cpu", "target=banana");
  CHECK(join(verify_plan(parse_plan(own)), "\n") == "");
  std::string larger = own;
  larger.replace(larger.find(communicator), communicator.size(), "communicator_bytes=2097152");
  CHECK(join(verify_plan(parse_plan(larger)), "\n").find("workspace of a communicator = 1048576\n  expected 2097152") !=
        std::string::npos);
  std::string unaligned = own;
  unaligned.replace(unaligned.find(" alignment=256"), 14, " alignment=1");
  CHECK_THROWS_WITH_AS(parse_plan(unaligned), doctest::Contains("alignment=1 of target banana"), UserError);
  std::string missing = own;
  missing.replace(missing.find(" blocks=16"), 10, "");
  CHECK_THROWS_WITH_AS(parse_plan(missing), doctest::Contains("no blocks="), UserError);
}

// An edge that keeps the program's order where memory would not need it may go unnoticed: a gather that starts after a kernel and
// reads nothing of it.
TEST_CASE("edges that are taken away, one by one") {
  const StepPlan sound = sound_plan();
  size_t caught = 0;
  for (size_t i = 0; i < sound.edges.size(); ++i) {
    StepPlan plan = sound_plan();
    const Edge edge = plan.edges[i];
    plan.edges.erase(plan.edges.begin() + static_cast<std::ptrdiff_t>(i));
    const bool found = !verify_plan(plan).empty();
    caught += found;
    CAPTURE(edge.from.lane);
    CAPTURE(edge.from.number);
    CAPTURE(edge.to.lane);
    CAPTURE(edge.to.number);
    if (edge.from.lane > 0) CHECK(found);  // what a collective makes is read after it
  }
  MESSAGE(caught, " of ", sound.edges.size(), " edges");
}

TEST_CASE("broken programs are caught: waits, reductions, shards") {
  struct Mutation {
    const char* what;
    const char* expected;
    std::string text;
  };
  const Mutation mutations[] = {
      {"a gathered unit is read before its wait", "before its wait",
       replaced("view %norm_output.flat.full offset=0", "view %norm_output.flat.full.start offset=0")},
      {"a reduction is never waited for", "nothing waits for it",
       replaced("= wait %norm_output.flat.grad.rs.start :",
                "= narrow %norm_output.flat.grad.packed dim=0 length=4160 start=0 :")},
      {"a wait stands before its start", "no line above defines it",
       moved("%norm_output.flat.full = wait", "%norm_output.flat.full.start =")},
      {"a parameter is read after its update took its memory", "donat",
       replaced("return %loss.share.all,", "return %layers.0.flat,")},
      {"a gradient is not reduced over the replicas", "a gradient that is not reduced",
       replaced("all_reduce %norm_output.flat.grad.acc axis=dp_replicate",
                "mul_scalar %norm_output.flat.grad.acc value=1.0")},
      {"a gradient is reduced twice", "sums what is the same on all ranks",
       replaced("gradient %norm_output.flat.grad.ar param=norm_output.flat",
                "all_reduce %norm_output.flat.grad.ar axis=dp_replicate")},
      {"a gradient is reduced over the wrong axis", "over dp_replicate: a gradient that is not reduced",
       replaced("all_reduce %norm_output.flat.grad.acc axis=dp_replicate",
                "all_reduce %norm_output.flat.grad.acc axis=dp_shard")},
      {"a gradient names another parameter", "is the second with param=layers.0.flat",
       replaced("param=norm_output.flat", "param=layers.0.flat")},
      {"the loss is one rank's", "the step returns",
       replaced("all_reduce %loss.share axis=[dp_replicate, dp_shard]", "mul_scalar %loss.share value=1.0")},
      {"the loss is reduced over one axis of two", "the step returns",
       replaced("all_reduce %loss.share axis=[dp_replicate, dp_shard]", "all_reduce %loss.share axis=dp_replicate")},
      {"the norm is that of one shard", "each rank's own",
       replaced("all_reduce %grad.squares axis=dp_shard", "mul_scalar %grad.squares value=1.0")},
      {"a carried shard is replaced by another's", "changes the type",
       replaced("carry %layers.0.flat = %layers.0.flat.new", "carry %layers.0.flat = %norm_output.flat.new")},
  };
  for (const Mutation& m : mutations) {
    CAPTURE(m.what);
    const std::string errors = errors_of_text(m.text);
    CHECK(!errors.empty());
    CHECK_MESSAGE(errors.find(m.expected) != std::string::npos, "got: ", errors);
  }
}

TEST_CASE("a shard that is read as if it were the whole is caught") {
  const std::string head =
      "graph mesh [dp_shard=2] view local\n  %w = param name=w : f32[2/dp_shard, 2]\n"
      "  %x = input name=batch.0 : f32[2, 2] own(dp_shard)\nfwd:\n";
  const auto wrong = [&](const std::string& body) { return check_axis_states(ir::parse_or_throw(head + body)); };
  CHECK(wrong("  %y = aten.mm %w, %w : f32[2, 2]\n  return %y\n").find("as if it were the whole") != std::string::npos);
  CHECK(wrong("  %y = aten.mm %w, %x : f32[2, 2]\n  return %y\n").find("a shard meets values") != std::string::npos);
  CHECK(wrong("  %y = aten.mul.Tensor %x, %x : f32[2, 2]\n  return %y\n").find("returns %y") != std::string::npos);
  CHECK(wrong("  %y = all_reduce %x axis=dp_shard : f32[2, 2]\n  return %y\n").empty());
  const std::string gather = "  %g = all_gather %p axis=dp_shard dim=0 : f32[16]\n",
                    out = "  %y = unpack %g offset=4 ranks=2 : f32[4, 2]\n  return %y\n";
  CHECK(wrong("  %p = pack [%w, %w] offsets=[0, 4] : f32[8]\n" + gather + out).empty());
  CHECK(wrong("  %p = pack [%w, %w] offsets=[0, 2] ranks=2 : f32[8]\n" + gather + out).find("shards are packed") !=
        std::string::npos);
  CHECK(wrong("  %one = full value=1.0 : f32[4]\n  %p = pack [%w, %one] offsets=[0, 4] : f32[8]\n" + gather + out)
            .find("shards are packed with what is whole") != std::string::npos);
  CHECK(wrong("  %p = pack [%w, %w] offsets=[0, 4] : f32[8]\n  %y = unpack %p offset=0 ranks=2 : f32[4]\n"
              "  return %y\n")
            .find("as if it were the whole") != std::string::npos);
}

TEST_CASE("a count that each rank knows by itself is to be summed, once") {
  const auto wrong = [](const std::string& body) {
    return check_axis_states(
        ir::parse_or_throw("graph mesh [dp_shard=2] view local\nfwd:\n  %n = full value=8.0 : f64[]\n" + body));
  };
  const std::string sum = "  %all = all_reduce %n axis=dp_shard : f64[]\n";
  CHECK(wrong(sum + "  return %all\n").empty());
  CHECK(wrong("  return %n\n").find("returns %n, which is each rank's own") != std::string::npos);
  CHECK(wrong("clip:\n" + sum + "  %twice = all_reduce %all axis=dp_shard : f64[]\n  return %twice\n")
            .find("sums what is the same on all ranks") != std::string::npos);
}

TEST_CASE("prefetched bytes are held to their budget") {
  const StepPlan plan = sound_plan();
  CHECK(join(verify_plan(plan, {.prefetch_bytes = 1 << 20}), "\n").empty());
  CHECK(join(verify_plan(plan, {.prefetch_bytes = 1024}), "\n").find("bytes of gathers are in flight") !=
        std::string::npos);
  CHECK(verify_budget(plan, 1 << 20).empty());
  CHECK(join(verify_budget(plan, 1024), "\n").find("bytes of gathers are in flight") != std::string::npos);
}

TEST_CASE("ranks with different programs: deadlocks and calls that do not meet") {
  const ir::Graph good = ir::parse_or_throw(step_text());
  const DeviceMesh mesh(good.mesh);
  const auto against = [&](const std::string& text) {
    const ir::Graph other = ir::parse_or_throw(text);
    return check_rendezvous(mesh, [&](int64_t rank) -> const ir::Graph& { return rank == 3 ? other : good; });
  };
  CHECK(against(step_text()).empty());
  // Another order of two gathers of different size on one communicator.
  CHECK(against(moved("%norm_output.flat.full.start =", "%layers.0.flat.full.start =")).find("over dp_shard is") !=
        std::string::npos);
  // One collective less: the others wait for ever.
  CHECK(against(replaced("all_reduce %grad.squares axis=dp_shard", "mul_scalar %grad.squares value=1.0"))
            .find("would wait for ever") != std::string::npos);
  // Another kind of call in its place.
  CHECK(against(replaced("all_reduce %tok_embeddings.flat.grad.acc axis=dp_replicate",
                         "all_reduce %tok_embeddings.flat.grad.acc op=max axis=dp_replicate"))
            .find("op=max") != std::string::npos);
  // Blocking calls over two axes in crossed order: each communicator's own order is the same on all its ranks.
  const std::string head = "graph mesh [a=2, b=2] view local\n  %x = input name=batch.0 : f32[2] own(a, b)\nfwd:\n";
  const ir::Graph ab = ir::parse_or_throw(
      head + "  %y = all_reduce %x axis=a : f32[2]\n  %z = all_reduce %x axis=b : f32[2]\n  return %y\n");
  const ir::Graph ba = ir::parse_or_throw(
      head + "  %z = all_reduce %x axis=b : f32[2]\n  %y = all_reduce %x axis=a : f32[2]\n  return %y\n");
  const auto crossed = check_rendezvous(
      DeviceMesh(ab.mesh), [&](int64_t rank) -> const ir::Graph& { return rank == 0 || rank == 3 ? ab : ba; });
  CHECK(crossed.find("rank 0 at %y") != std::string::npos);
}

}  // namespace sfsdp::plan::verify_plan_test
