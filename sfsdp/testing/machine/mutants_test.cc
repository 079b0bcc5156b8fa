// SPDX-License-Identifier: BSD-3-Clause
// Plans that are broken in one place, by name, and who sees it: the verifier, which trusts the ops' access maps, and the plan
// machine, which trusts the text and, for the size of blocks, these maps; capture/access_test.cc proves them.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/machine/reference.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::plan::machine {
namespace {

enum class By : uint8_t { Verifier, Both };

// What a plan's text is caught by.
struct Caught {
  std::string verifier, machine;
};
Caught caught(const StepPlan& plan) { return {join(verify_plan(plan), "\n"), find_difference(plan)}; }

void expect_sound(const StepPlan& plan) {
  const Caught by = caught(plan);
  CHECK(by.verifier == "");
  CHECK(by.machine == "");
}

void expect_caught(const StepPlan& plan, By by) {
  const Caught found = caught(plan);
  CHECK_FALSE(found.verifier.empty());
  CHECK_MESSAGE(found.machine.empty() == (by == By::Verifier), found.machine);
}

// ---- a kernel that reads what it has written: %y lies over a value that its op reads at other places than it writes

struct Torn {
  const char* name;
  const char* over;  // what %y lies over
  const char* ops;   // make %y from what an op has made before
  int64_t at = 0;    // bytes
};

const Torn kTorn[] = {
    {"a product over its left operand", "a", "%y = linear %a, %sq kernel=9 : f32[8, 8]"},
    {"a product over its weight", "sq", "%y = linear %a, %sq kernel=9 : f32[8, 8]"},
    {"a transposed read", "a", "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.neg %t kernel=9 : f32[8, 8]"},
    {"an operand read at its place and transposed", "a",
     "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.add.Tensor %a, %t kernel=9 : f32[8, 8]"},
    {"halves of rows in the other order", "a",
     "%hi = narrow %a dim=0 length=4 start=4 : f32[4, 8]\n      %lo = narrow %a dim=0 length=4 start=0 : f32[4, 8]\n"
     "      %y = aten.cat [%hi, %lo] dim=0 kernel=9 : f32[8, 8]"},
    {"the first row added to all", "a",
     "%f = narrow %a dim=0 length=1 start=0 : f32[1, 8]\n      %y = aten.add.Tensor %a, %f kernel=9 : f32[8, 8]"},
    {"a row further in the memory that is read", "tall",
     "%n = narrow %tall dim=0 length=8 start=0 : f32[8, 8]\n      %y = aten.neg %n kernel=9 : f32[8, 8]", 32},
    {"rows of a table by index", "a", "%y = embedding %a, %ids kernel=9 : f32[8, 8]"},
    {"the gradient of a table over what it adds up", "a",
     "%y = embedding_backward %a, %ids kernel=9 num_weights=8 : f32[8, 8]"},
    {"a norm's weight gradient over the weight", "v",
     "%dx, %y = rms_norm_backward %a, %sq, %v, %r, none dims=1 kernel=9 : f32[8, 8], f32[8]"},
    {"attention over its keys", "k", "%y, %lse = sdpa %q, %k, %q kernel=9 : f32[1, 1, 4, 2], f32[1, 1, 4]"},
};

// Each value that an op makes from the batch has memory that its last reader may take.
std::string torn_graph(const Torn& t) {
  const std::string ops = t.ops;
  return concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[8, 8]
      %xt = input name=xt : f32[9, 8]
      %xv = input name=xv : f32[8]
      %xr = input name=xr : f32[8, 1]
      %xq = input name=xq : f32[1, 1, 4, 2]
      %ids = input name=ids : i64[8]
    fwd:
      %a = aten.mul.Scalar %x kernel=0 other=0.5 : f32[8, 8]
      %sq = aten.mul.Scalar %x kernel=1 other=0.25 : f32[8, 8]
      %tall = aten.mul.Scalar %xt kernel=2 other=0.5 : f32[9, 8]
      %v = aten.mul.Scalar %xv kernel=3 other=0.5 : f32[8]
      %r = aten.mul.Scalar %xr kernel=4 other=0.5 : f32[8, 1]
      %q = aten.mul.Scalar %xq kernel=5 other=0.5 : f32[1, 1, 4, 2]
      %k = aten.mul.Scalar %xq kernel=6 other=0.25 : f32[1, 1, 4, 2]
      )",
                ops, "\n      return %y", ops.find("%dx,") == std::string::npos ? "" : ", %dx", "\n");
}

TEST_CASE("mutants: torn reads within one kernel, each seen by the verifier and by the machine") {
  CHECK(std::ssize(kTorn) >= 10);
  for (const Torn& t : kTorn) {
    CAPTURE(std::string(t.name));
    StepPlan plan = make_plan(ir::parse_or_throw(torn_graph(t)));
    expect_sound(plan);
    const ir::Value *value = plan.graph.find_value("y"), *host = plan.graph.find_value(t.over);
    std::erase_if(plan.memory.inside, [&](const Inside& i) { return i.value == value; });
    std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value == value; });
    plan.memory.inside.push_back({value, host, t.at});
    expect_caught(plan, By::Both);
  }
}

// ---- the text of a step: parameters gathered and their gradients reduced on lanes of their own, three micro-batches

