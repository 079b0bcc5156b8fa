// SPDX-License-Identifier: BSD-3-Clause
// The sfsdp binary: picks a subcommand.
#include <iostream>
#include <string>
#include <vector>

#include "sfsdp/tools/calibrate.h"
#include "sfsdp/tools/doctor.h"
#include "sfsdp/tools/inspect.h"
#include "sfsdp/tools/launch.h"
#include "sfsdp/tools/opt.h"
#include "sfsdp/tools/plan.h"
#include "sfsdp/tools/simulate.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/trainer.h"

namespace {

constexpr const char* kUsage =
    "usage: sfsdp <command> …\n"
    "  train    --job.config_file F --section.key value …     train on this rank (torchrun's environment)\n"
    "  launch   -n N [--log-rank 0,1] -- train …               start N ranks on this host\n"
    "  inspect  --config F --world N [--graph|--passes]        what a config would run, without running it\n"
    "  plan     --config F --world N [--out P] [--explain M]   the plan of its step, verified; why its units are so\n"
    "  simulate --config F --machine M --world N               what a step would take on that machine\n"
    "  calibrate --config F --ranks N --out M                  measures this machine, writes such a file for simulate\n"
    "  opt      FILE --pass a,b                                run passes on a graph in text form\n"
    "  doctor                                                  what this machine has and lacks\n";

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::string command = args.empty() ? "--help" : args[0];
  const std::vector<std::string> rest(args.begin() + (args.empty() ? 0 : 1), args.end());
  if (command == "train") return sfsdp::train::run_train(rest, std::cout, std::cerr);
  if (command == "launch") return sfsdp::tools::run_launch(rest, std::cout, std::cerr);
  if (command == "inspect") return sfsdp::tools::run_inspect(rest, std::cout, std::cerr);
  if (command == "plan") return sfsdp::tools::run_plan(rest, std::cout, std::cerr);
  if (command == "simulate") return sfsdp::tools::run_simulate(rest, std::cout, std::cerr);
  if (command == "calibrate") return sfsdp::tools::run_calibrate(rest, std::cout, std::cerr);
  if (command == "opt") return sfsdp::tools::run_opt(rest, std::cout, std::cerr);
  if (command == "doctor") return sfsdp::tools::run_doctor(std::cout);
  if (command == "--help" || command == "-h" || command == "help") {
    std::cout << kUsage << "\nkeys of train:\n" << sfsdp::train::describe_flags();
    return 0;
  }
  std::cerr << "error: no command '" << command << "'\n" << kUsage;
  return 2;
}
