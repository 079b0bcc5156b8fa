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
  //   throws: UserError if the file cannot be opened or written
  MetricsFile(const std::string& path, int64_t last_step);
  void write(const StepMetrics& metrics) { file_.write(json_line(metrics) + "\n"); }
  void write(const ValidationMetrics& metrics) { file_.write(json_line(metrics) + "\n"); }

 private:
  AppendFile file_;
};

// Gives what an earlier run left at outputs/metrics.jsonl another name, outputs/metrics.1.jsonl or the next that is free.
//   returns: the new name; "" if there was no file, or an empty one
//   throws:  UserError if it cannot be renamed
std::string move_aside(const std::string& path);

}  // namespace sfsdp::train
