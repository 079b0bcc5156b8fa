// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/plans_torch.h"

#include "sfsdp/base/check.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"
#include "sfsdp/testing/plans_of_suite_torch.h"

namespace sfsdp::testing {

std::string run_on_machine(const Held<const Program::Variant>& variant, plan::machine::Comparison comparison) {
  comparison.other = run_in_libtorch;
  comparison.edit = [&](std::vector<plan::machine::Inputs>& by_rank) {
    for (const auto& op : variant->graph.ops()) {
      if (!op->is("constant")) continue;
      const auto index = op->attr<int64_t>("index");
      const auto array = to_array(variant->constants.at(static_cast<size_t>(index)), op->result()->type().dtype);
      for (auto& inputs : by_rank) inputs[concat("constant.", index)] = array;
    }
  };
  if (comparison.schedules >= plan::machine::Comparison{}.schedules) note_run(variant->plan);
  return find_difference(variant->plan, comparison);
}

}  // namespace sfsdp::testing
