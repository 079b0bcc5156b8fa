// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/print_ir.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tune/simulated.h"

namespace sfsdp::tools {
namespace {

// "" where the option is not given, "stderr" where it has no folder.
std::string destination(const Request& request, const std::string& name) {
  if (!request.has(name)) return "";
  const std::string folder = request.get(name);
  return folder.empty() ? "stderr" : folder;
}

void list_passes(std::ostream& out) {
  for (const passes::PassInfo* pass : passes::all_passes()) {
    out << pass->name << ": " << pass->help
        << (pass->exactness == passes::Exactness::ReordersSums ? " (reorders sums)\n" : " (exact)\n");
    for (const passes::PassOption& option : pass->options)
      out << "  " << option.name << '=' << option.fallback << ": " << option.help << '\n';
  }
}

std::string read(const std::string& file) {
  std::ostringstream text;
  if (file == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream stream(file);
  if (!stream) throw UserError(concat("cannot read ", file, "\n  expected a file of IR text, or -"));
  text << stream.rdbuf();
  return text.str();
}

// The graph has been verified. A line in all, then one per opcode without a rule.
void print_verified(const ir::Graph& graph, std::ostream& err) {
  std::ostringstream lines;
  int64_t unchecked = 0;
  for (const std::string& opcode : ir::unchecked_opcodes(graph)) {
    const auto count = std::ranges::count(graph.ops(), opcode, [](const auto& op) { return op->opcode.str(); });
    lines << "  " << opcode << ": " << count << " ops, no rule in sfsdp/ir/atenset.def\n";
    unchecked += count;
  }
  err << "verified: " << graph.ops().size() << " ops, " << unchecked << " of unknown types\n" << lines.str();
}

}  // namespace

int run_opt(const Request& request, std::ostream& out, std::ostream& err) {
  if (request.has("list")) {
    list_passes(out);
    return 0;
  }
  if (request.own.operands.empty())
    throw UserError("FILE is missing\n  expected a file of IR text, or - for standard input");
  const std::string& file = request.own.operands.front();
  ir::ParseResult parsed = ir::parse(read(file), file == "-" ? "<stdin>" : file);
  if (!parsed.ok()) throw UserError(ir::to_string(parsed.diagnostics));
  ir::verify_or_throw(parsed.graph, &parsed.locations);
  std::vector<std::string> disabled;
  if (request.has("disable-pass")) disabled = split(join(request.all("disable-pass"), ","), ',');
  const auto calls = passes::without(passes::parse_passes(join(request.all("pass"), ", ")), disabled);
  passes::RunOptions options{
      .observer = passes::print_ir({destination(request, "print-ir-after-all"), destination(request, "print-ir-diff")},
                                   out, err)};
  if (request.has("metrics") && request.has("machine"))
    options.measure = [machine = cost::load_machine(request.get("machine"))](const ir::Graph& graph) {
      return tune::simulated(graph, machine);
    };
  const auto reports = passes::run_passes(parsed.graph, calls, options);
  out << ir::print(parsed.graph);
  if (request.has("verify")) print_verified(parsed.graph, err);
  if (!request.has("metrics")) return 0;
  for (const passes::PassReport& report : reports) err << passes::to_string(report) << '\n';
  return 0;
}

}  // namespace sfsdp::tools
