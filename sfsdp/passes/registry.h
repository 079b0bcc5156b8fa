// SPDX-License-Identifier: BSD-3-Clause
// All passes by name, and the spelling that `sfsdp opt --pass` and the tests share:
// "sink_waits max_pending=1, dead_code".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

std::span<const PassInfo> all_passes();
const PassInfo* find_pass(std::string_view name);  // nullptr: none

struct PassCall {
  const PassInfo* info = nullptr;
  OptionValues options;
};

// throws: UserError for an unknown pass or option, a value of the wrong kind or out of range
std::vector<PassCall> parse_passes(std::string_view text);

}  // namespace sfsdp::passes
