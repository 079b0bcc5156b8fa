// SPDX-License-Identifier: BSD-3-Clause
// Programs that are wrong in one place, for plan/verify/layouts.h.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/verify/layouts.h"

namespace sfsdp::testing {

struct LayoutMutant {
  const char *what, *from, *to, *expected;  // expected: a part of what verify_layouts says
};

// `sound` is sound, and not with any of the changes, each alone.
inline void expect_refused(const std::string& sound, const std::vector<LayoutMutant>& mutants) {
  CHECK(plan::verify_layouts(ir::parse_or_throw(sound)) == "");
  for (const LayoutMutant& mutant : mutants) {
    CAPTURE(mutant.what);
    std::string text = sound;
    const size_t at = text.find(mutant.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string_view(mutant.from).size(), mutant.to);
    const std::string wrong = plan::verify_layouts(ir::parse_or_throw(text));
    CHECK_MESSAGE(wrong.find(mutant.expected) != std::string::npos, "\"", wrong, "\" lacks ", mutant.expected);
  }
}

}  // namespace sfsdp::testing
