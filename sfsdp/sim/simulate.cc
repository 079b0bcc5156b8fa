// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/simulate.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <queue>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/sim/links.h"
#include "sfsdp/sim/program.h"
#include "sfsdp/sim/reduction_buckets.h"

namespace sfsdp::sim {
namespace {

constexpr int64_t kMaxMicroBatches = 1 << 16;  // a step of Llama 3 debugmodel then takes 3 s to simulate

// One collective of one group of ranks.
struct Turn {
  size_t collective = 0;
  size_t arrived = 0;
  double ready = 0;  // when the last of its ranks came
  double begin = 0, end = -1;
};

// One communicator of one group of ranks: its turns one after the other.
struct Group {
  std::vector<size_t> ranks;
  std::deque<Turn> turns;  // by number
  int64_t next = 0;        // the turn that is to begin, or is under way
  bool under_way = false;
  double free_at = 0;  // when the turn before `next` ended
};

struct Rank {
  double now = 0, slowness = 1;
  double host = 0;  // when its host is through with what it has issued
  // Until when collectives that it began will run, as far as it can know; and how much longer kernels take beside them.
  double busy_until = 0, slowdown = 1;
  size_t pass = 0, task = 0;   // where it stands
  int64_t waits_for = -1;      // number of the turn; -1: for none
  size_t waits_on = 0;         // its communicator
  std::vector<size_t> groups;  // by communicator
};

// Two kinds of event: a turn's latency is over and its data begins to move; its data has arrived.
struct Moment {
  double at = 0;
  uint64_t order = 0;  // of equal times the first that was planned
  bool moves = false;
  size_t communicator = 0, group = 0;  // of a turn that begins to move
  Links::Finish finish;
  bool operator>(const Moment& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
};

enum class Record : uint8_t { Events, Passes };  // what is written down beside sums

class Simulator {
 public:
  // The program must outlive this; `mesh` is that of its ranks.
  Simulator(const RankProgram& program, const DeviceMesh& mesh, int64_t micro_batches, const SimulateOptions& options,
            Record record)
      : program_(program),
        record_(record),
        ranks_(options.jitter > 0 || options.timelines == Timelines::PerRank ? static_cast<size_t>(mesh.world_size())
                                                                             : 1),
        links_(ranks_.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const auto words = philox4x32(options.seed, 0, r);
      ranks_[r].slowness = 1 + options.jitter * static_cast<double>(words[0]) * 0x1p-32;
    }
    out_.lanes = {"compute"};
    for (const auto& axes : program_.communicators) {
      out_.lanes.push_back(axes.empty() ? "one rank" : join(axes, ","));
      add_groups(mesh, axes);
    }
    out_.micro_batches = micro_batches;
    passes_ = ir::parts_of_step(micro_batches);
  }

  Simulation run() {
    for (size_t r = 0; r < ranks_.size(); ++r) advance(r);
    while (!moments_.empty()) {
      const Moment moment = moments_.top();
      moments_.pop();
      if (moment.moves)
        begin_transfer(moment);
      else if (links_.is_current(moment.finish))
        end_transfer(moment.finish);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      SFSDP_CHECK(ranks_[r].pass == passes_.size(), "rank ", r, " waits for ever, in pass ", ranks_[r].pass,
                  " at task ", ranks_[r].task);
      out_.step_seconds = std::max(out_.step_seconds, ranks_[r].now);
    }
    return std::move(out_);
  }

  // When rank 0 was through with each pass, and what it had waited for until then.
  struct Mark {
    double at = 0, compute = 0;
    std::map<std::string, double> exposed;
  };
  const std::vector<Mark>& marks() const { return marks_; }

 private:
  void add_groups(const DeviceMesh& mesh, const std::vector<std::string>& axes) {
    std::vector<Group>& groups = groups_.emplace_back();
    if (ranks_.size() == 1) {
      groups.emplace_back().ranks = {0};
      ranks_[0].groups.push_back(0);
      return;
    }
    for (const auto& members : mesh.groups(axes)) {
      Group& group = groups.emplace_back();
      for (const int64_t r : members) {
        group.ranks.push_back(static_cast<size_t>(r));
        ranks_[static_cast<size_t>(r)].groups.push_back(groups.size() - 1);
      }
    }
  }

  // The number of a collective's turn on its communicator, as a rank in pass `pass` means it.
  int64_t turn_of(const Collective& c, size_t pass) const {
    const auto turns = [&](Part part) { return program_.turns[static_cast<size_t>(part)][c.communicator]; };
    if (c.part == Part::Head) return c.turn;
    const int64_t last = turns(Part::Head) + (out_.micro_batches - 1) * turns(Part::First);
    if (c.part == Part::Tail) return last + turns(Part::Last) + c.turn;
    const auto micro_batch = std::min(static_cast<int64_t>(pass), out_.micro_batches) - 1;
    if (micro_batch + 1 == out_.micro_batches) return last + c.turn;
    return turns(Part::Head) + micro_batch * turns(Part::First) + c.early_turn;
  }

