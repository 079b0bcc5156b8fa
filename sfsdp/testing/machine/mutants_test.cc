// SPDX-License-Identifier: BSD-3-Clause
// Plans that are broken in one place, by name, and who sees it: the verifier, in which words, and the plan machine, which asks no
// access map. Maps that are wrong themselves: measured_reads_test.cc, and capture/access_test.cc, which proves maps by execution.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/machine/reference.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::plan::machine::mutants_test {
namespace {

enum class By : uint8_t { Verifier, Both };

// What a plan's text is caught by. The memory model is asked by itself too: the verifier does not ask it where tasks of the host
// are others than the planner's.
struct Caught {
  std::string verifier, machine;
};
Caught caught(const StepPlan& plan) {
  return {join(verify_plan(plan), "\n") + join(check_hazards(plan), "\n"), find_difference(plan)};
}

void expect_sound(const StepPlan& plan) {
  const Caught by = caught(plan);
  CHECK(by.verifier == "");
  CHECK(by.machine == "");
}

//   says: a part of what the verifier says
void expect_caught(const StepPlan& plan, By by, const std::string& says) {
  const Caught found = caught(plan);
  CHECK_MESSAGE(found.verifier.find(says) != std::string::npos, found.verifier);
  CHECK_MESSAGE(found.machine.empty() == (by == By::Verifier), found.machine);
}

// ---- a kernel that reads what it has written: %y lies over a value that its op reads at other places than it writes

struct Torn {
  const char* name;
  const char* over;  // what %y lies over
  const char* ops;   // make %y from what an op has made before
  const char* says;  // a part of what the memory model says
  int64_t at = 0;    // bytes
};

const Torn kTorn[] = {
    {"a product over its left operand", "a", "%y = linear %a, %sq kernel=9 : f32[8, 8]",
     "linear %y of the same kernel reads other elements than those at its place"},
    {"a product over its weight", "sq", "%y = linear %a, %sq kernel=9 : f32[8, 8]",
     "linear %y of the same kernel reads other elements than those at its place"},
    {"a transposed read", "a", "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.neg %t kernel=9 : f32[8, 8]",
     "aten.neg %y of the same kernel sees the elements in another order"},
    {"an operand read at its place and transposed", "a",
     "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.add.Tensor %a, %t kernel=9 : f32[8, 8]",
     "aten.add.Tensor %y of the same kernel sees the elements in another order"},
    {"halves of rows in the other order", "a",
     "%hi = narrow %a dim=0 length=4 start=4 : f32[4, 8]\n      %lo = narrow %a dim=0 length=4 start=0 : f32[4, 8]\n"
     "      %y = aten.cat [%hi, %lo] dim=0 kernel=9 : f32[8, 8]",
     "aten.cat %y of the same kernel makes elements in no order that is known"},
    {"the first row added to all", "a",
     "%f = narrow %a dim=0 length=1 start=0 : f32[1, 8]\n      %y = aten.add.Tensor %a, %f kernel=9 : f32[8, 8]",
     "aten.add.Tensor %y of the same kernel sees the elements in another order"},
    {"a row further in the memory that is read", "tall",
     "%n = narrow %tall dim=0 length=8 start=0 : f32[8, 8]\n      %y = aten.neg %n kernel=9 : f32[8, 8]",
     "%y is written over a part of %tall, which its kernel reads", 32},
    {"rows of a table by index", "a", "%y = embedding %a, %ids kernel=9 : f32[8, 8]",
     "embedding %y of the same kernel makes elements in no order that is known"},
    {"the gradient of a table over what it adds up", "a",
     "%y = embedding_backward %a, %ids kernel=9 num_weights=8 : f32[8, 8]",
     "embedding_backward %y of the same kernel makes elements in no order that is known"},
    {"a norm's weight gradient over the weight", "v",
     "%dx, %y = rms_norm_backward %a, %sq, %v, %r, none dims=1 kernel=9 : f32[8, 8], f32[8]",
     "rms_norm_backward %dx of the same kernel makes it of all rows, while others are read"},
    {"the larger of an element and the transposed one, which comes out as before", "a",
     "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.maximum %a, %t kernel=9 : f32[8, 8]",
     "aten.maximum %y of the same kernel sees the elements in another order"},
    {"columns that are read whole", "a", "%y = aten._log_softmax %a dim=0 half_to_float=false kernel=9 : f32[8, 8]",
     "aten._log_softmax %y of the same kernel makes elements in no order that is known"},
    {"rows of the transposed matrix", "a",
     "%t = aten.t %a : f32[8, 8]{1, 8}\n"
     "      %y = aten._log_softmax %t dim=1 half_to_float=false kernel=9 : f32[8, 8]",
     "aten._log_softmax %y of the same kernel sees the elements in another order"},
    {"a number of each row, read as one of each column", "r",
     "%f = view %r : f32[8]\n      %dx, %y = rms_norm %a, %f dims=1 eps=0.5 kernel=9 : f32[8, 8], f32[8, 1]",
     "rms_norm %dx of the same kernel reads elements several times"},
    {"attention over its keys", "k", "%y, %lse = sdpa %q, %k, %q kernel=9 : f32[1, 1, 4, 2], f32[1, 1, 4]",
     "sdpa %y of the same kernel makes elements in no order that is known"},
};

// The same with kernels that may: nothing is to be said.
const Torn kWhole[] = {
    {"an element at its place", "a", "%y = aten.relu %a kernel=9 : f32[8, 8]", ""},
    {"two operands at their places", "sq", "%y = aten.add.Tensor %a, %sq kernel=9 : f32[8, 8]", ""},
    {"beside a number of each row", "a", "%y = aten.mul.Tensor %a, %r kernel=9 : f32[8, 8]", ""},
    {"rows that are read whole", "a", "%y = aten._log_softmax %a dim=1 half_to_float=false kernel=9 : f32[8, 8]", ""},
    {"a norm's input gradient over what comes in", "a",
     "%y, %dx = rms_norm_backward %a, %sq, %v, %r, none dims=1 kernel=9 : f32[8, 8], f32[8]", ""},
    {"a view in the same order", "a", "%f = view %a : f32[64]\n      %y = aten.neg %f kernel=9 : f32[64]", ""},
    {"the larger of two elements", "a", "%y = aten.maximum %a, %sq kernel=9 : f32[8, 8]", ""},
    {"rows that are made numbers of", "a", "%y, %dx = rms_norm %a, %v dims=1 eps=0.5 kernel=9 : f32[8, 8], f32[8, 1]",
     ""},
    {"pairs that are turned", "a", "%f = view %a : f32[1, 8, 8]\n      %y = rope %f, %h, %h kernel=9 : f32[1, 8, 8]",
     ""},
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
      %h = input name=h : f32[8, 4]
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
                ops, "\n      return %y", ops.find("%dx") == std::string::npos ? "" : ", %dx", "\n");
}

