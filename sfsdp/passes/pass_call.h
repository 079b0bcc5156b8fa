// SPDX-License-Identifier: BSD-3-Clause
// A pass with its options, and the spelling that `sfsdp opt --pass`, pipelines and the tests share:
// "sink_waits depth=1, dead_code".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct PassCall {
  const PassInfo* info = nullptr;
  OptionValues options;
};

// The pass with these options, the others at their fallbacks.
//   throws: UserError for an unknown pass or option, a value of the wrong kind or out of range
PassCall make_call(std::string_view name, const OptionValues& options = {});
template <class Options>
PassCall make_call(std::string_view name, const Options& options) {
  return make_call(name, values_of(options));
}
// The same from text.
std::vector<PassCall> parse_passes(std::string_view text);
// "sink_waits depth=1 next=before": with every option; parse_passes reads it.
std::string to_string(const PassCall& call);

// The calls without those of these passes; a pass that is not among the calls is no mistake. The order stays.
//   throws: UserError for an unknown pass, and one that a call which stays needs
std::vector<PassCall> without(std::vector<PassCall> calls, const std::vector<std::string>& disabled);

}  // namespace sfsdp::passes
