// SPDX-License-Identifier: BSD-3-Clause
// What a start of a run goes on from: a choice among what is in the folder, by what the configuration asks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/train/checkpoint/store.h"

namespace sfsdp::train::checkpoint {

struct ResumeRequest {
  std::string folder;
  int64_t load_step = -1;            // -1: the newest
  std::vector<std::string> exclude;  // exclude_from_loading
  std::string launch;                // of this start; "": it is not known, and so no checkpoint is its own
  int64_t total_steps = 0;           // of the run
};

struct Candidate {
  std::string path;
  bool model_only = false;  // what is to be read of it
  bool keys_hold = true;    // load_step and exclude_from_loading; not for what their own launch has saved
  std::string note = {};    // for the log, where it is the one that is taken
};

struct Resume {
  std::vector<Candidate> candidates;  // best first
  std::vector<std::string> skipped;   // for the log: what cannot be gone on from, and why
};

// Ends the refusal of a folder whose checkpoints are all damaged: a run never begins anew there by itself.
inline constexpr std::string_view kBeginAnew =
    "to begin anew set another checkpoint.folder, or move what this one holds elsewhere";

// What was set aside counts as refused: a batch system that starts a refused run again is refused again.
// Where the launch has saved under load_step or exclude_from_loading, these checkpoints come first, and the keys do not
// hold again: else each restart would go back to the same step, or begin the same part anew. Then all others by step.
//   listed: of the folder, newest step first
//   throws: UserError: load_step is not there, or nothing that is there can be gone on from; PassingError where one of
//           them could not be read
Resume find_candidates(const std::vector<Listed>& listed, const ResumeRequest& request);

}  // namespace sfsdp::train::checkpoint
