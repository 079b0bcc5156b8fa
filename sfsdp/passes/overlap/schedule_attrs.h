// SPDX-License-Identifier: BSD-3-Clause
// How a unit's schedule is written on its params: read by prefetch_gathers and sink_waits before their own options.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/step_profile.h"

namespace sfsdp::passes {

inline void write_schedule(ir::Op& param, const UnitChoice& unit) {
  param.attrs["forward_depth"] = unit.forward_depth;
  param.attrs["forward_before"] = unit.forward_before;
  param.attrs["backward_depth"] = unit.backward_depth;
  param.attrs["backward_before"] = unit.backward_before;
  param.attrs["sink_depth"] = unit.sink_depth;
  param.attrs["sink_before"] = unit.sink_before;
}

// What a unit's params say of it beside their unit, for the flat param that replaces them.
inline std::map<std::string, ir::Attr> unit_attrs(const ir::Op& param) {
  std::map<std::string, ir::Attr> attrs;
  for (const char* name : {"reason", "keep", "forward_depth", "forward_before", "backward_depth", "backward_before",
                           "sink_depth", "sink_before"})
    if (const auto found = param.attrs.find(name); found != param.attrs.end()) attrs[name] = found->second;
  return attrs;
}

// `fallback` where the param says nothing.
template <class T>
T schedule_attr(const ir::Op* param, const std::string& name, T fallback) {
  return param && param->has_attr(name) ? param->attr<T>(name) : fallback;
}

// What write_schedule wrote, and `reason` and `keep`; a unit keeps what its param does not say.
inline void read_schedule(const ir::Op& param, UnitChoice& unit) {
  if (param.has_attr("reason")) unit.reason = param.attr<std::string>("reason");
  unit.keep = schedule_attr(&param, "keep", unit.keep);
  unit.forward_depth = schedule_attr(&param, "forward_depth", unit.forward_depth);
  unit.forward_before = schedule_attr(&param, "forward_before", unit.forward_before);
  unit.backward_depth = schedule_attr(&param, "backward_depth", unit.backward_depth);
  unit.backward_before = schedule_attr(&param, "backward_before", unit.backward_before);
  unit.sink_depth = schedule_attr(&param, "sink_depth", unit.sink_depth);
  unit.sink_before = schedule_attr(&param, "sink_before", unit.sink_before);
}

}  // namespace sfsdp::passes
