// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/step_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Value;

constexpr std::string_view kHeader = "plan alignment=N state_bytes=N arena_bytes=N live_bytes=N peak_position=N";
constexpr std::string_view kLanes = "lanes:", kBuffers = "buffers:";

// Of a number of a plan, bytes or a position, and of the bytes of all buffers together, though they do not live together:
// far beyond any machine, and small enough for every sum to be a number.
constexpr int64_t kMost = int64_t{1} << 50, kMostTogether = int64_t{1} << 60;
constexpr int64_t kMostAlignment = 1 << 30;  // the largest page of any machine

std::optional<int64_t> number_in(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= -kMost && *number <= kMost ? number : std::nullopt;
}

std::string axes_text(const std::vector<std::string>& axes) { return axes.empty() ? "none" : join(axes, ","); }

// Reads the two sections that follow the graph, line by line.
class SectionReader {
 public:
  SectionReader(std::string_view text, std::string file, size_t line, const Graph& graph)
      : lines_(split(text, '\n')), file_(std::move(file)), first_line_(line), graph_(graph) {}

  void read(StepPlan& plan) {
    expect(kLanes);
    while (at_ < lines_.size() && lines_[at_] != kBuffers) plan.lanes.push_back(read_lane());
    expect(kBuffers);
    for (; at_ < lines_.size() && !lines_[at_].empty(); ++at_) plan.memory.buffers.push_back(read_buffer());
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw UserError(concat("plan ", file_.empty() ? "text" : file_, ", line ", first_line_ + at_, ": ",
                           at_ < lines_.size() ? lines_[at_] : "(end)", "\n  expected ", expected));
  }
  void expect(std::string_view title) {
    if (at_ >= lines_.size() || lines_[at_] != title) fail(std::string(title));
    ++at_;
  }
  const Value* value_of(const std::string& word) const {
    const Value* value = word.starts_with('%') ? graph_.find_value(word.substr(1)) : nullptr;
    if (!value) fail("the name of a value of the graph, as %x");
    return value;
  }
  // "  dp_shard: %a %b"
  CommLane read_lane() {
    const std::string& line = lines_[at_];
    const size_t colon = line.find(':');
    if (!line.starts_with("  ") || colon == std::string::npos) fail("  axes: %collective ...");
    CommLane lane;
    if (const std::string axes = line.substr(2, colon - 2); axes != "none") lane.axes = split(axes, ',');
    for (const std::string& word : split(line.substr(colon + 1), ' '))
      if (!word.empty()) lane.collectives.push_back(value_of(word)->producer());
    ++at_;
    return lane;
  }
  int64_t number_of(const std::string& word, std::string_view key) const {
    const auto number = word.starts_with(key) ? number_in(std::string_view(word).substr(key.size())) : std::nullopt;
    if (!number) fail(concat(key, "a number up to ", kMost));
    return *number;
  }
  // "  %a offset=0 bytes=256 first=3 last=9"
  Buffer read_buffer() {
    std::vector<std::string> words;
    for (std::string& word : split(lines_[at_], ' '))
      if (!word.empty()) words.push_back(std::move(word));
    if (words.size() != 5) fail("  %value offset=N bytes=N first=N last=N");
    const int64_t bytes = number_of(words[2], "bytes=");
    if (bytes < 0 || (together_ += bytes) > kMostTogether) fail("bytes=N, at least 0, that a machine could hold");
    return {.value = value_of(words[0]),
            .bytes = bytes,
            .first = number_of(words[3], "first="),
            .last = number_of(words[4], "last="),
            .offset = number_of(words[1], "offset=")};
  }

  std::vector<std::string> lines_;
  std::string file_;
  size_t first_line_;
  const Graph& graph_;
  size_t at_ = 0;
  int64_t together_ = 0;  // bytes of the buffers that are read
};

int64_t header_number(const std::vector<std::string>& words, std::string_view key) {
  for (const std::string& word : words)
    if (word.starts_with(key))
      if (const auto number = number_in(std::string_view(word).substr(key.size()))) return *number;
  throw UserError(concat("plan, line 1: no ", key, "\n  expected ", kHeader));
}

}  // namespace

StepPlan make_plan(const Graph& graph, const MemoryOptions& options) {
  StepPlan plan;
  plan.graph = graph.clone();
  plan.alignment = options.alignment;
  for (const auto& op : plan.graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    const auto axes = ir::axes_of(*op).value_or(std::vector<std::string>{});
    auto lane = std::ranges::find(plan.lanes, axes, &CommLane::axes);
    if (lane == plan.lanes.end()) lane = plan.lanes.insert(lane, {axes, {}});
    lane->collectives.push_back(op.get());
  }
  plan.memory = plan_memory(plan.graph, options);
  return plan;
}

std::string print(const StepPlan& plan) {
  const MemoryPlan& m = plan.memory;
  std::string text = concat("plan alignment=", plan.alignment, " state_bytes=", m.state_bytes,
                            " arena_bytes=", m.arena_bytes, " live_bytes=", m.live_bytes,
                            " peak_position=", m.peak_position, "\n", ir::print(plan.graph), kLanes, "\n");
  for (const CommLane& lane : plan.lanes) {
    text += concat("  ", axes_text(lane.axes), ":");
    for (const Op* op : lane.collectives) text += concat(" %", op->result()->name());
    text += "\n";
  }
  text += concat(kBuffers, "\n");
  for (const Buffer& b : m.buffers)
    text += concat("  %", b.value->name(), " offset=", b.offset, " bytes=", b.bytes, " first=", b.first,
                   " last=", b.last, "\n");
  return text;
}

StepPlan parse_plan(std::string_view text, const std::string& file_name) {
  const size_t header_end = text.find('\n');
  const auto words = split(text.substr(0, header_end), ' ');
  if (words.empty() || words[0] != "plan" || header_end == std::string_view::npos)
    throw UserError(concat("plan ", file_name, ", line 1: ", text.substr(0, std::min<size_t>(header_end, 80)),
                           "\n  expected ", kHeader));
  const size_t lanes = text.find(concat("\n", kLanes, "\n"));
  if (lanes == std::string_view::npos)
    throw UserError(concat("plan ", file_name, ": the graph is not followed by ", kLanes,
                           "\n  expected a text that sfsdp plan wrote, whole"));
  StepPlan plan;
  const std::string_view graph_text = text.substr(header_end + 1, lanes - header_end);
  plan.graph = ir::parse_or_throw(graph_text, file_name);
  plan.alignment = header_number(words, "alignment=");
  if (plan.alignment < 1 || plan.alignment > kMostAlignment)
    throw UserError(
        concat("plan ", file_name, ", line 1: alignment=", plan.alignment, "\n  expected 1 to ", kMostAlignment));
  plan.memory.state_bytes = header_number(words, "state_bytes=");
  plan.memory.arena_bytes = header_number(words, "arena_bytes=");
  plan.memory.live_bytes = header_number(words, "live_bytes=");
  plan.memory.peak_position = header_number(words, "peak_position=");
  const auto line = static_cast<size_t>(std::ranges::count(text.substr(0, lanes + 1), '\n')) + 1;
  SectionReader(text.substr(lanes + 1), file_name, line, plan.graph).read(plan);
  return plan;
}

uint64_t hash(const StepPlan& plan) { return hash_path(print(plan)); }

}  // namespace sfsdp::plan
