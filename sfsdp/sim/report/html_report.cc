// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/html_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "sfsdp/base/check.h"
#include "sfsdp/base/html_page.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/sim/report/report_page.h"

namespace sfsdp::sim {
namespace {

// One rectangle of the timeline: an event, or several that are too short to be told apart.
struct Block {
  size_t lane = 0;
  std::string what;  // forward, backward, optimizer, all_gather, …, wait: what it is coloured by
  std::string name, module;
  double begin = 0, end = 0, busy = 0, bytes = 0;
  int64_t count = 1;
};

std::string what_of(const Event& e) {
  if (e.kind == Event::Wait) return "wait";
  if (e.kind == Event::Collective) return std::string(ir::collective_kind(*e.op));
  switch (e.op->section) {
    case ir::Section::Bwd: return "backward";
    case ir::Section::Clip:
    case ir::Section::Opt: return "optimizer";
    default: return "forward";
  }
}

Block block_of(const Simulation& simulation, const Event& e) {
  return {.lane = e.lane,
          .what = what_of(e),
          .name = event_name(simulation, e),
          .module = e.op->module_path,
          .begin = e.begin,
          .end = e.end,
          .busy = e.end - e.begin,
          .bytes = e.bytes};
}

// The module that both are in: layers.3 of layers.3.attention and layers.3.norm.
std::string common_module(const std::string& a, const std::string& b) {
  if (a == b) return a;
  const auto x = split(a, '.'), y = split(b, '.');
  const auto last = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first;
  return join(std::vector<std::string>(x.begin(), last), ".");
}

// Blocks in the order of lane and time; starts and waits that took no time are not drawn.
std::vector<Block> blocks_of(const Simulation& simulation, double shortest) {
  std::vector<std::vector<Block>> lanes(simulation.lanes.size());
  for (const Event& e : simulation.events) {
    if (e.kind == Event::Start || (e.kind == Event::Wait && e.end <= e.begin)) continue;
    Block b = block_of(simulation, e);
    std::vector<Block>& lane = lanes[e.lane];
    Block* last = lane.empty() ? nullptr : &lane.back();
    const bool joins = last && last->what == b.what && last->end - last->begin < shortest &&
                       b.end - b.begin < shortest && b.begin - last->end < shortest;
    if (!joins) {
      lane.push_back(std::move(b));
      continue;
    }
    last->module = common_module(last->module, b.module);
    last->end = b.end;
    last->busy += b.busy;
    last->bytes += b.bytes;
    ++last->count;
  }
  std::vector<Block> blocks;
  for (auto& lane : lanes) blocks.insert(blocks.end(), lane.begin(), lane.end());
  return blocks;
}

std::vector<Block> thinned_blocks(const Simulation& simulation, size_t limit) {
  std::vector<Block> blocks = blocks_of(simulation, 0);
  for (double parts = 16384; blocks.size() > limit && parts >= 1; parts /= 2)
    blocks = blocks_of(simulation, simulation.step_seconds / parts);
  return blocks;
}

std::vector<MemorySample> thinned_samples(std::span<const MemorySample> samples, double end, size_t limit) {
  std::vector<MemorySample> thin;
  const double width = samples.size() > limit && end > 0 ? end / static_cast<double>(limit) : 0;
  double column = -1;
  for (const MemorySample& s : samples) {
    const double at = width > 0 ? std::floor(s.at / width) * width : s.at;
    if (thin.empty() || at > column) {
      thin.push_back(s);
      thin.back().at = column = at;
    } else if (s.total() > thin.back().total()) {
      thin.back().bytes = s.bytes;
    }
  }
  return thin;
}

std::string json_of(const HtmlReport& report, const Simulation& s, const std::vector<Block>& blocks,
                    const std::vector<MemorySample>& samples) {
  const auto ms = [](double seconds) { return page_number(seconds * 1e3); };
  PageStrings strings;
  const std::string drawn = page_list(blocks, [&](const Block& b) {
    std::string row = "[" + std::to_string(b.lane);
    for (const std::string* text : {&b.what, &b.name, &b.module}) row += "," + std::to_string(strings.add(*text));
    // Begins to a nanosecond of a step of hours, so that neighbours do not overlap.
    std::array<char, 64> begin{};
    std::snprintf(begin.data(), begin.size(), "%.6f", b.begin * 1e3);
    for (const std::string& value : {std::string(begin.data()), ms(b.end - b.begin), ms(b.busy), page_number(b.bytes)})
      row += "," + value;
    return row + "," + std::to_string(b.count) + "]";
  });
  const std::string memory = page_list(samples, [&](const MemorySample& m) {
    std::string row = "[" + ms(m.at);
    for (const int64_t bytes : m.bytes) row += "," + std::to_string(bytes);
    return row + "]";
  });
  const std::string buckets = page_list(report.buckets, [&](const BucketRow& b) {
    return concat("[", json_quoted(b.name), ",", json_quoted(b.unit), ",", json_quoted(b.communicator), ",",
                  json_quoted(b.kind), ",", json_quoted(b.section), ",", b.runs, ",", page_number(b.bytes), ",",
                  ms(b.seconds), ",", ms(b.exposed), ",", b.distance, ",", json_quoted(b.reason), "]");
  });
  const std::string kinds = page_list(s.communication_seconds, [&](const auto& entry) {
    const auto& [kind, seconds] = entry;
    const auto at = [&kind = kind](const std::map<std::string, double>& by_kind) {
      const auto found = by_kind.find(kind);
      return found == by_kind.end() ? 0 : found->second;
    };
    return concat("[", json_quoted(kind), ",", page_number(at(s.communicated_bytes)), ",", ms(seconds), ",",
                  ms(at(s.exposed_seconds)), ",", ms(at(s.contention_seconds)), "]");
  });
  std::vector<std::string> memory_kinds;
  for (size_t k = 0; k < kMemoryKinds; ++k) memory_kinds.emplace_back(to_string(static_cast<MemoryKind>(k)));
  return concat(
      "{\"title\":", json_quoted(report.title), ",\"setup\":", json_quoted(report.setup),
      ",\"fits\":", report.fits ? "true" : "false", ",\"memoryName\":", json_quoted(report.memory_name),
      ",\"limit\":", report.limit_bytes, ",\"state\":", report.state_bytes, ",\"step\":", ms(s.step_seconds),
      ",\"events\":", s.events.size(), ",\n\"figures\":",
      page_list(report.figures,
                [](const auto& f) { return concat("[", json_quoted(f.first), ",", json_quoted(f.second), "]"); }),
      ",\n\"lanes\":", page_list(s.lanes, json_quoted), ",\n\"memoryKinds\":", page_list(memory_kinds, json_quoted),
      ",\n\"strings\":", strings.json(), ",\n\"blocks\":", drawn, ",\n\"memory\":", memory, ",\n\"buckets\":", buckets,
      ",\n\"kinds\":", kinds, "}");
}

}  // namespace

std::string html_report(const HtmlReport& report, const Simulation& simulation, std::span<const MemorySample> memory,
                        const HtmlLimits& limits) {
  return html_page(report_page(), json_of(report, simulation, thinned_blocks(simulation, limits.events),
                                          thinned_samples(memory, simulation.step_seconds, limits.samples)));
}

}  // namespace sfsdp::sim