  // Runs the program of a rank until it ends or has to wait. What it starts lies in its own future, so no event that is
  // still to come can be earlier.
  void advance(size_t r) {
    Rank& rank = ranks_[r];
    for (; rank.pass < passes_.size(); ++rank.pass, rank.task = 0) {
      if (record_ == Record::Passes && r == 0 && rank.task == 0 && marks_.size() < rank.pass)
        marks_.push_back({rank.now, out_.compute_seconds, out_.exposed_seconds});
      const std::vector<Task>& tasks = program_.tasks[static_cast<size_t>(passes_[rank.pass])];
      for (; rank.task < tasks.size(); ++rank.task) {
        const Task& task = tasks[rank.task];
        if (task.kind == Task::Compute)
          compute(r, task);
        else if (task.kind == Task::Start)
          start(r, task);
        else if (!wait(r, task))
          return;
      }
    }
  }

  void compute(size_t r, const Task& task) {
    // A kernel begins when the host has issued it; while a collective runs beside it, it is slower.
    Rank& rank = ranks_[r];
    for (size_t i = task.first; i < task.first + task.count; ++i) {
      const cost::Kernel& kernel = program_.kernels.kernels[program_.order[i]];
      rank.host += kernel.host;
      const int beta = ir::beta_in(passes_[rank.pass]);
      const double begin = std::max(rank.now, rank.host), alone = kernel.seconds_at(beta) * rank.slowness;
      const double shared = std::max(0.0, rank.busy_until - begin);
      const double seconds =
          alone * rank.slowdown <= shared ? alone * rank.slowdown : alone + shared * (1 - 1 / rank.slowdown);
      rank.now = begin + seconds;
      if (r > 0) continue;
      out_.compute_seconds += seconds;
      if (record_ == Record::Passes) continue;
      out_.events.push_back({.op = kernel.ops[0],
                             .position = program_.kernel_position[program_.order[i]],
                             .begin = begin,
                             .end = rank.now,
                             .bytes = kernel.bytes - (1 - beta) * kernel.sum_bytes});
    }
  }

  void start(size_t r, const Task& task) {
    Rank& rank = ranks_[r];
    const Collective& c = program_.collectives[task.collective];
    Group& group = groups_[c.communicator][rank.groups[c.communicator]];
    const int64_t number = turn_of(c, rank.pass);
    rank.busy_until = std::max(rank.busy_until, rank.now) + c.cost.seconds();
    rank.slowdown = c.slowdown;
    while (std::ssize(group.turns) <= number) group.turns.push_back({.collective = task.collective});
    Turn& turn = group.turns[static_cast<size_t>(number)];
    SFSDP_CHECK(turn.collective == task.collective, "turn ", number, " of ", out_.lanes[1 + c.communicator], " is ",
                c.op->opcode, " and another");
    turn.ready = std::max(turn.ready, rank.now);
    ++turn.arrived;
    if (r == 0) record(Event::Start, 0, c, rank.now, rank.now, number);
    if (number == group.next) begin_turn(c.communicator, rank.groups[c.communicator]);
  }

  // false: not yet
  bool wait(size_t r, const Task& task) {
    Rank& rank = ranks_[r];
    const Collective& c = program_.collectives[task.collective];
    Group& group = groups_[c.communicator][rank.groups[c.communicator]];
    if (task.previous && rank.pass < 2) return true;  // the first micro-batch
    const int64_t number = turn_of(c, rank.pass - (task.previous ? 1 : 0));
    const Turn& turn = group.turns.at(static_cast<size_t>(number));
    if (turn.end < 0) {
      rank.waits_for = number;
      rank.waits_on = c.communicator;
      return false;
    }
    rank.waits_for = -1;
    const double end = std::max(rank.now, turn.end);
    if (r == 0) {
      out_.exposed_seconds[c.kind] += end - rank.now;
      record(Event::Wait, 0, c, rank.now, end, number);
      if (record_ == Record::Events) out_.events.back().position = task.position;
    }
    rank.now = end;
    rank.busy_until = std::max(rank.busy_until, turn.end);
    return true;
  }

  // Begins the next turn of a group if all its ranks have come.
  void begin_turn(size_t communicator, size_t g) {
    Group& group = groups_[communicator][g];
    const auto index = static_cast<size_t>(group.next);
    if (group.under_way || index >= group.turns.size()) return;
    Turn& turn = group.turns[index];
    if (turn.arrived < group.ranks.size()) return;
    group.under_way = true;
    turn.begin = std::max(turn.ready, group.free_at);
    moments_.push({.at = turn.begin + program_.collectives[turn.collective].cost.latency,
                   .order = ++planned_,
                   .moves = true,
                   .communicator = communicator,
                   .group = g,
                   .finish = {}});
  }

  void begin_transfer(const Moment& moment) {
    const Group& group = groups_[moment.communicator][moment.group];
    const Turn& turn = group.turns[static_cast<size_t>(group.next)];
    const size_t transfer = links_.begin(group.ranks, program_.collectives[turn.collective].cost, moment.at, changed_);
    if (transfer_of_.size() <= transfer) transfer_of_.resize(transfer + 1);
    transfer_of_[transfer] = {moment.communicator, moment.group};
    plan_changed();
  }

