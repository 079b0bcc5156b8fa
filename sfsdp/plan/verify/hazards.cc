// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/hazards.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Value;

constexpr size_t kMostErrors = 10;

// By lane, how many of its runs are over.
using Clock = std::vector<int64_t>;

// One run of a task, the first of a lane being 1.
struct Run {
  size_t lane = 0;
  int64_t number = 0;
};

// Bytes [its key, end) of a region.
struct Content {
  int64_t end = 0;
  const Value* value = nullptr;  // what they hold
  Run writer;                    // number 0: the host, between steps
  Clock readers;                 // by lane, the latest run that reads it
};

class HazardChecker {
 public:
  explicit HazardChecker(const StepPlan& plan)
      : plan_(plan), lanes_(plan.lanes.size() + 1), now_(lanes_, Clock(lanes_)), runs_(lanes_) {
    const cost::Kernels kernels = cost::kernels_of(plan.graph);
    kernels_ = kernels.ops;
    for (const Edge& edge : plan.edges) before_[edge.to].push_back(edge.from);
    for (const Buffer& b : plan.memory.state) buffer_of_[b.value] = &b;
    for (const Buffer& b : plan.memory.buffers) buffer_of_[b.value] = &b;
    for (const auto& op : plan.graph.ops()) {
      const auto donated = ir::donated_operands(*op);
      for (size_t r = 0; r < donated.size() && r < op->results().size(); ++r) {
        const auto from = buffer_of_.find(ir::storage_of(op->operands[static_cast<size_t>(donated[r])]));
        if (from != buffer_of_.end()) buffer_of_[op->results()[r].get()] = from->second;
      }
    }
  }

  std::vector<std::string> check() {
    check_window();
    for (int step = 0; step < 2; ++step) {
      begin_step(step == 0);
      for (const Action& action : program_of(plan_.graph, plan_.lanes, 1)) {
        if (errors_.size() >= kMostErrors) return errors_;
        if (action.kind != Action::Wait) run(action.task);
      }
      for (const Value* output : plan_.graph.outputs) expect(*output, "the step returns it");
    }
    return errors_;
  }

 private:
  // What collectives touch is at equal offsets on all ranks only in the window.
  void check_window() {
    for (const CommLane& lane : plan_.lanes)
      for (const Op* op : lane.collectives) {
        const auto inside = [&](const Value* value) {
          const auto found = buffer_of_.find(ir::storage_of(value));
          if (found != buffer_of_.end() && found->second->region != Region::Window)
            error(concat("%", found->second->value->name(), ", which ", ir::name_of(*op), " touches, lies in region ",
                         to_string(found->second->region), "\n  expected window"));
        };
        for (const Value* operand : op->operands) inside(operand);
        for (const auto& result : op->results()) inside(result.get());
      }
  }

  // The host puts the batch where it belongs; the state is what the last step left, under the names of this one.
  void begin_step(bool first) {
    std::unordered_map<const Value*, const Value*> next_of;
    for (const ir::Carry& carry : plan_.graph.carries) next_of[carry.current] = ir::storage_of(carry.next);
    made_.clear();
    std::vector<const Value*> roots;
    for (const auto& op : plan_.graph.ops())
      if (op->is("param", "state", "input")) roots.push_back(op->result());
    for (const Value* root : roots) {
      const auto carried = next_of.find(root);
      const Value& last = carried == next_of.end() ? *root : *carried->second;
      const auto from = buffer_of_.find(&last), to = buffer_of_.find(root);
      if (!first && !root->producer()->is("input")) expect(last, concat("the next step reads it as %", root->name()));
      Content* content = !first && from != buffer_of_.end() && to != buffer_of_.end() && from->second == to->second
                             ? holding(*to->second, last)
                             : nullptr;
      if (content)
        content->value = root;  // in place: what read and wrote it counts in this step too
      else
        place(*root);
    }
  }
  void place(const Value& value) {
    const auto found = buffer_of_.find(&value);
    if (found == buffer_of_.end()) return error(concat("%", value.name(), " has no place in memory\n  expected one"));
    contents_.erase({found->second->region, found->second->offset});
    replace(*found->second, value, {}, nullptr);
  }

  void run(const Task& task) {
    Clock& clock = now_[task.lane];
    if (const auto before = before_.find(task); before != before_.end())
      for (const Task& from : before->second)
        if (const auto latest = latest_.find(from); latest != latest_.end()) {
          const Clock& other = runs_[from.lane][static_cast<size_t>(latest->second) - 1];
          for (size_t i = 0; i < lanes_; ++i) clock[i] = std::max(clock[i], other[i]);
        }
    const Run run{task.lane, std::ssize(runs_[task.lane]) + 1};
    if (task.lane == 0)
      run_ops(kernels_.at(task.number), run, clock);
    else
      run_ops({plan_.lanes[task.lane - 1].collectives.at(task.number)}, run, clock);
    clock[task.lane] = run.number;
    runs_[task.lane].push_back(clock);
    latest_[task] = run.number;
  }

