// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp report RUN_DIR...`: what runs wrote, as one page.
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/report/run_report.h"

namespace sfsdp::tools {
namespace {

// In the first run's folder.
std::string usual_page(const std::string& run) {
  const std::filesystem::path path = run;
  return ((std::filesystem::is_directory(path) ? path : path.parent_path()) / "report.html").string();
}

}  // namespace

int run_report(const Request& request, std::ostream& out, std::ostream&) {
  const std::vector<std::string>& folders = request.own.operands;
  if (folders.empty())
    throw UserError("report: no run\n  expected the folder of a run, or several, as in: sfsdp report outputs");
  std::vector<train::RunFiles> runs;
  for (const std::string& folder : folders) runs.push_back(train::read_run(folder));
  const std::string path = request.get("out", usual_page(folders[0]));
  std::ofstream file(path, std::ios::binary);
  file << train::run_report(runs) << std::flush;
  if (!file)
    throw UserError(concat(path, ": cannot be written\n  expected a file in a folder that is there; set --out"));
  for (const train::RunFiles& run : runs) {
    out << run.name << ": " << run.steps.size() << " steps";
    if (!run.validations.empty()) out << ", " << run.validations.size() << " validations";
    out << "\n";
    for (const std::string& problem : run.problems) out << "  " << problem << "\n";
  }
  out << "Page: " << path << "\n";
  return 0;
}

}  // namespace sfsdp::tools
