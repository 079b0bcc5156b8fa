// SPDX-License-Identifier: BSD-3-Clause
// The text of a graph. What is done with a graph that verifies: sfsdp/testing/fuzz_ir.h.
#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/random_graph.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) {
  const ir::ParseResult parsed = ir::parse(bytes, "fuzz.ir");
  if (!parsed.ok() || !ir::verify(parsed.graph, &parsed.locations).empty()) return;
  const std::string text = ir::print(parsed.graph);
  SFSDP_CHECK(ir::print(ir::parse_or_throw(text)) == text, "the printed text changes when read:\n", text);
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (uint64_t seed = 0; seed < 8; ++seed) texts.push_back(ir::print(testing::random_program(seed)));
  return texts;
}

SFSDP_FUZZ_TARGET(graph, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
