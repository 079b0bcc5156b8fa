// SPDX-License-Identifier: BSD-3-Clause
// The commands that need LibTorch, in a build without it: they say so.
#include <ostream>

#include "sfsdp/tools/calibrate.h"
#include "sfsdp/tools/doctor.h"
#include "sfsdp/tools/inspect.h"
#include "sfsdp/tools/plan.h"
#include "sfsdp/tools/simulate.h"
#include "sfsdp/train/trainer.h"

namespace {

int refuse(std::ostream& err) {
  err << "error: this sfsdp was built without LibTorch\n  expected a build with -DSFSDP_WITH_TORCH=ON; run ./setup.sh,"
         " then scripts/build.sh release\n";
  return 1;
}

}  // namespace

namespace sfsdp::train {

int run_train(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse(err); }

}  // namespace sfsdp::train

namespace sfsdp::tools {

int run_inspect(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse(err); }
int run_plan(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse(err); }
int run_simulate(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse(err); }
int run_calibrate(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse(err); }
int run_doctor(std::ostream& out) { return refuse(out); }

}  // namespace sfsdp::tools
