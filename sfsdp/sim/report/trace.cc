// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/trace.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::sim {
namespace {

// Microseconds to a picosecond: a step of minutes keeps events in order that a shorter form would let overlap.
std::string microseconds(double seconds) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.6f", seconds * 1e6);
  return text.data();
}

}  // namespace

void TraceText::row(const std::string& object) { rows_ += (rows_.empty() ? "\n" : ",\n") + object; }

std::string TraceText::text() const { return concat(R"({"displayTimeUnit":"ms","traceEvents":[)", rows_, "\n]}\n"); }

void TraceText::lane(size_t number, const std::string& name) {
  row(concat(R"({"ph":"M","pid":)", process_, R"(,"tid":)", number, R"(,"name":"thread_name","args":{"name":)",
             json_quoted(name), "}}"));
}

void TraceText::add(const TraceEvent& e) {
  const std::string where = concat(R"(,"pid":)", process_, R"(,"tid":)", e.lane, R"(,"ts":)");
  row(concat(R"({"ph":"X")", where, microseconds(e.begin), R"(,"dur":)", microseconds(e.end - e.begin), R"(,"name":)",
             json_quoted(e.name), R"(,"cat":")", e.section, R"(","args":{"module":)", json_quoted(e.module),
             R"(,"bytes":)", e.bytes, "}}"));
  if (e.flow < 0) return;
  const char* phase = e.kind == Event::Start ? "s" : e.kind == Event::Collective ? "t" : "f";
  // An arrow's end belongs to the slice around it, and the end of a slice is no part of it: a nanosecond before.
  const double at = e.kind == Event::Wait ? std::max(e.begin, e.end - 1e-9) : e.begin;
  row(concat(R"({"ph":")", phase, R"(","bp":"e")", where, microseconds(at), R"(,"id":)", e.flow,
             R"(,"name":"collective","cat":"collective"})"));
}

std::string chrome_trace(const Simulation& simulation, std::span<const MemorySample> memory, int64_t state_bytes) {
  TraceText trace;
  for (size_t lane = 0; lane < simulation.lanes.size(); ++lane) trace.lane(lane, simulation.lanes[lane]);
  for (const Event& e : simulation.events)
    trace.add({.kind = e.kind,
               .lane = e.lane,
               .name = event_name(simulation, e),
               .section = std::string(ir::to_string(e.op->section)),
               .module = e.op->module_path,
               .begin = e.begin,
               .end = e.end,
               .bytes = static_cast<int64_t>(e.bytes),
               .flow = e.flow});
  const MemorySample* last = nullptr;
  for (const MemorySample& m : memory) {
    if (last && last->bytes == m.bytes) continue;
    last = &m;
    std::string bytes = concat(R"("state":)", state_bytes);
    for (size_t k = 0; k < kMemoryKinds; ++k)
      bytes += concat(",\"", to_string(static_cast<MemoryKind>(k)), "\":", m.bytes[k]);
    trace.row(concat(R"({"ph":"C","pid":0,"name":"memory","ts":)", microseconds(m.at), R"(,"args":{)", bytes, "}}"));
  }
  return trace.text();
}

}  // namespace sfsdp::sim
