// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/hazards.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/verify/kernels.h"

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

// A loop, and what its body has to do with memory.
struct Body {
  ir::Loop loop;
  std::vector<const Value*> reads;  // storages that are made outside
  std::vector<const Value*> makes;  // what lies elsewhere than what the loop carries
  Run begun = {};                   // the latest run of its first task
};

class HazardChecker {
 public:
  //   trips: of each loop
  HazardChecker(const StepPlan& plan, int64_t trips)
      : plan_(plan),
        trips_(trips),
        host_(plan.lanes.size() + 1),
        lanes_(host_ + 1),
        buffer_of_(plan.graph),
        position_(plan.graph),
        collective_(plan.graph),
        made_(plan.graph),
        made_in_(plan.graph),
        now_(lanes_, Clock(lanes_)),
        runs_(lanes_),
        latest_(lanes_) {
    const cost::Kernels kernels = cost::kernels_of(plan.graph);
    kernels_ = kernels.ops;
    inside_kernels_ = cost::values_inside(plan.graph, kernels);
    for (const Edge& edge : plan.edges) before_.emplace_back(edge.to, edge.from);
    for (const Task& task : plan.load.before) before_.emplace_back(task, Task{host_, 0});
    for (const Task& task : plan.load.after) before_.emplace_back(Task{host_, 0}, task);
    std::sort(before_.begin(), before_.end());
    for (const auto* buffers : {&plan.memory.constants, &plan.memory.state})
      for (const Buffer& b : *buffers) buffer_of_[b.value] = &b;
    for (const Buffer& b : plan.memory.buffers) buffer_of_[b.value] = &b;
    for (const Inside& i : plan.memory.inside) place_inside(i);
    for (const auto& op : plan.graph.ops()) {
      const auto donated = ir::donated_operands(*op);
      for (size_t r = 0; r < donated.size() && r < op->results().size(); ++r) {
        const Buffer* from = buffer_of_[ir::storage_of(op->operands[static_cast<size_t>(donated[r])])];
        if (from) buffer_of_[op->results()[r].get()] = from;
      }
    }
    note_bodies();
  }

  std::vector<std::string> check() {
    check_window();
    check_packs();
    const std::vector<Action> program = program_of(plan_.graph, plan_.lanes, nullptr, trips_);
    for (int step = 0; step < 2; ++step) {
      begin_step(step == 0);
      for (const Action& action : program) {
        if (errors_.size() >= kMostErrors) return errors_;
        if (action.kind == Action::Load) {
          begin_micro_batch();
          run({host_, 0});
        } else if (action.kind == Action::Again) {
          begin_trip(*body_of_task(action.task));
        } else if (action.kind != Action::Wait) {
          run(action.task);
        }
      }
      for (const Value* output : plan_.graph.outputs) expect(*output, "the step returns it");
    }
    return errors_;
  }

 private:
  // A pack that has nothing to copy, and so no kernel.
  static bool is_there_already(const Op& op) { return op.is("pack") && cost::class_of(op) == cost::Class::Free; }

  static bool lies_in(const Op& pack, const Value& memory) {
    for (size_t k = 0; k < pack.operands.size(); ++k)
      if (ir::storage_of(pack.operands[k]) == &memory) return cost::is_inside(pack, k);
    return false;
  }

  // As if it had a buffer of its own there.
  void place_inside(const Inside& inside) {
    const Buffer* host = buffer_of_[inside.host];
    const int64_t bytes = inside.value->type().bytes();
    if (!host || buffer_of_[inside.value] || inside.offset < 0 || inside.offset + bytes > host->bytes)
      return error(concat('%', inside.value->name(), " inside %", inside.host->name(), " at +", inside.offset, " of ",
                          bytes, " bytes\n  expected a place of its own, within another's buffer"));
    Buffer& buffer = inside_.emplace_back(*host);
    buffer.value = inside.value;
    buffer.offset += inside.offset;
    buffer.bytes = std::max<int64_t>(bytes, 1);
    buffer_of_[inside.value] = &buffer;
  }

