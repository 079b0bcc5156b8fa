// SPDX-License-Identifier: BSD-3-Clause
// Programs of every row of the op set, and of ops without one: kernels and plans made of them are sound.
#include "sfsdp/testing/any_ops.h"

#include <doctest/doctest.h>

#include <set>

#include "sfsdp/base/strings.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/plan/verify/verify_plan.h"

namespace sfsdp::testing::any_ops_test {
namespace {

TEST_CASE("any ops: programs verify, and hold every row that computes, and ops without a row") {
  std::set<const ir::OpRow*> drawn;
  bool without_row = false;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const ir::Graph graph = any_ops_program(seed);
    CHECK_MESSAGE(ir::verify(graph).empty(), ir::to_string(ir::verify(graph)));
    for (const auto& op : graph.ops()) {
      drawn.insert(op->opcode.row());
      without_row |= op->opcode.row() == nullptr;
    }
  }
  CHECK(without_row);
  // On numbers of the whole step; of one rank among several; what gathers parameters; what stops the program; loops.
  const std::set<std::string_view> apart = {"sum_squares",
                                            "grad_norm",
                                            "clip_coefficient",
                                            "non_finite",
                                            "step_count",
                                            "store",
                                            "own_part",
                                            "join_parts",
                                            "add_parts",
                                            "own_rows",
                                            "spread_rows",
                                            "own_ends",
                                            "further_rounds",
                                            "as_summand",
                                            "reorder",
                                            "unpack",
                                            "loop",
                                            "when",
                                            "end",
                                            "aten._functional_assert_async.msg",
                                            "cross_entropy_parts",
                                            "cross_entropy_of_parts"};
  for (const ir::OpRow& row : ir::opset()) {
    if (row.cost == ir::CostClass::Free || row.cost == ir::CostClass::Communication) continue;
    CHECK_MESSAGE((drawn.contains(&row) || apart.contains(row.name)), row.name, " is never drawn");
  }
}

// Whether a result is a sum over what the op reads of two operands at least.
bool sums_products(const ir::Op& op) {
  const auto factors = ir::factors_of(op, *ir::map_of(op.opcode.row()));
  std::set<size_t> summed;
  for (size_t i = 0; i < factors.size(); ++i)
    for (const ir::FactorUse& use : factors[i])
      if (use.mark == '+') summed.insert(i % op.operands.size());
  return summed.size() >= 2;
}

TEST_CASE("any ops: the class in an op's row agrees with its access map") {
  std::set<const ir::OpRow*> products, sums;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const ir::Graph graph = any_ops_program(seed);
    for (const auto& op : graph.ops()) {
      const ir::OpRow* row = op->opcode.row();
      if (!row || !ir::map_of(row)) continue;
      const ir::OpAccess access(*op);
      if (row->cost == ir::CostClass::Pointwise) CHECK_MESSAGE(access.rows().width == 0, row->name, " reads rows");
      if (row->cost == ir::CostClass::Reduction)
        CHECK_MESSAGE((access.rows().width > 0 || !access.is_by_place()), row->name, " is element by element");
      if (row->cost == ir::CostClass::Product || row->cost == ir::CostClass::Attention) products.insert(row);
      if (sums_products(*op)) sums.insert(row);  // not where what is summed has no dimension
    }
  }
  CHECK(products.size() >= 15);
  for (const ir::OpRow* row : products) CHECK_MESSAGE(sums.contains(row), row->name, " sums no products");
}

TEST_CASE("any ops: kernels can exist, and plans are sound, in place too") {
  size_t in_place = 0, joined = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    ir::Graph graph = any_ops_program(seed);
    graph.micro_batches = 1 + static_cast<int64_t>(seed % 3);
    for (const char* pass : {"fuse scope=none", "fuse scope=module", "fuse"}) {
      passes::run_passes(graph, passes::parse_passes(pass));
      CHECK(plan::check_kernels(graph) == "");
    }
    std::set<int64_t> kernels;
    for (const auto& op : graph.ops())
      if (const auto* kernel = op->find_attr<int64_t>("kernel")) joined += kernels.insert(*kernel).second ? 0 : 1;
    const plan::StepPlan plan = plan::make_plan(std::move(graph));
    CHECK(join(plan::verify_plan(plan), "\n") == "");
    in_place += plan.memory.inside.size();
  }
  CHECK(joined > 300);
  CHECK(in_place > 300);
}

}  // namespace
}  // namespace sfsdp::testing::any_ops_test
