// SPDX-License-Identifier: BSD-3-Clause
// metrics.jsonl: a line per step and per validation, no step twice.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/train/append_file.h"
#include "sfsdp/train/metrics.h"

namespace sfsdp::train {

// Each line is one write, so what was written survives a crash of the process.
class MetricsFile {
 public:
  // A run that goes on after `last_step` cuts the lines of later steps, and a half line at the end: these steps are about
  // to be trained again. 0: nothing of the file stays; see move_aside.
  //   say:    is told when lines are dropped on a full disk, and when no more are; see AppendFile
  //   throws: UserError if the file cannot be opened
  MetricsFile(const std::string& path, int64_t last_step, Say say);
  void write(const StepMetrics& metrics) { file_.write(json_line(metrics) + "\n"); }
  void write(const ValidationMetrics& metrics) { file_.write(json_line(metrics) + "\n"); }
  int64_t dropped() const { return file_.dropped(); }

 private:
  AppendFile file_;
};

// Gives metrics.jsonl and run.jsonl that an earlier run left in `folder` other names, metrics.1.jsonl and run.1.jsonl or the
// next number that both are free of.
//   returns: the new name of metrics.jsonl; "" if it was not there or empty, then nothing is renamed
//   throws:  UserError if one cannot be renamed
std::string move_aside(const std::string& folder);

}  // namespace sfsdp::train