  // What collectives touch is at equal offsets on all ranks only in the window.
  void check_window() {
    for (const CommLane& lane : plan_.lanes)
      for (const Op* op : lane.collectives) {
        const auto inside = [&](const Value* value) {
          const Buffer* found = buffer_of_[ir::storage_of(value)];
          if (found && found->region != Region::Window)
            error(concat("%", found->value->name(), ", which ", ir::name_of(*op), " touches, lies in region ",
                         to_string(found->region), "\n  expected window"));
        };
        for (const Value* operand : op->operands) inside(operand);
        for (const auto& result : op->results()) inside(result.get());
      }
  }

  // What a pack does not copy lies in its result already.
  void check_packs() {
    for (const auto& op : plan_.graph.ops()) {
      if (!op->has_attr("inside") || !buffer_of_[op->result()]) continue;
      const Buffer& bucket = *buffer_of_[op->result()];
      const auto& offsets = op->attr<std::vector<int64_t>>("offsets");
      for (size_t k = 0; k < op->operands.size(); ++k) {
        if (!cost::is_inside(*op, k)) continue;
        const Value* part = ir::storage_of(op->operands[k]);
        const Buffer* found = buffer_of_[part];
        const int64_t expected = bucket.offset + offsets[k] * ir::size_in_bytes(part->type().dtype);
        if (op->has_attr("ranks") || !found || found->region != bucket.region || found->offset != expected ||
            part->type().bytes() != op->operands[k]->type().bytes())
          error(concat(ir::name_of(*op), " does not copy %", part->name(), ", which lies ",
                       !found ? "nowhere" : "at " + place_of(*found), "\n  expected it at ", to_string(bucket.region),
                       " ", expected));
      }
    }
  }

  // The state is what the last step left, under the names of this one.
  void begin_step(bool first) {
    ++step_;
    for (const auto& op : plan_.graph.ops())
      if (first && op->is("param", "state", "constant", "scalar")) place(*op->result());
    if (!first) hand_over([](const ir::Carry&) { return true; }, "the next step");
  }

  // What lies in memory under the name of `next` is now `current`: what read and wrote it counts as before.
  template <class Is>
  void hand_over(Is is, const char* reader) {
    std::vector<std::pair<Content*, const Value*>> renamed;  // all at once: names may stand on both sides
    for (const ir::Carry& carry : plan_.graph.carries) {
      if (!is(carry)) continue;
      const Value& last = *ir::storage_of(carry.next);
      const Buffer *from = buffer_of_[&last], *to = buffer_of_[carry.current];
      expect(last, concat(reader, " reads it as %", carry.current->name()));
      Content* content = from && from == to ? holding(*to, last) : nullptr;
      if (content) renamed.emplace_back(content, carry.current);
    }
    for (const auto& [content, value] : renamed) content->value = value;
  }

  void begin_micro_batch() {
    if (loaded_ == step_)
      hand_over([](const ir::Carry& carry) { return ir::is_repeated(carry.next->producer()->section); },
                "the next micro-batch");
    loaded_ = step_;
  }

