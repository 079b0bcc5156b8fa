// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/schedule.h"

namespace sfsdp::passes {
namespace {

void read(const ir::Op& param, const std::string& name, int64_t& depth) {
  if (param.has_attr(name)) depth = param.attr<int64_t>(name);
}
void read(const ir::Op& param, const std::string& name, Side& side) {
  if (param.has_attr(name)) side = param.attr<bool>(name) ? Side::Before : Side::After;
}

}  // namespace

const Words<Side>& side_words() {
  static const Words<Side> kWords = {{"before", Side::Before}, {"after", Side::After}};
  return kWords;
}

void write_schedule(ir::Op& param, const UnitSchedule& schedule) {
  param.attrs["forward_depth"] = schedule.forward_depth;
  param.attrs["forward_before"] = schedule.forward == Side::Before;
  param.attrs["backward_depth"] = schedule.backward_depth;
  param.attrs["backward_before"] = schedule.backward == Side::Before;
  param.attrs["sink_depth"] = schedule.sink_depth;
  param.attrs["sink_before"] = schedule.sink == Side::Before;
}

UnitSchedule read_schedule(const ir::Op* param, UnitSchedule fallback) {
  if (!param) return fallback;
  read(*param, "forward_depth", fallback.forward_depth);
  read(*param, "forward_before", fallback.forward);
  read(*param, "backward_depth", fallback.backward_depth);
  read(*param, "backward_before", fallback.backward);
  read(*param, "sink_depth", fallback.sink_depth);
  read(*param, "sink_before", fallback.sink);
  return fallback;
}

}  // namespace sfsdp::passes
