// SPDX-License-Identifier: BSD-3-Clause
// The commands that need LibTorch, in a build without it: they say so.
#include <ostream>

#include "sfsdp/tools/commands.h"
#include "sfsdp/train/trainer.h"

namespace {

int refuse_torch(std::ostream& err) {
  err << "error: this sfsdp was built without LibTorch\n  expected a build with -DSFSDP_WITH_TORCH=ON; run ./setup.sh,"
         " then scripts/build.sh release\n";
  return 1;
}

}  // namespace

namespace sfsdp::train {

int run_train(std::span<const std::string>, std::ostream&, std::ostream& err) { return refuse_torch(err); }

}  // namespace sfsdp::train

namespace sfsdp::tools {

int run_inspect(const Request&, std::ostream&, std::ostream& err) { return refuse_torch(err); }
int run_plan(const Request&, std::ostream&, std::ostream& err) { return refuse_torch(err); }
int run_simulate(const Request&, std::ostream&, std::ostream& err) { return refuse_torch(err); }
int run_calibrate(const Request&, std::ostream&, std::ostream& err) { return refuse_torch(err); }
int run_export_model(const Request&, std::ostream&, std::ostream& err) { return refuse_torch(err); }
int run_doctor(const Request& request, std::ostream& out, std::ostream& err) {
  return request.has("flight") ? run_flight(request, out, err) : refuse_torch(err);
}

}  // namespace sfsdp::tools
