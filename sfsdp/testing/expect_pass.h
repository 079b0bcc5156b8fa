// SPDX-License-Identifier: BSD-3-Clause
// The test of a pass in one call: text in, text out, and both mean the same on every simulated rank.
#pragma once

#include <string>
#include <string_view>

#include "sfsdp/ir/graph.h"

namespace sfsdp::testing {

// Parse, verify, run, verify, compare the text, check the returned bool, run again (nothing may change), interpret
// before and after with 1 to 3 micro-batches: bitwise for Exact, within a derived bound for ReordersSums. Texts may be indented as a whole.
// `passes`: as for `sfsdp opt --pass`, e.g. "sink_waits depth=2".
void expect_pass(std::string_view passes, std::string_view before, std::string_view after);
void expect_unchanged(std::string_view passes, std::string_view text);
// The text is broken, and one diagnostic of parser or verifier holds `part`.
void expect_diagnostic(std::string_view text, std::string_view part);

// What the above report, "" if all is well: so that the tests' own tools can be tested.
std::string check_pass(std::string_view passes, std::string_view before, std::string_view after);
// Interprets both graphs on all ranks; "" if outputs and carried values agree.
enum class Agreement { Bitwise, UpToOrderOfSums };
std::string check_same_meaning(const ir::Graph& before, const ir::Graph& after, Agreement agreement);

// Without the indentation that all lines share.
std::string dedent(std::string_view text);

}  // namespace sfsdp::testing
