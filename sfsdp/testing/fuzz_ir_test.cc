// SPDX-License-Identifier: BSD-3-Clause
// SFSDP_FUZZ_INPUTS and SFSDP_FUZZ_SEED in the environment: how many inputs, and the first one's seed.
#include "sfsdp/testing/fuzz_ir.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>

namespace sfsdp::testing::fuzz_ir_test {
namespace {

uint64_t number_from(const char* variable, uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

TEST_CASE("fuzz: whatever parser and verifier let through is handled, or refused with a reason") {
  const uint64_t first = number_from("SFSDP_FUZZ_SEED", 0), inputs = number_from("SFSDP_FUZZ_INPUTS", 1000);
  uint64_t verified = 0;
  std::set<std::string> findings;  // the first line of each, once
  for (uint64_t seed = first; seed < first + inputs; ++seed) {
    const FuzzOutcome outcome = fuzz_ir(seed);
    verified += outcome.verified ? 1 : 0;
    if (outcome.finding.empty()) continue;
    const std::string line = outcome.finding.substr(0, outcome.finding.find('\n'));
    if (findings.insert(line.substr(0, line.find('('))).second)
      FAIL_CHECK("seed ", seed, ": ", outcome.finding, "\n", outcome.text);
  }
  MESSAGE(inputs, " inputs, of which ", verified, " verified");
  CHECK(verified * 40 > inputs);  // else the changes are too wild to say anything
}

}  // namespace
}  // namespace sfsdp::testing::fuzz_ir_test
