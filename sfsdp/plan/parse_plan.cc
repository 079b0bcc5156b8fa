// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/plan_text.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Value;

constexpr std::string_view kHeader =
    "plan target=NAME product_bytes=N communicator_bytes=N blocks=N accumulates_in_memory=0|1 is_cpu=0|1 alignment=N "
    "window_alignment=N live_bytes=N peak_position=N layout=HASH/ENTRIES|none";

// The most that a number of a plan may be, bytes or a position, and the bytes of all buffers together, though they do not live
// together: far beyond any machine, and small enough for every sum to be a number.
constexpr int64_t kMost = int64_t{1} << 50, kMostTogether = int64_t{1} << 60;

std::optional<int64_t> number_in(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= -kMost && *number <= kMost ? number : std::nullopt;
}

// Reads the sections that follow the graph, line by line.
class SectionReader {
 public:
  SectionReader(std::string_view text, std::string file, size_t line, const Graph& graph)
      : lines_(split(text, '\n')), file_(std::move(file)), first_line_(line), graph_(graph) {}

  void read(StepPlan& plan) {
    expect(kLanes);
    read_lanes(plan);
    expect(kEdges);
    while (in_section()) plan.edges.push_back(read_edge());
    expect(kRegionsTitle);
    for (size_t r = 0; r < kRegions; ++r) plan.memory.region_bytes[r] = read_region(static_cast<Region>(r));
    expect(kHost);
    for (const HostValue& value : kHostValues) read_host_value(value);
    plan.load.after = read_load(kLoadAfter);
    plan.load.before = read_load(kLoadBefore);
    expect(kConstants);
    while (in_section()) read_constant(plan);
    expect(kState);
    while (in_section()) plan.memory.state.push_back(read_buffer());
    expect(kUnread);
    while (in_section()) plan.memory.unread.push_back(read_unread());
    expect(kBuffers);
    while (in_section()) plan.memory.buffers.push_back(read_buffer());
    expect(kInside);
    while (in_section()) plan.memory.inside.push_back(read_inside());
    expect(kViews);
    while (in_section()) plan.memory.views.push_back(read_view());
    if (at_ < lines_.size() && !lines_[at_].empty()) fail("the end of the plan");
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw UserError(concat("plan ", file_.empty() ? "text" : file_, ", line ", first_line_ + at_, ": ",
                           at_ < lines_.size() ? lines_[at_] : "(end)", "\n  expected ", expected));
  }
  bool in_section() const { return at_ < lines_.size() && lines_[at_].starts_with("  "); }
  void expect(std::string_view title) {
    if (at_ >= lines_.size() || lines_[at_] != title) fail(std::string(title));
    ++at_;
  }
  std::vector<std::string> words() const {
    std::vector<std::string> words;
    if (in_section())
      for (std::string& word : split(lines_[at_], ' '))
        if (!word.empty()) words.push_back(std::move(word));
    return words;
  }
  const Value* value_of(const std::string& word) const {
    const Value* value = word.starts_with('%') ? graph_.find_value(word.substr(1)) : nullptr;
    if (!value) fail("the name of a value of the graph, as %x");
    return value;
  }
  int64_t number_of(const std::string& word, std::string_view key) const {
    const auto number = word.starts_with(key) ? number_in(std::string_view(word).substr(key.size())) : std::nullopt;
    if (!number) fail(concat(key, "a number up to ", kMost));
    return *number;
  }
  int64_t bytes_of(const std::string& word, std::string_view key) {
    const int64_t bytes = number_of(word, key);
    if (bytes < 0 || (together_ += bytes) > kMostTogether)
      fail(concat(key, "N, at least 0, that a machine could hold"));
    return bytes;
  }

