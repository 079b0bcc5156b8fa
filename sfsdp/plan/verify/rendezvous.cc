// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/rendezvous.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op;

// What a program does as others see it.
struct Step {
  const Op* op = nullptr;
  bool waits = false;
  int communicator = -1;  // of a start: which
  int64_t turn = 0;       // of it
};

struct Program {
  std::vector<Step> steps;
  std::vector<std::vector<std::string>> axes;  // by communicator
  std::vector<std::vector<const Op*>> calls;   // by communicator and turn
};

Program read(const Graph& graph) {
  Program program;
  std::unordered_map<const Op*, Step> started;
  for (const auto& op : graph.ops()) {
    if (ir::is_collective(*op)) {
      const auto axes = ir::axes_of(*op).value_or(std::vector<std::string>{});
      const auto c = static_cast<size_t>(std::ranges::find(program.axes, axes) - program.axes.begin());
      if (c == program.axes.size()) {
        program.axes.push_back(axes);
        program.calls.emplace_back();
      }
      const Step start{op.get(), false, static_cast<int>(c), static_cast<int64_t>(program.calls[c].size())};
      program.calls[c].push_back(op.get());
      program.steps.push_back(start);
      started[op.get()] = start;
      if (!ir::is_start(*op)) {
        program.steps.push_back(start);
        program.steps.back().waits = true;
      }
    } else if (ir::is_wait(*op)) {
      program.steps.push_back(started.at(op->operands[0]->producer()));
      program.steps.back().op = op.get();
      program.steps.back().waits = true;
    }
  }
  return program;
}

// One group of ranks on one axis list.
struct Group {
  std::vector<int64_t> ranks;
  std::vector<size_t> arrived;  // by turn
  int64_t done = 0;             // turns that are over
};

struct Groups {
  std::vector<Group> all;
  std::vector<size_t> of_rank;
};

class Run {
 public:
  Run(const DeviceMesh& mesh, const std::function<const Graph&(int64_t)>& program_of) : mesh_(mesh) {
    std::map<const Graph*, size_t> known;
    for (int64_t r = 0; r < mesh.world_size(); ++r) {
      const Graph& graph = program_of(r);
      const auto [place, fresh] = known.emplace(&graph, programs_.size());
      if (fresh) programs_.push_back(read(graph));
      program_of_.push_back(place->second);
    }
  }

  std::string check() {
    // Ranks of one program cannot wait for ever: whoever has done the fewest steps goes on, as all others have started what it
    // waits for. A text of 1 KiB may name a million of them.
    if (programs_.size() == 1) return "";
    at_.assign(program_of_.size(), 0);
    for (int64_t r = 0; r < mesh_.world_size(); ++r) ready_.push_back(r);
    while (!ready_.empty()) {
      const int64_t rank = ready_.back();
      ready_.pop_back();
      if (std::string wrong = advance(rank); !wrong.empty()) return wrong;
    }
    for (int64_t r = 0; r < mesh_.world_size(); ++r)
      if (at_[static_cast<size_t>(r)] < program(r).steps.size()) return stuck();
    return "";
  }

 private:
  const Program& program(int64_t rank) const { return programs_[program_of_[static_cast<size_t>(rank)]]; }

  Group& group_of(int64_t rank, const std::vector<std::string>& axes) {
    const auto [place, fresh] = groups_.try_emplace(axes);
    Groups& groups = place->second;
    if (fresh) {
      groups.of_rank.resize(program_of_.size());
      for (const auto& ranks : mesh_.groups(axes)) {
        for (const int64_t r : ranks) groups.of_rank[static_cast<size_t>(r)] = groups.all.size();
        groups.all.push_back({.ranks = ranks, .arrived = {}});
      }
    }
    return groups.all[groups.of_rank[static_cast<size_t>(rank)]];
  }

  std::string advance(int64_t rank) {
    const Program& mine = program(rank);
    for (size_t& at = at_[static_cast<size_t>(rank)]; at < mine.steps.size(); ++at) {
      const Step& step = mine.steps[at];
      const auto& axes = mine.axes[static_cast<size_t>(step.communicator)];
      Group& group = group_of(rank, axes);
      if (step.waits) {
        if (group.done > step.turn) continue;
        return "";  // woken when the turn is over
      }
      if (programs_.size() > 1)
        if (std::string wrong = compare(rank, step, group); !wrong.empty()) return wrong;
      const auto turn = static_cast<size_t>(step.turn);
      if (group.arrived.size() <= turn) group.arrived.resize(turn + 1);
      ++group.arrived[turn];
      const int64_t before = group.done;
      while (static_cast<size_t>(group.done) < group.arrived.size() &&
             group.arrived[static_cast<size_t>(group.done)] == group.ranks.size())
        ++group.done;
      if (group.done > before)
        for (const int64_t other : group.ranks)
          if (other != rank) ready_.push_back(other);
    }
    return "";
  }

  // The call of this rank and those that others of the group make in the same turn.
  std::string compare(int64_t rank, const Step& step, const Group& group) const {
    const auto& axes = program(rank).axes[static_cast<size_t>(step.communicator)];
    for (const int64_t other : group.ranks) {
      const Program& theirs = program(other);
      if (&theirs == &program(rank)) continue;
      const auto c = static_cast<size_t>(std::ranges::find(theirs.axes, axes) - theirs.axes.begin());
      const auto turn = static_cast<size_t>(step.turn);
      if (c == theirs.axes.size() || turn >= theirs.calls[c].size()) continue;
      const Op& call = *theirs.calls[c][turn];
      if (call_text(call) == call_text(*step.op)) continue;
      return concat("call ", step.turn + 1, " over ", join(axes, ","), " is ", call_text(*step.op), " (%",
                    step.op->result()->name(), ") on rank ", rank, ", ", call_text(call), " (%", call.result()->name(),
                    ") on rank ", other);
    }
    return "";
  }

  std::string stuck() {
    std::string text = "these ranks would wait for ever:";
    int named = 0;
    for (int64_t r = 0; r < mesh_.world_size() && named < 4; ++r) {
      const Program& mine = program(r);
      const size_t at = at_[static_cast<size_t>(r)];
      if (at >= mine.steps.size()) continue;
      const Step& step = mine.steps[at];
      const auto& axes = mine.axes[static_cast<size_t>(step.communicator)];
      const Group& group = group_of(r, axes);
      text += concat("\n    rank ", r, " at %", step.op->result()->name(), ", for call ", step.turn + 1, " over ",
                     axes.empty() ? "no axis" : join(axes, ","), "; of it ", group.done, " are done");
      ++named;
    }
    return text;
  }

  const DeviceMesh& mesh_;
  std::vector<Program> programs_;
  std::vector<size_t> program_of_;  // by rank
  std::vector<size_t> at_;
  std::vector<int64_t> ready_;
  std::map<std::vector<std::string>, Groups> groups_;
};

}  // namespace

std::string check_rendezvous(const DeviceMesh& mesh, const std::function<const Graph&(int64_t)>& program_of) {
  return Run(mesh, program_of).check();
}

}  // namespace sfsdp::plan