std::string seen_by_machine(const StepPlan& plan) {
  return find_difference(plan, {.other = [](const ir::Op& op, std::span<const ir::interp::Array* const> in) {
                           REQUIRE(op.is("aten.maximum"));
                           std::vector<ir::interp::Array> larger = {*in[0]};
                           for (size_t e = 0; e < in[1]->data.size(); ++e)
                             larger[0].data[e] = std::max(in[0]->data[e], in[1]->data[e]);
                           return larger;
                         }});
}

StepPlan written_over(const Torn& t) {
  StepPlan plan = make_plan(ir::parse_or_throw(torn_graph(t)));
  CHECK(join(verify_plan(plan), "\n") == "");
  CHECK(seen_by_machine(plan) == "");
  const ir::Value *value = plan.graph.find_value("y"), *host = plan.graph.find_value(t.over);
  std::erase_if(plan.memory.inside, [&](const Inside& i) { return i.value == value; });
  std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value == value; });
  plan.memory.inside.push_back({value, host, t.at});
  return plan;
}

// The verifier refuses any line of `inside` that the planner has not written, legal or not: so the memory model is asked by itself.
TEST_CASE("mutants: torn reads within one kernel, each seen by the memory model and by the machine") {
  CHECK(std::ssize(kTorn) >= 10);
  for (const Torn& t : kTorn) {
    CAPTURE(std::string(t.name));
    const StepPlan plan = written_over(t);
    const std::string said = join(check_hazards(plan), "\n");
    CHECK_MESSAGE(said.find(t.says) != std::string::npos, said);
    CHECK(seen_by_machine(plan) != "");
  }
}

TEST_CASE("mutants: what may be written over what its kernel reads, neither the memory model nor the machine refuses") {
  for (const Torn& t : kWhole) {
    CAPTURE(std::string(t.name));
    const StepPlan plan = written_over(t);
    CHECK(join(check_hazards(plan), "\n") == "");
    CHECK(seen_by_machine(plan) == "");
  }
}