  // "  compute workspace=4096:", "  dp_shard/0 workspace=4096: %a %b"
  void read_lanes(StepPlan& plan) {
    while (in_section()) {
      std::vector<std::string> parts = words();
      const bool compute = plan.memory.workspaces.empty();
      if (parts.size() < 2 || !parts[1].ends_with(':') || (compute && (parts[0] != "compute" || parts.size() > 2)))
        fail(compute ? "  compute workspace=N:" : "  AXES/CHANNEL workspace=N: %collective ...");
      parts[1].pop_back();
      plan.memory.workspaces.push_back(bytes_of(parts[1], "workspace="));
      if (!lane_of_.emplace(parts[0], lane_of_.size()).second) fail("each lane once");
      if (!compute) plan.lanes.push_back(read_lane(parts));
      ++at_;
    }
    if (plan.memory.workspaces.empty()) fail("  compute workspace=N:");
  }
  CommLane read_lane(const std::vector<std::string>& parts) const {
    CommLane lane;
    const size_t slash = parts[0].rfind('/');
    const auto channel = slash == std::string::npos ? std::nullopt : parse_int(parts[0].substr(slash + 1));
    if (!channel || *channel < 0) fail("  AXES/CHANNEL workspace=N: %collective ...");
    lane.channel = *channel;
    if (const std::string axes = parts[0].substr(0, slash); axes != "none") lane.axes = split(axes, ',');
    for (size_t i = 2; i < parts.size(); ++i) lane.collectives.push_back(value_of(parts[i])->producer());
    return lane;
  }
  // "  compute.12 -> dp_shard/0.3"
  Edge read_edge() {
    const auto parts = words();
    if (parts.size() != 3 || parts[1] != "->") fail("  LANE.NUMBER -> LANE.NUMBER");
    const Edge edge{task_of(parts[0]), task_of(parts[2])};
    ++at_;
    return edge;
  }
  Task task_of(const std::string& word) const {
    const size_t dot = word.rfind('.');
    const auto lane = lane_of_.find(word.substr(0, dot));
    const auto number = dot == std::string::npos ? std::nullopt : parse_int(word.substr(dot + 1));
    if (lane == lane_of_.end() || !number || *number < 0) fail("a lane of this plan and a number, as compute.12");
    return {lane->second, static_cast<size_t>(*number)};
  }
  int64_t read_region(Region region) {
    const auto parts = words();
    if (parts.size() != 2 || parts[0] != to_string(region)) fail(concat("  ", to_string(region), " bytes=N"));
    const int64_t bytes = bytes_of(parts[1], "bytes=");
    ++at_;
    return bytes;
  }
  // "  lr f64 io offset=0": where each lies is the same in all plans
  void read_host_value(const HostValue& value) {
    const std::string expected =
        concat("  ", value.name, ' ', to_string(value.dtype), ' ', to_string(Region::Io), " offset=", value.offset);
    if (at_ >= lines_.size() || lines_[at_] != expected) fail(expected);
    ++at_;
  }
  // "  batch after compute.17 dp_shard/0.2"
  std::vector<Task> read_load(std::string_view word) {
    const auto parts = words();
    if (parts.size() < 2 || parts[0] + ' ' + parts[1] != word) fail(concat("  ", word, " LANE.NUMBER ..."));
    std::vector<Task> tasks;
    for (size_t i = 2; i < parts.size(); ++i) tasks.push_back(task_of(parts[i]));
    ++at_;
    return tasks;
  }
  Region region_of(const std::string& word) const {
    size_t region = 0;
    while (region < kRegions && word != to_string(static_cast<Region>(region))) ++region;
    if (region == kRegions) fail("state, window, io or constant");
    return static_cast<Region>(region);
  }
  // "  w.exp_avg state offset=0 bytes=256"
  UnreadState read_unread() {
    const auto parts = words();
    if (parts.size() != 4) fail("  NAME REGION offset=N bytes=N");
    UnreadState unread{parts[0], region_of(parts[1]), number_of(parts[2], "offset="), bytes_of(parts[3], "bytes=")};
    ++at_;
    return unread;
  }
  // "  %v window offset=0 bytes=256 first=0 last=9 bits=0123456789abcdef", " bits=none", or of a scalar neither
  void read_constant(StepPlan& plan) {
    std::optional<uint64_t> bits;
    std::vector<std::string> parts = words();
    const bool is_scalar = !parts.empty() && value_of(parts[0])->producer()->is("scalar");
    if (!is_scalar) {
      const std::string last = parts.empty() ? "" : parts.back();
      if (!last.starts_with(kBits)) fail("  %value REGION offset=N bytes=N first=N last=N bits=HASH, or bits=none");
      bits = parse_hash(std::string_view(last).substr(kBits.size()));
      if (!bits && last.substr(kBits.size()) != kNoBits) fail("16 digits after bits=, or none");
      parts.pop_back();
    }
    plan.memory.constants.push_back(read_buffer(parts));
    plan.constant_bits.push_back(bits);
  }
  // "  %a window offset=0 bytes=256 first=3 last=9", of a sum over micro-batches with " carried" after it
  Buffer read_buffer() { return read_buffer(words()); }
  Buffer read_buffer(const std::vector<std::string>& parts) {
    const bool carried = parts.size() == 7 && parts[6] == "carried";
    if (parts.size() != 6 && !carried) fail("  %value REGION offset=N bytes=N first=N last=N [carried]");
    Buffer buffer{.value = value_of(parts[0])};
    buffer.region = region_of(parts[1]);
    buffer.offset = number_of(parts[2], "offset=");
    buffer.bytes = bytes_of(parts[3], "bytes=");
    buffer.first = number_of(parts[4], "first=");
    buffer.last = number_of(parts[5], "last=");
    buffer.carried = carried;
    ++at_;
    return buffer;
  }