  // All is read before anything is written, but for what stays inside.
  void run_ops(const std::vector<const Op*>& ops, const Run& run, const Clock& clock) {
    std::unordered_set<const Value*> own;
    for (const Op* op : ops)
      for (const auto& result : op->results()) own.insert(result.get());
    for (const Op* op : ops) {
      for (const Value* operand : op->operands)
        if (operand && !own.contains(ir::storage_of(operand))) read(*ir::storage_of(operand), *op, run, clock);
      // What earlier micro-batches have added up.
      if (op->is("accumulate") && made_.contains(op->result())) read(*op->result(), *op, run, clock);
    }
    for (const Op* op : ops)
      for (const auto& result : op->results()) {
        const auto found = buffer_of_.find(result.get());
        if (found == buffer_of_.end()) continue;  // stays inside: whoever reads it is told
        replace(*found->second, *result, run, &clock);
        made_.insert(result.get());
      }
  }

  void read(const Value& value, const Op& reader, const Run& run, const Clock& clock) {
    if (value.producer()->is("constant", "scalar")) return;  // in the program
    const auto found = buffer_of_.find(&value);
    if (found == buffer_of_.end())
      return error(concat("%", value.name(), ", which ", ir::name_of(reader),
                          " reads, has no place in memory\n  expected a buffer"));
    Content* content = holding(*found->second, value);
    if (!content)
      return error(concat(ir::name_of(reader), " reads %", value.name(), " at ", place_of(*found->second),
                          ", which holds ", held_at(*found->second), "\n  expected %", value.name()));
    if (!is_over(content->writer, clock))
      error(concat(ir::name_of(reader), " on lane ", lane_name(run.lane), " may read %", value.name(), " before lane ",
                   lane_name(content->writer.lane), " has written it\n  expected an edge between them"));
    content->readers.resize(lanes_);
    content->readers[run.lane] = run.number;
  }

  void expect(const Value& value, const std::string& why) {
    const Value& storage = *ir::storage_of(&value);
    const auto found = buffer_of_.find(&storage);
    if (found == buffer_of_.end() || holding(*found->second, storage)) return;
    error(concat("at the step's end ", place_of(*found->second), " holds ", held_at(*found->second), "\n  expected %",
                 storage.name(), ": ", why));
  }

  Content* holding(const Buffer& buffer, const Value& value) {
    const auto found = contents_.find({buffer.region, buffer.offset});
    return found != contents_.end() && found->second.value == &value &&
                   found->second.end == buffer.offset + buffer.bytes
               ? &found->second
               : nullptr;
  }

  // Writes over whatever lies there; what is left of it holds nothing that can be read.
  void replace(const Buffer& buffer, const Value& value, const Run& run, const Clock* clock) {
    const int64_t begin = buffer.offset, end = begin + buffer.bytes;
    auto at = contents_.upper_bound({buffer.region, begin});
    if (at != contents_.begin() && std::prev(at)->first.first == buffer.region && std::prev(at)->second.end > begin)
      --at;
    while (at != contents_.end() && at->first.first == buffer.region && at->first.second < end) {
      const Content& old = at->second;
      if (clock && !is_over(old.writer, *clock))
        error(concat("%", value.name(), " may be written over %", old.value->name(), " while lane ",
                     lane_name(old.writer.lane), " writes that\n  expected an edge between them"));
      for (size_t lane = 0; clock && lane < old.readers.size(); ++lane)
        if (lane != run.lane && !is_over({lane, old.readers[lane]}, *clock))
          error(concat("%", value.name(), " may be written over %", old.value->name(), " while lane ", lane_name(lane),
                       " reads that\n  expected an edge between them"));
      at = contents_.erase(at);
    }
    contents_[{buffer.region, begin}] = {.end = end, .value = &value, .writer = run, .readers = {}};
  }

  static bool is_over(const Run& run, const Clock& clock) { return clock[run.lane] >= run.number; }

  std::string lane_name(size_t lane) const { return lane == 0 ? "compute" : name_of(plan_.lanes[lane - 1]); }
  static std::string place_of(const Buffer& b) { return concat(to_string(b.region), " ", b.offset); }
  std::string held_at(const Buffer& b) const {
    const auto found = contents_.find({b.region, b.offset});
    return found == contents_.end() ? "nothing whole" : concat('%', found->second.value->name());
  }
  void error(std::string text) {
    if (errors_.size() < kMostErrors) errors_.push_back(std::move(text));
  }

  const StepPlan& plan_;
  const size_t lanes_;
  std::vector<std::vector<const Op*>> kernels_;
  std::map<Task, std::vector<Task>> before_;  // by the end of edges
  std::unordered_map<const Value*, const Buffer*> buffer_of_;
  std::unordered_set<const Value*> made_;                   // in this step
  std::vector<Clock> now_;                                  // by lane, after its latest run
  std::vector<std::vector<Clock>> runs_;                    // by lane and run, once it is over
  std::map<Task, int64_t> latest_;                          // the number of a task's latest run
  std::map<std::pair<Region, int64_t>, Content> contents_;  // by region and begin
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> check_hazards(const StepPlan& plan) { return HazardChecker(plan).check(); }

}  // namespace sfsdp::plan
