// SPDX-License-Identifier: BSD-3-Clause
// Texts that are almost right, through all that reads a graph.
#pragma once

#include <cstdint>
#include <string>

namespace sfsdp::testing {

struct FuzzOutcome {
  bool verified = false;  // the text made it past parser and verifier
  std::string finding;    // "" or what must not happen: an internal error, a foreign exception, a text that changes
  std::string text;       // the input
};

// One valid text, some of its tokens and lines changed, is parsed, verified, printed, rewritten by random passes, planned
// and simulated. The same for the same seed. A mistake that is said (UserError, diagnostics) is no finding; a crash or
// an endless loop is the caller's to see.
FuzzOutcome fuzz_ir(uint64_t seed);

}  // namespace sfsdp::testing
