// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/torn_kernel.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/interp/array.h"

namespace sfsdp::plan::machine::torn_kernel_test {
namespace {

// What is found while %y is half written over %a, each second element, after all of %p has been written: no element of %y has
// a block of which nothing is written.
std::string fault_of(const std::string& ops) {
  StepPlan plan = make_plan(ir::parse_or_throw(concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 6]
    fwd:
      %a = aten.mul.Scalar %x other=0.5 kernel=0 : f32[6, 6]
)",
                                                      ops, "      return %p, %y\n")));
  const ir::Value *y = plan.graph.find_value("y"), *a = plan.graph.find_value("a");
  std::erase_if(plan.memory.inside, [&](const Inside& i) { return i.value == y || i.host == a; });
  std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value == y; });
  plan.memory.inside.push_back({y, a, 0});
  const Prepared prepared(plan, 1);
  const ir::interp::OtherKernels none;
  Rank rank(prepared, 0, {}, none, 1);
  rank.store(*a, ir::interp::seeded(a->type(), 5));
  const std::vector<TaskRun> program = write_out(plan, 1, true);
  const auto run = std::ranges::find_if(program, [&](const TaskRun& task) {
    return task.kind == TaskRun::Kernel && std::ranges::find(task.ops, y->producer()) != task.ops.end();
  });
  REQUIRE((run != program.end()));
  size_t drawn = 0;
  const Draw draw = [&](size_t n) -> size_t {
    const size_t number = drawn++;
    if (number < 1 + 36) return 0;                                      // %p by elements, all at once
    if (number < 2 + 2 * 36) return number == 1 + 36 ? 0 : number % 2;  // %y by elements
    return n - 1;                                                       // in this order
  };
  MeasuredOps measured;
  TornKernel kernel(*run, rank, draw, measured);
  std::string fault;
  while (!kernel.is_over() && fault.empty()) fault = kernel.step();
  return fault;
}

TEST_CASE("torn kernel: a block that has begun to write finds nothing that other blocks have written") {
  const std::string p = "      %p = aten.relu %a kernel=1 : f32[6, 6]\n";
  CHECK(fault_of(p + "      %y = aten.neg %a kernel=1 : f32[6, 6]\n") == "");
  CHECK(fault_of(p + "      %y = aten._log_softmax %a dim=1 half_to_float=false kernel=1 : f32[6, 6]\n") == "");
  CHECK(fault_of(p + "      %t = aten.t %a : f32[6, 6]{1, 6}\n      %y = aten.neg %t kernel=1 : f32[6, 6]\n")
            .find("aten.neg %y makes element") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::plan::machine::torn_kernel_test