  // "  %a inside %b at +256"
  Inside read_inside() {
    const auto parts = words();
    if (parts.size() != 5 || parts[1] != "inside" || parts[3] != "at") fail("  %value inside %other at +BYTES");
    const Inside inside{value_of(parts[0]), value_of(parts[2]), bytes_of(parts[4], "+")};
    ++at_;
    return inside;
  }

  // "  %a at +256", "  %a at +256 +64*dp_shard"
  View read_view() {
    const auto parts = words();
    if (parts.size() < 3 || parts[1] != "at") fail("  %value at +BYTES [+BYTES*AXIS ...]");
    View view{value_of(parts[0]), number_of(parts[2], "+")};
    for (size_t i = 3; i < parts.size(); ++i) {
      const size_t star = parts[i].find('*');
      if (star == std::string::npos || !ir::axis_size(graph_, std::vector{parts[i].substr(star + 1)}))
        fail("  %value at +BYTES [+BYTES*AXIS ...], with axes of the mesh");
      view.steps.emplace_back(parts[i].substr(star + 1), number_of(parts[i].substr(0, star), "+"));
    }
    ++at_;
    return view;
  }

  std::vector<std::string> lines_;
  std::string file_;
  size_t first_line_;
  const Graph& graph_;
  size_t at_ = 0;
  int64_t together_ = 0;  // bytes of all that is read
  std::map<std::string, size_t> lane_of_;
};

std::string word_after(const std::vector<std::string>& words, std::string_view key) {
  for (const std::string& word : words)
    if (word.starts_with(key)) return word.substr(key.size());
  return "";
}

int64_t header_number(const std::vector<std::string>& words, std::string_view key) {
  if (const auto number = number_in(word_after(words, key))) return *number;
  throw UserError(concat("plan, line 1: no ", key, "\n  expected ", kHeader));
}

// "layout=9beb10837c4d2a10/12"
std::optional<LayoutStamp> read_stamp(const std::vector<std::string>& words) {
  const std::string text = word_after(words, "layout=");
  if (text == "none") return std::nullopt;
  const size_t slash = text.find('/');
  const auto hash = parse_hash(text.substr(0, slash));
  const auto entries = slash == std::string::npos ? std::nullopt : number_in(std::string_view(text).substr(slash + 1));
  if (!hash || !entries || *entries < 0)
    throw UserError(concat("plan, line 1: layout=", text, "\n  expected ", kHeader));
  return LayoutStamp{*hash, *entries};
}

// That name is known: this processor's, or a machine's of machines/.
std::optional<cost::Target> find_target(const std::string& name) {
  if (name == cost::cpu_target().name) return cost::cpu_target();
  const auto names = cost::machine_names();
  if (std::ranges::find(names, name) == names.end()) return std::nullopt;
  return cost::target_of(cost::load_machine(name));
}

// The text carries the target's numbers, as a machine file of a user's own is not there where a plan is read. Those of a
// known target are held against its table; no target has alignments of its own.
cost::Target read_target(const std::vector<std::string>& words, const std::string& file_name) {
  cost::Target target{.name = word_after(words, "target=")};
  if (target.name.empty()) throw UserError(concat("plan, line 1: no target=\n  expected ", kHeader));
  const auto known = find_target(target.name);
  for (const TargetKey& key : kTargetKeys) {
    const int64_t number = header_number(words, key.name);
    const bool is_flag = key.most == 1;
    const auto refuse = [&](const std::string& expected) {
      throw UserError(concat("plan ", file_name, ", line 1: ", key.name, number, " of target ", target.name,
                             "\n  expected ", expected));
    };
    if (number < (is_flag ? 0 : 1) || number > key.most) refuse(concat(is_flag ? 0 : 1, " to ", key.most));
    const bool is_fixed = known || key.name.ends_with("alignment=");
    const int64_t expected = key.get(known.value_or(cost::Target()));
    if (is_fixed && number != expected) refuse(std::to_string(expected));
    key.set(target, number);
  }
  return target;
}

}  // namespace

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
  plan.target = read_target(words, file_name);
  MemoryPlan& m = plan.memory;
  m.live_bytes = header_number(words, "live_bytes=");
  m.peak_position = header_number(words, "peak_position=");
  plan.layout = read_stamp(words);
  const auto line = static_cast<size_t>(std::ranges::count(text.substr(0, lanes + 1), '\n')) + 1;
  SectionReader(text.substr(lanes + 1), file_name, line, plan.graph).read(plan);
  for (const Buffer& b : m.state) m.state_bytes += b.bytes;
  for (const UnreadState& u : m.unread) m.state_bytes += u.bytes;
  for (const int64_t bytes : m.region_bytes) m.arena_bytes += bytes;
  m.program_bytes = round_up(kHostBytes, plan.target.alignment);
  for (const Buffer& b : m.constants) m.program_bytes += b.bytes;
  m.arena_bytes -= m.state_bytes + m.program_bytes;
  return plan;
}

}  // namespace sfsdp::plan
