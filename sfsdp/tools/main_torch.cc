// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/main_torch.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

#include "sfsdp/tools/commands.h"
#include "sfsdp/train/trainer.h"

namespace sfsdp::tools {

int run_with_torch(const std::string& name, const std::vector<std::string>& args) {
  static const std::map<std::string, Run> kRuns = {{"inspect", run_inspect},     {"plan", run_plan},
                                                   {"simulate", run_simulate},   {"calibrate", run_calibrate},
                                                   {"export", run_export_model}, {"doctor", run_doctor}};
  // train reads its arguments itself: what is wrong with them it reports with the mistakes of its file, and with its rank.
  const int status = name == "train" ? train::run_train(args, std::cout, std::cerr)
                                     : run_command(find_command(name), args, kRuns.at(name), std::cout, std::cerr);
  // To take LibTorch's registries down again would cost more than 10 ms; all that is ours has ended.
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace sfsdp::tools
