// SPDX-License-Identifier: BSD-3-Clause
// What runs beside what: one compute lane, which runs the kernels in order, and a lane per communicator and channel, which runs its collectives in
// the order of their starts. Lanes wait for each other by edges alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/part.h"

namespace sfsdp::plan {

// One communicator: its collectives run one after the other, each from its start to its wait.
struct CommLane {
  std::vector<std::string> axes;
  int64_t channel = 0;                          // of several lanes over the same axes
  std::vector<const ir::Op*> collectives = {};  // starts, and collectives that block, in order
};

std::vector<CommLane> communicators(const ir::Graph& graph);
// Bytes that the largest of its all_to_alls is copied to and from: it sends and receives what lies together in memory, rank after
// rank, as it lies where the dimension leads.
int64_t staging_bytes(const CommLane& lane);
// "compute", "dp_shard/0", "dp_replicate,dp_shard/0".
std::string name_of(const CommLane& lane);

// What runs on a lane: a kernel by its number (cost/kernels.h), a collective by its place.
struct Task {
  size_t lane = 0;  // 0: compute; 1 + i: the i-th communicator
  size_t number = 0;
  bool operator==(const Task&) const = default;
  bool operator<(const Task& other) const { return std::tie(lane, number) < std::tie(other.lane, other.number); }
};

// Each run of `to` begins after the latest run of `from` that the program has before it: in this pass over the graph, or, where
// `from` stands after `to`, in the micro-batch or the step before.
struct Edge {
  Task from, to;
  bool operator==(const Edge&) const = default;
  bool operator<(const Edge& other) const { return std::tie(from, to) < std::tie(other.from, other.to); }
};

// What the program of a rank does, in its order.
struct Action {
  enum Kind : uint8_t {
    Run,    // a kernel
    Start,  // of a collective
    Wait,   // until it is done
    Load,   // the host writes region io, before each micro-batch
    Again,  // a trip of a loop begins that is not its first
  } kind = Run;
  Task task = {};  // none of Load; of Again: the loop's
};
// By part of the step, what it does there.
using Actions = std::array<std::vector<Action>, ir::kParts>;
//   blocks: of a collective or a start, whether the program goes on only once it is over; none does by itself
//   trips: of each loop (ir/loops.h). Its `loop` and its `end` are tasks of the compute lane, which run without a trip too:
//          the first reads how many trips there are and tells the other lanes, the second comes after all that the body does.
Actions actions_of(const ir::Graph& graph, const std::vector<CommLane>& lanes,
                   const std::function<bool(const ir::Op&)>& blocks = nullptr, int64_t trips = 1);
// One step's actions. It runs forward, loss and backward of at most three micro-batches: the first one, one that stands
// for those between, and the last one.
std::vector<Action> program_of(const ir::Graph& graph, const std::vector<CommLane>& lanes,
                               const std::function<bool(const ir::Op&)>& blocks = nullptr, int64_t trips = 1);
// The loop whose body a task is in, of tasks that are in one.
std::map<Task, const ir::Op*> loops_of_tasks(const ir::Graph& graph, const std::vector<CommLane>& lanes);

// Numbers of trips that stand for all others. A loop's two tasks are ordered with all that is outside of the body, so what a body
// does meets only its own trips, and what a trip leaves to the next one, the second leaves to the third in the same places.
// {1} where the graph has no loop.
std::vector<int64_t> trips_to_check(const ir::Graph& graph);

// The edges that the program needs and that the order of a lane and other edges do not imply, without a trip or with some.
// Sorted.
std::vector<Edge> make_edges(const ir::Graph& graph, const std::vector<CommLane>& lanes,
                             const std::function<bool(const ir::Op&)>& blocks = nullptr);

// When the host may write region io: there is one batch of a micro-batch in it, and one learning rate, step and seed. On each
// lane, the tasks that read it first and last in a micro-batch, in the last one, and after it.
struct HostLoad {
  std::vector<Task> before;  // wait for it
  std::vector<Task> after;   // it waits for their latest runs
  bool operator==(const HostLoad&) const = default;
};
HostLoad host_load(const ir::Graph& graph, const std::vector<CommLane>& lanes);

}  // namespace sfsdp::plan
