// SPDX-License-Identifier: BSD-3-Clause
// What each byte range of a plan's memory holds as its tasks run: a value, who wrote it and who has read it. It says what is wrong
// with a read or a write, by clocks (lane_clocks.h).
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/lane_clocks.h"

namespace sfsdp::plan {

// Bytes [its key, end) of a region.
struct Content {
  int64_t end = 0;
  const ir::Value* value = nullptr;  // what they hold
  Run writer;                        // number 0: the host, between steps
  Clock readers;                     // by lane, the latest run that reads it
};

// Begins empty. Errors are kept in the order in which they are found, at most ten.
class MemoryModel {
 public:
  // Where values lie, by the plan's buffers, inside lines and donates=. Both must outlive the model.
  MemoryModel(const StepPlan& plan, const LaneClocks& clocks);

  const Buffer* buffer_of(const ir::Value* value) const { return buffer_of_[value]; }
  // What collectives touch lies in the window; what a pack does not copy, in its result.
  void check_places();

  // The value is there before the first task.
  void place(const ir::Value& value);
  void read(const ir::Value& value, const ir::Op& reader, const Run& run, const Clock& clock);
  // Writes over whatever lies there; what is left of it holds nothing that can be read. Without a clock nothing is checked.
  void replace(const Buffer& buffer, const ir::Value& value, const Run& run, const Clock* clock);
  // Whether it is there at the step's end.
  void expect(const ir::Value& value, const std::string& why);
  // nullptr: the buffer does not hold the value. Valid until the next place or replace.
  Content* holding(const Buffer& buffer, const ir::Value& value);
  std::string held_at(const Buffer& buffer) const;

  void error(std::string text);
  bool is_full() const;
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  void place_inside(const Inside& inside);
  void check_window();
  void check_packs();

  const StepPlan& plan_;
  const LaneClocks& clocks_;
  std::deque<Buffer> inside_;  // what lies inside others, as if it had a buffer
  ir::ValueTable<const Buffer*> buffer_of_;
  std::map<std::pair<Region, int64_t>, Content> contents_;  // by region and begin
  std::vector<std::string> errors_;
};

// "window 256"
std::string place_of(const Buffer& buffer);

}  // namespace sfsdp::plan