  void end_transfer(const Links::Finish& finish) {
    const auto [communicator, g] = transfer_of_[finish.transfer];
    links_.end(finish.transfer, finish.at, changed_);
    plan_changed();
    Group& group = groups_[communicator][g];
    const int64_t number = group.next++;
    Turn& turn = group.turns[static_cast<size_t>(number)];
    const Collective& c = program_.collectives[turn.collective];
    turn.end = group.free_at = finish.at;
    group.under_way = false;
    if (group.ranks[0] == 0) {
      record(Event::Collective, 1 + communicator, c, turn.begin, turn.end, number);
      out_.communication_seconds[c.kind] += turn.end - turn.begin;
      out_.contention_seconds[c.kind] += std::max(0.0, turn.end - turn.begin - c.cost.seconds());
      out_.communicated_bytes[c.kind] += c.bytes;
    }
    out_.step_seconds = std::max(out_.step_seconds, finish.at);
    begin_turn(communicator, g);
    for (const size_t r : group.ranks)
      if (ranks_[r].waits_for == number && ranks_[r].waits_on == communicator) advance(r);
  }

  void plan_changed() {
    for (const Links::Finish& finish : changed_)
      moments_.push({.at = finish.at, .order = ++planned_, .finish = finish});
    changed_.clear();
  }

  void record(Event::Kind kind, size_t lane, const Collective& c, double begin, double end, int64_t number) {
    if (record_ == Record::Passes) return;
    out_.events.push_back(
        {.kind = kind,
         .lane = lane,
         .op = c.op,
         .position = c.position,
         .begin = begin,
         .end = end,
         .bytes = c.bytes,
         .flow = number * static_cast<int64_t>(program_.communicators.size()) + static_cast<int64_t>(c.communicator)});
  }

  const RankProgram& program_;
  const Record record_;
  std::vector<Mark> marks_;
  std::vector<Part> passes_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Group>> groups_;  // by communicator
  Links links_;
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> moments_;
  uint64_t planned_ = 0;
  std::vector<Links::Finish> changed_;
  std::vector<std::pair<size_t, size_t>> transfer_of_;  // by handle of links_: communicator and group
  Simulation out_;
};

}  // namespace

double Simulation::exposed() const {
  double sum = 0;
  for (const auto& [kind, seconds] : exposed_seconds) sum += seconds;
  return sum;
}

std::string event_name(const Simulation& simulation, const Event& event) {
  const std::string name = ir::name_of(*event.op);
  if (event.kind == Event::Start) return "start " + name;
  if (event.kind == Event::Wait) return "wait for " + name;
  if (event.kind == Event::Collective) return name;
  const int kernel = simulation.kernels.kernel_of[static_cast<size_t>(event.position)];
  const size_t ops = simulation.kernels.kernels[static_cast<size_t>(kernel)].ops.size();
  return ops > 1 ? concat(name, " and ", ops - 1, " more") : name;
}

Simulation simulate(const ir::Graph& graph, const cost::Machine& machine, const SimulateOptions& options) {
  if (graph.micro_batches > kMaxMicroBatches)
    throw UserError(concat("the step has ", with_commas(graph.micro_batches), " micro-batches\n  expected at most ",
                           with_commas(kMaxMicroBatches), " in the simulator, which runs one after the other"));
  RankProgram program =
      make_program(graph, machine, options.execution, options.system.value_or(cost::usual_system(options.execution)),
                   options.step_gathers, options.composites, options.edges, options.reductions);
  if (options.reduce_bucket > 0) merge_reductions(program, options.reduce_bucket, machine);
  Simulation out = Simulator(program, DeviceMesh(graph.mesh), graph.micro_batches, options, Record::Events).run();
  for (const auto& op : graph.ops())
    out.flops += cost::flops_of(*op) * static_cast<double>(ir::is_repeated(*op) ? graph.micro_batches : 1);
  out.kernels = std::move(program.kernels);
  return out;
}

ProgramTimes time_program(const RankProgram& program, int64_t micro_batches) {
  // From the second on, micro-batches take equally long.
  const int64_t timed = std::min<int64_t>(micro_batches, 4);
  Simulator simulator(program, DeviceMesh(std::vector<MeshAxis>{}), timed, {}, Record::Passes);
  const Simulation s = simulator.run();
  ProgramTimes out = {s.step_seconds, s.compute_seconds, s.exposed_seconds};
  if (timed == micro_batches) return out;
  const auto& second = simulator.marks()[2];  // after Head and two micro-batches
  const auto& third = simulator.marks()[3];
  const auto more = static_cast<double>(micro_batches - timed);
  out.step_seconds += more * (third.at - second.at);
  out.compute_seconds += more * (third.compute - second.compute);
  for (auto& exposed : out.exposed_seconds) {
    const auto until = [&](const auto& mark) {
      const auto found = mark.exposed.find(exposed.first);
      return found == mark.exposed.end() ? 0.0 : found->second;
    };
    exposed.second += more * (until(third) - until(second));
  }
  return out;
}

}  // namespace sfsdp::sim
