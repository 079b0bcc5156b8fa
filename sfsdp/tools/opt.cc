// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/opt.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
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
#include "sfsdp/tune/simulated.h"

namespace sfsdp::tools {
namespace {

constexpr const char* kUsage =
    "usage: sfsdp opt FILE [--pass NAME[ OPTION=VALUE…][,NAME…]]… [--disable-pass NAME[,NAME…]] [--metrics]\n"
    "                 [--machine FILE] [--verify]\n"
    "                 [--print-ir-after-all[=FOLDER]] [--print-ir-diff[=FOLDER]] [--list]\n"
    "  FILE                  IR text, - for standard input\n"
    "  --pass                passes to run, in order; without any the graph is checked and printed\n"
    "  --disable-pass        leaves these out of the passes above\n"
    "  --metrics             what each pass did, to standard error\n"
    "  --machine             with --metrics: step time, exposed communication and peak on this machine too\n"
    "  --verify              how many ops the verifier checked, and those whose types it does not know, to standard "
    "error\n"
    "  --print-ir-after-all  the graph as given and behind each pass, to standard error or NN-pass.txt in FOLDER\n"
    "  --print-ir-diff       what each pass changed as a unified diff, to standard error or NN-pass.diff in FOLDER\n"
    "  --list                the passes and their options\n";

struct Arguments {
  std::string file;
  std::string passes;
  std::string disabled, machine;
  passes::PrintIrOptions print_ir;
  bool metrics = false, verify = false;
  bool list = false;
  bool help = false;
};

// "--flag=FOLDER", or "--flag" for standard error.
bool read_destination(const std::string& arg, const std::string& flag, std::string& destination) {
  if (arg == flag) destination = "stderr";
  if (arg.starts_with(flag + "=")) destination = arg.substr(flag.size() + 1);
  return arg == flag || (arg.starts_with(flag + "=") && !destination.empty());
}

std::optional<Arguments> parse_arguments(std::span<const std::string> args) {
  Arguments arguments;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--metrics") {
      arguments.metrics = true;
    } else if (arg == "--verify") {
      arguments.verify = true;
    } else if (arg == "--list") {
      arguments.list = true;
    } else if (arg == "--help" || arg == "-h") {
      arguments.help = true;
    } else if (arg == "--pass" && i + 1 < args.size()) {
      arguments.passes += (arguments.passes.empty() ? "" : ", ") + args[++i];
    } else if (arg == "--machine" && i + 1 < args.size()) {
      arguments.machine = args[++i];
    } else if (arg == "--disable-pass" && i + 1 < args.size()) {
      arguments.disabled += (arguments.disabled.empty() ? "" : ",") + args[++i];
    } else if (read_destination(arg, "--print-ir-after-all", arguments.print_ir.after_all) ||
               read_destination(arg, "--print-ir-diff", arguments.print_ir.diff)) {
      continue;
    } else if ((arg == "-" || !arg.starts_with('-')) && arguments.file.empty()) {
      arguments.file = arg;
    } else {
      return std::nullopt;
    }
  }
  if (arguments.file.empty() && !arguments.list && !arguments.help) return std::nullopt;
  return arguments;
}

void list_passes(std::ostream& out) {
  for (const passes::PassInfo* pass : passes::all_passes()) {
    out << pass->name << ": " << pass->help
        << (pass->exactness == passes::Exactness::Exact ? " (exact)\n" : " (reorders sums)\n");
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
  if (!stream) throw UserError(concat("error: cannot read ", file, "\n  expected a file of IR text, or -"));
  text << stream.rdbuf();
  return text.str();
}

// The graph has been verified. A line in all, then one per opcode without a rule.
void print_verified(const ir::Graph& graph, std::ostream& err) {
  std::ostringstream lines;
  int64_t unchecked = 0;
  for (const std::string& opcode : ir::unchecked_opcodes(graph)) {
    const auto count = std::ranges::count(graph.ops(), opcode, [](const auto& op) { return op->opcode; });
    lines << "  " << opcode << ": " << count << " ops, no rule in sfsdp/ir/atenset.def\n";
    unchecked += count;
  }
  err << "verified: " << graph.ops().size() << " ops, " << unchecked << " of unknown types\n" << lines.str();
}

void optimize(const Arguments& arguments, std::ostream& out, std::ostream& err) {
  ir::ParseResult parsed = ir::parse(read(arguments.file), arguments.file == "-" ? "<stdin>" : arguments.file);
  if (!parsed.ok()) throw UserError(ir::to_string(parsed.diagnostics));
  ir::verify_or_throw(parsed.graph, &parsed.locations);
  std::vector<std::string> disabled;
  if (!arguments.disabled.empty()) disabled = split(arguments.disabled, ',');
  const auto calls = passes::without(passes::parse_passes(arguments.passes), disabled);
  passes::RunOptions options{.observer = passes::print_ir(arguments.print_ir, out, err)};
  if (arguments.metrics && !arguments.machine.empty())
    options.measure = [machine = cost::load_machine(arguments.machine)](const ir::Graph& graph) {
      return tune::simulated(graph, machine, 1);
    };
  const auto reports = passes::run_passes(parsed.graph, calls, options);
  out << ir::print(parsed.graph);
  if (arguments.verify) print_verified(parsed.graph, err);
  if (!arguments.metrics) return;
  for (const passes::PassReport& report : reports) err << passes::to_string(report) << '\n';
}

}  // namespace

int run_opt(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto arguments = parse_arguments(args);
  if (!arguments || arguments->help) {
    (arguments ? out : err) << kUsage;
    return arguments ? 0 : 2;
  }
  if (arguments->list) {
    list_passes(out);
    return 0;
  }
  try {
    optimize(*arguments, out, err);
  } catch (const UserError& error) {
    err << error.what() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace sfsdp::tools
