// SPDX-License-Identifier: BSD-3-Clause
// The file of `sfsdp simulate --sweep`: a JSON object a line, each one configuration or the product of its ranges.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::tools {

struct SweepOption {
  std::string name;   // "training.local_batch_size": an option without its dashes
  std::string value;  // as on the command line
  std::string json;   // as in the file
};

struct SweepCase {
  size_t line = 0;  // of the file, from 1
  std::vector<SweepOption> options;
  std::string error;  // what is wrong with its line; "": nothing
};

inline constexpr size_t kMaxSweepCases = 1000000;

// Objects in objects are sections: {"training": {"seq_len": 4096}} is {"training.seq_len": 4096}. A list stands for all of
// its values; those of one line are multiplied, the last one varying fastest. A list in a list is one value, as a,b. null
// is None. Empty lines and those that begin with # are none.
//   file: for messages
//   throws: UserError for more than kMaxSweepCases; a line that is wrong becomes a case with an error
std::vector<SweepCase> read_sweep(std::string_view text, const std::string& file);

}  // namespace sfsdp::tools