// What an op gives away it writes over itself, so it is held to the same rule.
TEST_CASE("mutants: torn reads of what an op gives away") {
  const Torn given_away[] = {
      {"a product's left operand", "", "%y = linear %a, %sq donates=[0] kernel=9 : f32[8, 8]", "reads other elements"},
      {"both operands of a product", "", "%y = matmul %a, %a donates=[0] kernel=9 : f32[8, 8]", "reads other elements"},
      {"columns that are read whole", "",
       "%y = aten._log_softmax %a dim=0 donates=[0] half_to_float=false kernel=9 : f32[8, 8]", "in no order"},
      {"a table", "", "%y = embedding %a, %ids donates=[0] kernel=9 : f32[8, 8]", "in no order"},
      {"a transposed read", "",
       "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = aten.neg %t donates=[0] kernel=9 : f32[8, 8]", "in another order"},
      {"read at its place and transposed", "",
       "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = add_into %a, %t donates=[0] kernel=9 : f32[8, 8]",
       "in another order"},
      {"its own first element", "",
       "%f = view %a offset=0 : f32[]\n      %y = scale %a, %f donates=[0] kernel=9 : f32[8, 8]", "in another order"},
      {"stored from itself, transposed", "",
       "%t = aten.t %a : f32[8, 8]{1, 8}\n      %y = store %a, %t donates=[0] kernel=9 : f32[8, 8]",
       "in another order"},
  };
  for (const Torn& t : given_away) {
    CAPTURE(std::string(t.name));
    const StepPlan plan = make_plan(ir::parse_or_throw(torn_graph(t)));
    const std::string said = join(verify_plan(plan), "\n");
    CHECK_MESSAGE(said.find(t.says) != std::string::npos, said);
    CHECK(seen_by_machine(plan) != "");
  }
  for (const char* ops :
       {"%y = add_into %a, %sq donates=[0] kernel=9 : f32[8, 8]", "%y = aten.neg %a donates=[0] kernel=9 : f32[8, 8]",
        "%y = store %a, %sq donates=[0] kernel=9 : f32[8, 8]"}) {
    const StepPlan plan = make_plan(ir::parse_or_throw(torn_graph({"", "", ops, ""})));
    CHECK(join(verify_plan(plan), "\n") == "");
    CHECK(seen_by_machine(plan) == "");
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
  const char* says;  // a part of what the verifier says
  Change apply;
};

// What is wrong with lanes, edges, the host or an order.
std::vector<Mutant> mutants_of_order() {
  return {
      {"a kernel does not wait for the gather that it reads", By::Both,
       "aten.mm %a.y on lane compute may read %a.f.start before lane dp_shard/0 has written it",
       without_edge("a.f.start", "a.y")},
      {"a reduction does not wait for the kernel that makes what it sends", By::Both,
       "reduce_scatter.start %a.rs.start on lane dp_shard/0 may read %a.g before lane compute",
       without_edge("a.g", "a.rs.start")},
      {"a gather does not wait for the kernel whose memory it takes", By::Both,
       "%a.b.start may be written over %b.sq while lane compute writes that", without_edges_to("a.b.start")},
      {"the norm does not wait for the sum over ranks", By::Both,
       "grad_norm %norm on lane compute may read %sq.all before lane dp_shard/0", without_edge("sq.all", "norm")},
      {"an edge leads the other way", By::Both,
       "aten.mm %a.y on lane compute may read %a.f.start before lane dp_shard/0",
       [](StepPlan& plan) {
         for (Edge& e : plan.edges)
           if (e == Edge{task_of(plan, "a.f.start"), task_of(plan, "a.y")}) std::swap(e.from, e.to);
         std::sort(plan.edges.begin(), plan.edges.end());
       }},
      {"the host does not wait for the kernels that read the batch", By::Both,
       "%a.x may be written over %a.x while lane compute reads that", [](StepPlan& plan) { plan.load.after.clear(); }},
      {"no kernel waits for the batch", By::Both,
       "aten.mm %a.y on lane compute may read %a.x before lane host has written it",
       [](StepPlan& plan) { plan.load.before.clear(); }},
  };
}

// What is wrong with places or sizes.
std::vector<Mutant> mutants_of_places() {
  return {
      {"a gathered parameter lies over another one", By::Both, "aten.mm %a.y reads %a.f.start at window",
       at_place_of("b.f.start", "a.f.start")},
      {"a sum over micro-batches lies over an activation", By::Both, "accumulate %a.acc reads %a.acc at window",
       at_place_of("a.acc", "b.y")},
      {"two moments lie at one place", By::Both, "adamw %a.new reads %a.exp_avg at state",
       at_place_of("a.exp_avg_sq", "a.exp_avg")},
      {"a parameter lies where a gather writes", By::Both, "all_gather.start %a.b.start reads %a at window",
       at_place_of("a", "a.f.start")},
      {"two inputs lie at one place", By::Both, "aten.mm %a.y reads %a.x at io", at_place_of("a.x", "b.x")},
      {"an input lies over the host's numbers", By::Both, "%a.x lies at io 0",
       [](StepPlan& plan) { buffer_of(plan, "a.x").offset = 0; }},
      {"two numbers of one kernel lie at one place", By::Both, "step_count %step.new reads %nf at window",
       at_place_of("c", "nf")},
      {"a region is too small", By::Both, "region window = ",
       [](StepPlan& plan) { plan.memory.region_bytes[static_cast<size_t>(Region::Window)] -= 4096; }},
      {"an update takes the moments' memory the wrong way round", By::Both, "adamw %a.new reads %a.exp_avg at state",
       [](StepPlan& plan) {
         plan.graph.find_value("a.new")->producer()->attrs["donates"] = std::vector<int64_t>{0, 2, 1};
       }},
      {"a view begins an element later", By::Both, "line 1 of the views says %a.t at +4",
       [](StepPlan& plan) {
         plan.memory.views.push_back({plan.graph.find_value("a.t"), 4});
       }},
      {"collectives of a lane in another order", By::Both,
       "lane dp_shard has %b.f.start in place 1, the program %a.f.start",
       [](StepPlan& plan) { std::swap(plan.lanes[0].collectives[0], plan.lanes[0].collectives[1]); }},
      {"a sum is not said to be carried", By::Verifier, "accumulate %a.acc adds to a sum that is not carried",
       [](StepPlan& plan) { buffer_of(plan, "a.acc").carried = false; }},
      {"a lifetime ends an op early", By::Verifier, "%a.g is kept from op ",
       [](StepPlan& plan) { --buffer_of(plan, "a.g").last; }},
  };
}

std::vector<Mutant> mutants() {
  std::vector<Mutant> all = mutants_of_order();
  for (const Mutant& m : mutants_of_places()) all.push_back(m);
  return all;
}

TEST_CASE("mutants: what breaks a step's text is seen by the verifier, and by the machine where a run can show it") {
  expect_sound(step_plan());
  const std::vector<Mutant> all = mutants();
  CHECK(std::size(all) + std::size(kTorn) >= 25);
  for (const Mutant& m : all) {
    CAPTURE(std::string(m.name));
    StepPlan plan = step_plan();
    m.apply(plan);
    expect_caught(plan, m.by, m.says);
  }
}

// ---- numbers of the host: a step that draws in each micro-batch, and again in its update

constexpr const char* kDraws = R"(
    graph mesh [dp_shard=1] view local
      %w = param name=w : f32[8, 8]
      %x = input name=x : f32[8, 8]
    fwd:
      %h = aten.mul.Tensor %x, %w kernel=0 : f32[8, 8] at drop
      %d, %s = dropout %h keep=0.5 kernel=1 stream=1 : f32[8, 8], i64[2] at drop
      %l = aten.sum %d kernel=2 : f32[] at drop
    bwd:
      %g = dropout_backward %x, %s keep=0.5 kernel=3 : f32[8, 8] at drop
      %acc = accumulate %g kernel=4 : f32[8, 8]
    opt:
      %sum = aten.sum %acc kernel=5 : f32[]
      %nf = non_finite %sum kernel=6 : f32[]
      %m = aten.bernoulli.p %acc kernel=7 p=0.5 stream=2 : f32[8, 8] at drop
      %gm = aten.mul.Tensor %acc, %m kernel=8 : f32[8, 8]
      %w.new = sgd %w, none, %gm, %nf donates=[0] kernel=9 momentum=0.0 weight_decay=0.125 : f32[8, 8]
      return %l
      carry %w = %w.new
)";

