// SPDX-License-Identifier: BSD-3-Clause
// The sfsdp binary: picks a command. LibTorch takes a fifth of a second to load, so this part is linked without it, and
// what needs it is another binary (main_torch.h).
#include <algorithm>
#include <csignal>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/version.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/compare_traces.h"
#include "sfsdp/tools/launch.h"
#include "sfsdp/tools/main_torch.h"
#include "sfsdp/tools/plan_file.h"
#include "sfsdp/tools/simulate_plan.h"
#include "sfsdp/tools/tokenizer.h"
#include "sfsdp/train/config/config.h"

namespace {

using namespace sfsdp::tools;

bool holds(const std::vector<std::string>& args, const std::vector<std::string>& any) {
  return std::ranges::find_first_of(args, any) != args.end();
}

// Whether an option is there, with its value or before it.
bool names(const std::vector<std::string>& args, const std::string& option) {
  return std::ranges::any_of(args, [&](const auto& arg) { return arg == option || arg.starts_with(option + "="); });
}

int print_config(std::vector<std::string> args) {
  std::erase_if(args, [](const auto& arg) { return arg == "--print-config" || arg == "--print_config"; });
  const auto config = sfsdp::train::load_config(args);
  for (const std::string& note : config.notes) std::cerr << note << '\n';
  std::cout << printed(config);
  return 0;
}

// Whether export captures a model, for which LibTorch is needed, and rewrites no archive.
bool captures(const std::vector<std::string>& args) {
  return !names(args, "--archive") &&
         !holds(args, {"--help", "-h", "safetensors", "peft", "--format=safetensors", "--format=peft"});
}

int run(const std::string& name, const std::vector<std::string>& args) {
  static const std::map<std::string, Run> kRuns = {{"launch", run_launch},       {"opt", run_opt},
                                                   {"tokenizer", run_tokenizer}, {"tokenize", run_tokenize},
                                                   {"report", run_report},       {"checkpoint", run_checkpoint},
                                                   {"export", run_export}};
  const Command& command = find_command(name);
  if (name == "export" && captures(args)) return run_with_torch(name, args);
  const auto here = kRuns.find(name);
  if (here != kRuns.end()) return run_command(command, args, here->second, std::cout, std::cerr);
  if (holds(args, {"--help", "-h"})) return run_command(command, args, {}, std::cout, std::cerr);
  if (name == "simulate" && names(args, "--plan"))
    return run_command(command, args, run_simulate_plan, std::cout, std::cerr);
  if (name == "inspect" && names(args, "--compare"))
    return run_command(command, args, run_compare_traces, std::cout, std::cerr);
  if (name == "plan" && names(args, "--diff")) return run_command(command, args, run_diff_plans, std::cout, std::cerr);
  if (name == "plan" && names(args, "--check")) return run_command(command, args, run_check_plan, std::cout, std::cerr);
  if (name == "train" && holds(args, {"--print-config", "--print_config"})) return print_config(args);
  if (name == "doctor" && names(args, "--flight")) return run_command(command, args, run_flight, std::cout, std::cerr);
  return run_with_torch(name, args);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of the write, also in what is started here
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string name = args.empty() ? "help" : args[0];
  if (!args.empty()) args.erase(args.begin());
  try {
    if (name == "--version") {
      std::cout << "sfsdp " << sfsdp::version() << '\n';
    } else if (name == "--help" || name == "-h" || name == "help") {
      std::cout << (args.empty() ? help_of_all() : help_of(find_command(args[0])));
    } else {
      return run(name, args);
    }
    return 0;
  } catch (const sfsdp::UserError& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