  void note_bodies() {
    for (size_t i = 0; i < plan_.graph.ops().size(); ++i) position_[plan_.graph.ops()[i].get()] = i;
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane)
      for (size_t i = 0; i < plan_.lanes[lane].collectives.size(); ++i)
        collective_[plan_.lanes[lane].collectives[i]] = Task{lane + 1, i};
    for (const ir::Loop& loop : ir::loops_of(plan_.graph)) {
      Body body{.loop = loop, .reads = {}, .makes = {}};
      std::unordered_set<const Value*> seen;
      const auto is_carried = [&](const Value* value) {
        return std::ranges::any_of(loop.begin->results(),
                                   [&](const auto& carried) { return buffer_of_[value] == buffer_of_[carried.get()]; });
      };
      for (size_t i = loop.first + 1; i < loop.last; ++i) {
        const Op& op = *plan_.graph.ops()[i];
        for (const Value* operand : op.operands)
          if (const Value* memory = operand ? ir::storage_of(operand) : nullptr;
              memory && position_[memory->producer()] < loop.first && seen.insert(memory).second)
            body.reads.push_back(memory);
        for (const auto& result : op.results())
          if (buffer_of_[result.get()] && !inside_kernels_.contains(result.get()) && !is_carried(result.get()))
            body.makes.push_back(result.get());
      }
      bodies_.push_back(std::move(body));
    }
  }

  Body* body_of_task(const Task& task) {
    const Op* op = kernels_.at(task.number)[0];
    const auto found =
        std::ranges::find_if(bodies_, [&](const Body& b) { return b.loop.begin == op || b.loop.end == op; });
    return found == bodies_.end() ? nullptr : &*found;
  }

  // What is carried goes on under the name that a trip begins with.
  void begin_trip(const Body& body) {
    std::vector<const Value*> left;
    for (const Value* next : body.loop.end->operands) left.push_back(ir::storage_of(next));
    rename(left, begun_with(body), body);
  }
  static std::vector<const Value*> begun_with(const Body& body) {
    std::vector<const Value*> values;
    for (const auto& carried : body.loop.begin->results()) values.push_back(carried.get());
    return values;
  }
  void rename(const std::vector<const Value*>& from, const std::vector<const Value*>& to, const Body& body) {
    std::vector<Content*> contents;
    for (const Value* value : from) {
      const Buffer* found = buffer_of_[value];
      contents.push_back(found ? holding(*found, *value) : nullptr);
      if (found && !contents.back())
        error(concat(place_of(*found), " holds ", held_at(*found), " where a trip of ", ir::name_of(*body.loop.begin),
                     " ends\n  expected %", value->name()));
    }
    for (size_t k = 0; k < contents.size(); ++k)
      if (contents[k]) contents[k]->value = to[k];
  }

  // Both tasks of a loop touch what its body may touch, so that all outside is ordered with them, however many trips there are.
  void touch(const Body& body, const Op& op, const Run& run, Clock clock) {
    for (const Value* value : body.reads) read(*value, op, run, clock);
    clock[run.lane] = run.number;  // values of the body may share memory
    for (const Value* value : body.makes) replace(*buffer_of_[value], *value, run, &clock);
  }

  void run_border(Body& body, const Op& op, const Run& run, const Clock& clock) {
    if (&op == body.loop.begin) {
      run_ops({&op}, run, clock);
      touch(body, op, run, clock);
      body.begun = run;
      return;
    }
    if (trips_ == 0) {
      std::vector<const Value*> left;
      for (const Value* next : op.operands) left.push_back(ir::storage_of(next));
      rename(begun_with(body), left, body);
    }
    for (size_t i = body.loop.first + 1; trips_ > 0 && i < body.loop.last; ++i) {
      const Op* inner = plan_.graph.ops()[i].get();
      if (!ir::is_collective(*inner)) continue;
      const Task task = collective_[inner];
      if (!is_over({task.lane, latest_[task.lane].at(task.number)}, clock))
        error(concat(ir::name_of(op), " may come before lane ", lane_name(task.lane), " is over with ",
                     ir::name_of(*inner), " of its body\n  expected an edge between them"));
    }
    touch(body, op, run, clock);
    run_ops({&op}, run, clock);
  }

  // A lane other than that of the loop's tasks learns from them how many trips there are.
  void check_begun(const Op& op, const Run& run, const Clock& clock) {
    for (const Body& body : bodies_)
      if (body.loop.has(position_[&op]) && !is_over(body.begun, clock))
        error(concat(ir::name_of(op), " on lane ", lane_name(run.lane), " may come before ",
                     ir::name_of(*body.loop.begin), " has read the number of trips\n  expected an edge between them"));
  }

  void load_batch(const Run& run, const Clock& clock) {
    for (const auto& op : plan_.graph.ops()) {
      if (!op->is("input")) continue;
      if (const Buffer* found = buffer_of_[op->result()])
        replace(*found, *op->result(), run, &clock);
      else
        error(concat("%", op->result()->name(), " has no place in memory\n  expected one"));
    }
  }

  void place(const Value& value) {
    const Buffer* found = buffer_of_[&value];
    if (!found) return error(concat("%", value.name(), " has no place in memory\n  expected one"));
    contents_.erase({found->region, found->offset});
    replace(*found, value, {}, nullptr);
  }

  void run(const Task& task) {
    Clock& clock = now_[task.lane];
    auto edge = std::lower_bound(before_.begin(), before_.end(), std::pair(task, Task()));
    for (; edge != before_.end() && edge->first == task; ++edge) {
      const Task& from = edge->second;
      const auto& latest = latest_[from.lane];
      if (from.number >= latest.size() || latest[from.number] == 0) continue;
      const Clock& other = runs_[from.lane][static_cast<size_t>(latest[from.number]) - 1];
      for (size_t i = 0; i < lanes_; ++i) clock[i] = std::max(clock[i], other[i]);
    }
    const Run run{task.lane, std::ssize(runs_[task.lane]) + 1};
    if (task.lane == host_)
      load_batch(run, clock);
    else if (task.lane == 0)
      run_kernel(task, run, clock);
    else
      run_collective(*plan_.lanes[task.lane - 1].collectives.at(task.number), run, clock);
    clock[task.lane] = run.number;
    runs_[task.lane].push_back(clock);
    auto& latest = latest_[task.lane];
    if (latest.size() <= task.number) latest.resize(task.number + 1);
    latest[task.number] = run.number;
  }

  void run_kernel(const Task& task, const Run& run, const Clock& clock) {
    if (Body* body = body_of_task(task))
      run_border(*body, *kernels_[task.number][0], run, clock);
    else
      run_ops(kernels_[task.number], run, clock);
  }

  void run_collective(const Op& op, const Run& run, const Clock& clock) {
    check_begun(op, run, clock);
    run_ops({&op}, run, clock);
  }

  // All is read before anything is written, but for what stays inside.
  void run_ops(const std::vector<const Op*>& ops, const Run& run, const Clock& clock) {
    ++kernel_;
    for (const Op* op : ops)
      for (const auto& result : op->results()) made_in_[result.get()] = kernel_;
    for (const Op* op : ops) {
      for (const Value* operand : op->operands)
        if (operand && !is_own(ir::storage_of(operand))) read(*ir::storage_of(operand), *op, run, clock);
      if (op->is("accumulate") && made_[op->result()] == step_) read_sum(*op, run, clock);
    }
    for (const Op* op : ops)
      for (const auto& result : op->results()) {
        const Buffer* found = buffer_of_[result.get()];
        // What stays inside is not written, though it may be named by the buffer that its op was given: another result of the
        // kernel may lie there. Where it has none, whoever reads it is told.
        if (!found || inside_kernels_.contains(result.get())) continue;
        check_operands(ops, *result, *found);
        replace(*found, *result, run, &clock);
        made_[result.get()] = step_;
      }
  }

  // What earlier micro-batches have added up.
  void read_sum(const Op& op, const Run& run, const Clock& clock) {
    const Buffer* sum = buffer_of_[op.result()];
    if (sum && !sum->carried)
      error(concat(ir::name_of(op),
                   " adds to a sum that is not carried from one micro-batch to the next\n  expected a ",
                   "buffer that is"));
    read(*op.result(), op, run, clock);
  }

  bool is_own(const Value* value) const { return made_in_[value] == kernel_; }

  // What a kernel writes over what it reads: in place, element by element. What an op gives away (donates=) it reads so itself.
  void check_operands(const std::vector<const Op*>& ops, const Value& result, const Buffer& written) {
    const auto donated = ir::donated_operands(*result.producer());
    std::vector<const Op*> readers = ops;
    if (static_cast<size_t>(result.result_index()) < donated.size()) std::erase(readers, result.producer());
    std::unordered_set<const Value*> seen;
    for (const Op* op : readers)
      for (const Value* operand : op->operands) {
        const Value* memory = operand ? ir::storage_of(operand) : nullptr;
        const Buffer* found = memory ? buffer_of_[memory] : nullptr;
        if (!found || is_own(memory) || !seen.insert(memory).second) continue;
        const Buffer& there = *found;
        if (op->is("pack") && op->result() == &result && lies_in(*op, *memory)) continue;  // left as it is
        if (there.region != written.region || there.offset >= written.offset + written.bytes ||
            written.offset >= there.offset + there.bytes)
          continue;
        if (there.offset != written.offset)
          error(concat('%', result.name(), " is written over a part of %", memory->name(),
                       ", which its kernel reads\n  expected the same place, or another one"));
        else if (const std::string wrong = check_written_over(readers, *memory, result); !wrong.empty())
          error(wrong);
      }
  }

  void read(const Value& value, const Op& reader, const Run& run, const Clock& clock) {
    if (is_there_already(*value.producer())) {
      for (const Value* part : value.producer()->operands) read(*ir::storage_of(part), reader, run, clock);
      return;
    }
    const Buffer* found = buffer_of_[&value];
    if (!found)
      return error(concat("%", value.name(), ", which ", ir::name_of(reader),
                          " reads, has no place in memory\n  expected a buffer"));
    Content* content = holding(*found, value);
    if (!content)
      return error(concat(ir::name_of(reader), " reads %", value.name(), " at ", place_of(*found), ", which holds ",
                          held_at(*found), "\n  expected %", value.name()));
    if (!is_over(content->writer, clock))
      error(concat(ir::name_of(reader), " on lane ", lane_name(run.lane), " may read %", value.name(), " before lane ",
                   lane_name(content->writer.lane), " has written it\n  expected an edge between them"));
    content->readers.resize(lanes_);
    content->readers[run.lane] = run.number;
  }

  void expect(const Value& value, const std::string& why) {
    const Value& storage = *ir::storage_of(&value);
    const Buffer* found = buffer_of_[&storage];
    if (!found || holding(*found, storage)) return;
    error(concat("at the step's end ", place_of(*found), " holds ", held_at(*found), "\n  expected %", storage.name(),
                 ": ", why));
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

  std::string lane_name(size_t lane) const {
    return lane == host_ ? "host" : lane == 0 ? "compute" : name_of(plan_.lanes[lane - 1]);
  }
  static std::string place_of(const Buffer& b) { return concat(to_string(b.region), " ", b.offset); }
  std::string held_at(const Buffer& b) const {
    const auto found = contents_.find({b.region, b.offset});
    return found == contents_.end() ? "nothing whole" : concat('%', found->second.value->name());
  }
  void error(std::string text) {
    if (errors_.size() < kMostErrors) errors_.push_back(std::move(text));
  }

  const StepPlan& plan_;
  const int64_t trips_;
  const size_t host_;  // the lane of the host, which has one task: it writes the batch
  const size_t lanes_;
  std::vector<std::vector<const Op*>> kernels_;
  std::unordered_set<const Value*> inside_kernels_;  // made and read by one kernel alone
  std::vector<std::pair<Task, Task>> before_;        // the ends of edges with their begins, sorted
  std::deque<Buffer> inside_;                        // what lies inside others, as if it had a buffer
  ir::ValueTable<const Buffer*> buffer_of_;
  ir::OpTable<size_t> position_;
  ir::OpTable<Task> collective_;  // the tasks of collectives
  std::vector<Body> bodies_;
  size_t loaded_ = 0;                                       // the latest step that has a batch
  ir::ValueTable<size_t> made_;                             // the latest step that has made it
  ir::ValueTable<size_t> made_in_;                          // the latest run of a kernel that makes it
  size_t step_ = 0, kernel_ = 0;                            // those that are running, from 1 on
  std::vector<Clock> now_;                                  // by lane, after its latest run
  std::vector<std::vector<Clock>> runs_;                    // by lane and run, once it is over
  std::vector<std::vector<int64_t>> latest_;                // by lane and task, the number of its latest run; 0: none
  std::map<std::pair<Region, int64_t>, Content> contents_;  // by region and begin
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> check_hazards(const StepPlan& plan) {
  std::vector<std::string> errors;
  for (const int64_t trips : trips_to_check(plan.graph))
    for (std::string& error : HazardChecker(plan, trips).check())
      if (std::ranges::find(errors, error) == errors.end()) errors.push_back(std::move(error));
  return errors;
}

}  // namespace sfsdp::plan
