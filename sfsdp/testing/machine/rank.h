// SPDX-License-Identifier: BSD-3-Clause
// One rank of the plan machine: its memory, and what its kernels do to it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/plan/places.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/machine/measured_reads.h"
#include "sfsdp/testing/machine/prepared.h"
#include "sfsdp/testing/machine/program.h"

namespace sfsdp::plan::machine {

using ir::interp::Array;

// A rank's memory, by region.
using Memory = std::array<std::vector<std::byte>, kRegions>;

// What the ops of a kernel make, in order, each result by itself.
using Made = std::vector<std::pair<const ir::Value*, Array>>;

// What has been measured of a plan's ops, for all ranks and runs.
using MeasuredOps = std::map<const ir::Op*, MeasuredReads>;

// Memory begins as bytes that no program wrote, but for constants, or as another plan has left state and window.
class Rank {
 public:
  //   prepared, other: must outlive the rank
  //   given: what constants hold
  //   left:  by another plan on the same state; nullptr: nothing
  Rank(const Prepared& prepared, int64_t rank, const ir::interp::Inputs& given, const ir::interp::OtherKernels& other,
       uint64_t seed, const Memory* left = nullptr);

  // throws: UserError where the value has no place in memory
  Array load(const ir::Value& value) const;
  void store(const ir::Value& value, const Array& array, std::span<const char> which = {});
  // What the host writes before a step, and before a micro-batch. The seed is there from the begin.
  void store_step(double lr, int64_t step);
  void store_micro_batch(int64_t micro_batch);
  const Memory& memory() const { return memory_; }
  const Prepared& prepared() const { return prepared_; }
  bool is_in_memory(const ir::Value& value) const { return places_.of(&value).has_value(); }

  // Runs the ops of a kernel on what memory holds now, and writes nothing.
  Made evaluate(const TaskRun& run) const { return evaluate(run, nullptr); }

  // Puts made-up numbers where the kernel reads floating ones.
  void make_up(const TaskRun& run);

  // Whether what the two take of memory has bytes in common.
  bool meet(const ir::Value& value, const ir::Value& other) const;
  // Whether what `written` takes of memory is a part of what the kernel reads.
  bool reads_where_written(const TaskRun& run, const ir::Value& written) const;
  // Whether each op of the kernel that does so finds there, element for element, the places of `written`.
  bool reads_at_its_place(const TaskRun& run, const ir::Value& written) const;
  // Measures these ops of the kernel, each when first asked for, and `measured` keeps it.
  void measure(const TaskRun& run, const std::set<const ir::Op*>& ops, MeasuredOps& measured) const;

  // The bytes of a value, from its first element on.
  std::vector<std::byte> save(const ir::Value& value) const;
  // Puts the elements that `which` names back to what save() has found.
  void put_back(const ir::Value& value, std::span<const std::byte> saved, std::span<const char> which);

 private:
  struct Bytes {
    Region region;
    int64_t begin, end;
  };
  // throws: UserError where a constant is given other bits than the plan's text says
  void check_bits(size_t entry, const ir::interp::Inputs& given) const;
  Bytes bytes_of(const ir::Value& value) const;
  std::byte* at(const ir::Value& value) const;
  ir::interp::HostNumbers host_numbers() const;
  // Tells `observe`, if there is one, what each op is given.
  using Observer = std::function<void(const ir::Op&, const std::vector<Array>& operands)>;
  Made evaluate(const TaskRun& run, const Observer& observe) const;
  Array get(const ir::Value& value, const std::map<const ir::Value*, Array>& made) const;
  std::vector<Array> run_op(const ir::Op& op, std::vector<Array> operands) const;
  // An op that is the same on all ranks.
  std::vector<Array> run_whole(const ir::Op& op, const std::vector<Array>& operands) const;

  const Prepared& prepared_;
  const StepPlan& plan_;
  const Places& places_;
  const int64_t rank_;
  const ir::interp::OtherKernels& other_;
  mutable Memory memory_;
};

}  // namespace sfsdp::plan::machine
