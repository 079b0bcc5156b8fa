// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/opt.h"

#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"

namespace sfsdp::tools {
namespace {

constexpr const char* kUsage =
    "usage: sfsdp opt FILE [--pass NAME[ OPTION=VALUE…][,NAME…]]… [--metrics] [--list]\n"
    "  FILE       IR text, - for standard input\n"
    "  --pass     passes to run, in order; without any the graph is checked and printed\n"
    "  --metrics  what each pass did, to standard error\n"
    "  --list     the passes and their options\n";

struct Arguments {
  std::string file;
  std::string passes;
  bool metrics = false;
  bool list = false;
  bool help = false;
};

std::optional<Arguments> parse_arguments(std::span<const std::string> args) {
  Arguments arguments;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--metrics") {
      arguments.metrics = true;
    } else if (arg == "--list") {
      arguments.list = true;
    } else if (arg == "--help" || arg == "-h") {
      arguments.help = true;
    } else if (arg == "--pass" && i + 1 < args.size()) {
      arguments.passes += (arguments.passes.empty() ? "" : ", ") + args[++i];
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
  for (const passes::PassInfo& pass : passes::all_passes()) {
    out << pass.name << ": " << pass.help
        << (pass.exactness == passes::Exactness::Exact ? " (exact)\n" : " (reorders sums)\n");
    for (const passes::PassOption& option : pass.options)
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

void optimize(const Arguments& arguments, std::ostream& out, std::ostream& err) {
  ir::ParseResult parsed = ir::parse(read(arguments.file), arguments.file == "-" ? "<stdin>" : arguments.file);
  if (!parsed.ok()) throw UserError(ir::to_string(parsed.diagnostics));
  ir::verify_or_throw(parsed.graph, &parsed.locations);
  const auto reports = passes::run_passes(parsed.graph, passes::parse_passes(arguments.passes));
  out << ir::print(parsed.graph);
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
