// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/print_ir.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <system_error>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/line_diff.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::passes {
namespace {

class IrPrinter {
 public:
  IrPrinter(PrintIrOptions options, std::ostream& out, std::ostream& err)
      : options_(std::move(options)), out_(out), err_(err) {}

  void see(const std::string& pass, const ir::Graph& graph) {
    const std::string label = concat(number_ < 10 ? "0" : "", number_, '-', pass);
    ++number_;
    std::string text = ir::print(graph);
    put(options_.after_all, label + ".txt", text);
    if (pass != "start") put(options_.diff, label + ".diff", unified_diff(before_, text, {label_, label}));
    before_ = std::move(text);
    label_ = label;
  }

 private:
  void put(const std::string& where, const std::string& file, const std::string& text) {
    if (where.empty()) return;
    if (where == "stdout" || where == "stderr") {
      (where == "stdout" ? out_ : err_) << "// ---- " << file << (text.empty() ? ": no change" : "") << '\n' << text;
      return;
    }
    std::error_code failed;
    std::filesystem::create_directories(where, failed);
    const std::filesystem::path path = std::filesystem::path(where) / file;
    std::ofstream stream(path);
    stream << text;
    stream.close();
    if (!stream)
      throw UserError(concat("cannot write ", path.string(), failed ? ": " + failed.message() : "",
                             "\n  expected stdout, stderr or a folder that can be written"));
  }

  PrintIrOptions options_;
  std::ostream& out_;
  std::ostream& err_;
  int number_ = 0;
  std::string before_, label_;
};

}  // namespace

PassObserver print_ir(const PrintIrOptions& options, std::ostream& out, std::ostream& err) {
  if (options.after_all.empty() && options.diff.empty()) return {};
  auto printer = std::make_shared<IrPrinter>(options, out, err);
  return [printer](const std::string& pass, const ir::Graph& graph) { printer->see(pass, graph); };
}

}  // namespace sfsdp::passes
