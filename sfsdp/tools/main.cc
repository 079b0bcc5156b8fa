// SPDX-License-Identifier: BSD-3-Clause
// The sfsdp binary: picks a command.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/version.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/launch.h"
#include "sfsdp/tools/tokenizer.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/trainer.h"

namespace {

int print_config(const std::vector<std::string>& args) {
  const auto config = sfsdp::train::load_config(args);
  for (const std::string& note : config.notes) std::cerr << note << '\n';
  std::cout << printed(config);
  return 0;
}

// train reads its arguments itself: what is wrong with them it reports with the mistakes of its file, and with its rank.
int run_train(std::vector<std::string> args) {
  if (std::erase_if(args, [](const auto& arg) { return arg == "--print-config" || arg == "--print_config"; }) > 0)
    return print_config(args);
  return sfsdp::train::run_train(args, std::cout, std::cerr);
}

int run(const std::string& name, const std::vector<std::string>& args) {
  using namespace sfsdp::tools;
  static const std::map<std::string, Run> kRuns = {
      {"launch", run_launch},     {"inspect", run_inspect},      {"plan", run_plan},
      {"simulate", run_simulate}, {"calibrate", run_calibrate},  {"opt", run_opt},
      {"doctor", run_doctor},     {"tokenizer", run_tokenizer},  {"tokenize", run_tokenize},
      {"report", run_report},     {"checkpoint", run_checkpoint}};
  const Command& command = find_command(name);
  const bool asks_help = std::ranges::any_of(args, [](const auto& arg) { return arg == "--help" || arg == "-h"; });
  if (name == "train" && !asks_help) return run_train(args);
  return run_command(command, args, name == "train" ? Run() : kRuns.at(name), std::cout, std::cerr);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string name = args.empty() ? "help" : args[0];
  if (!args.empty()) args.erase(args.begin());
  try {
    if (name == "--version") {
      std::cout << "sfsdp " << sfsdp::version() << '\n';
    } else if (name == "--help" || name == "-h" || name == "help") {
      std::cout << (args.empty() ? sfsdp::tools::help_of_all() : help_of(sfsdp::tools::find_command(args[0])));
    } else {
      return run(name, args);
    }
    return 0;
  } catch (const sfsdp::UserError& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