StepPlan step_plan() {
  std::string text = testing::sharded_step_text(2, {{"a", 4, 4}, {"b", 4, 4}}, {.tokens = 4});
  text.insert(text.find("opt:"), "  %loss.all = all_reduce %b.loss axis=dp_shard : f32[]\n");
  text.replace(text.find("return %b.loss"), 14, "return %loss.all");
  ir::Graph graph = ir::parse_or_throw(text);
  graph.micro_batches = 3;
  std::vector<passes::PassCall> calls;
  for (const char* pass : {"keep_in_place", "split_collectives", "prefetch_gathers", "sink_waits", "fuse"})
    calls.push_back(passes::make_call(pass));
  passes::run_passes(graph, calls, {});
  return make_plan(std::move(graph));
}

Buffer& buffer_of(StepPlan& plan, const std::string& name) {
  MemoryPlan& m = plan.memory;
  for (auto* buffers : {&m.buffers, &m.state})
    for (Buffer& b : *buffers)
      if (b.value->name() == name) return b;
  FAIL("no buffer of %" << name);
  return m.buffers[0];
}

// What makes %name.
Task task_of(const StepPlan& plan, const std::string& name) {
  const ir::Op* op = plan.graph.find_value(name)->producer();
  for (size_t lane = 0; lane < plan.lanes.size(); ++lane)
    for (size_t i = 0; i < plan.lanes[lane].collectives.size(); ++i)
      if (plan.lanes[lane].collectives[i] == op) return {lane + 1, i};
  return {0, static_cast<size_t>(op->attr<int64_t>("kernel"))};
}

using Change = std::function<void(StepPlan&)>;

Change without_edge(const std::string& from, const std::string& to) {
  return [=](StepPlan& plan) {
    const Edge edge{task_of(plan, from), task_of(plan, to)};
    REQUIRE(std::erase(plan.edges, edge) == 1);
  };
}
Change without_edges_to(const std::string& to) {
  return [=](StepPlan& plan) {
    REQUIRE(std::erase_if(plan.edges, [&](const Edge& e) { return e.to == task_of(plan, to); }) > 0);
  };
}
// %name lies where %other does.
Change at_place_of(const std::string& name, const std::string& other) {
  return [=](StepPlan& plan) { buffer_of(plan, name).offset = buffer_of(plan, other).offset; };
}

struct Mutant {
  const char* name;
  By by;
  Change apply;
};

const std::vector<Mutant>& mutants() {
  static const std::vector<Mutant> all = {
      {"a kernel does not wait for the gather that it reads", By::Both, without_edge("a.f.start", "a.y")},
      {"a reduction does not wait for the kernel that makes what it sends", By::Both,
       without_edge("a.g", "a.rs.start")},
      {"a gather does not wait for the kernel whose memory it takes", By::Both, without_edges_to("a.b.start")},
      {"the norm does not wait for the sum over ranks", By::Both, without_edge("sq.all", "norm")},
      {"an edge leads the other way", By::Both,
       [](StepPlan& plan) {
         for (Edge& e : plan.edges)
           if (e == Edge{task_of(plan, "a.f.start"), task_of(plan, "a.y")}) std::swap(e.from, e.to);
         std::sort(plan.edges.begin(), plan.edges.end());
       }},
      {"the host does not wait for the kernels that read the batch", By::Both,
       [](StepPlan& plan) { plan.load.after.clear(); }},
      {"no kernel waits for the batch", By::Both, [](StepPlan& plan) { plan.load.before.clear(); }},
      {"a gathered parameter lies over another one", By::Both, at_place_of("b.f.start", "a.f.start")},
      {"a sum over micro-batches lies over an activation", By::Both, at_place_of("a.acc", "b.y")},
      {"two moments lie at one place", By::Both, at_place_of("a.exp_avg_sq", "a.exp_avg")},
      {"a parameter lies where a gather writes", By::Both, at_place_of("a", "a.f.start")},
      {"two inputs lie at one place", By::Both, at_place_of("a.x", "b.x")},
      {"an input lies over the host's numbers", By::Both, [](StepPlan& plan) { buffer_of(plan, "a.x").offset = 0; }},
      {"two numbers of one kernel lie at one place", By::Both, at_place_of("c", "nf")},
      {"a region is too small", By::Both,
       [](StepPlan& plan) { plan.memory.region_bytes[static_cast<size_t>(Region::Window)] -= 4096; }},
      {"an update takes the moments' memory the wrong way round", By::Both,
       [](StepPlan& plan) {
         plan.graph.find_value("a.new")->producer()->attrs["donates"] = std::vector<int64_t>{0, 2, 1};
       }},
      {"a view begins an element later", By::Both,
       [](StepPlan& plan) {
         plan.memory.views.push_back({plan.graph.find_value("a.t"), 4});
       }},
      {"collectives of a lane in another order", By::Both,
       [](StepPlan& plan) { std::swap(plan.lanes[0].collectives[0], plan.lanes[0].collectives[1]); }},
      {"a sum is not said to be carried", By::Verifier,
       [](StepPlan& plan) { buffer_of(plan, "a.acc").carried = false; }},
      {"a lifetime ends an op early", By::Verifier, [](StepPlan& plan) { --buffer_of(plan, "a.g").last; }},
  };
  return all;
}

TEST_CASE("mutants: what breaks a step's text is seen by the verifier, and by the machine where a run can show it") {
  expect_sound(step_plan());
  CHECK(std::size(mutants()) + std::size(kTorn) >= 25);
  for (const Mutant& m : mutants()) {
    CAPTURE(std::string(m.name));
    StepPlan plan = step_plan();
    m.apply(plan);
    expect_caught(plan, m.by);
  }
}

}  // namespace
}  // namespace sfsdp::plan::machine