StepPlan drawing_plan() {
  ir::Graph graph = ir::parse_or_throw(kDraws);
  graph.micro_batches = 3;
  return make_plan(std::move(graph));
}

std::vector<Mutant> mutants_of_host() {
  const char* const kOthers = "the tasks that the host waits for, or that wait for the batch, are others";
  return {
      {"the seed lies where the batch does", By::Both, "%x lies at io 16",
       [](StepPlan& plan) { buffer_of(plan, "x").offset = 16; }},
      {"the number of the micro-batch lies where the batch does", By::Both, "%x lies at io 24",
       [](StepPlan& plan) { buffer_of(plan, "x").offset = 24; }},
      {"the next micro-batch's number is written while this one draws", By::Both, kOthers,
       [](StepPlan& plan) {
         plan.load.after = {{0, 0}};
       }},
      {"a step's number is written while the one before it draws in its update", By::Both, kOthers,
       [](StepPlan& plan) {
         REQUIRE(std::erase_if(plan.load.after, [](const Task& task) { return task.number >= 5; }) > 0);
       }},
  };
}

TEST_CASE("mutants: numbers of the host that a kernel reads at the wrong time or place") {
  expect_sound(drawing_plan());
  for (const Mutant& m : mutants_of_host()) {
    CAPTURE(std::string(m.name));
    StepPlan plan = drawing_plan();
    m.apply(plan);
    expect_caught(plan, m.by, m.says);
  }
}

}  // namespace
}  // namespace sfsdp::plan::machine::mutants_test
