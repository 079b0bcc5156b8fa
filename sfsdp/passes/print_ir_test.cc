// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/print_ir.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::passes::print_ir_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText =
    "graph mesh [] view local\n"
    "  %x = input name=x : f32[2]\n"
    "fwd:\n"
    "  %dead = aten.neg %x : f32[2]\n"
    "  %y = aten.relu %x : f32[2]\n"
    "  return %y\n";

void run(const PrintIrOptions& options, std::ostream& out, std::ostream& err) {
  const PassObserver observer = print_ir(options, out, err);
  for (int graphs = 0; graphs < 2; ++graphs) {
    ir::Graph graph = ir::parse_or_throw(kText);
    run_passes(graph, parse_passes("merge_duplicates, dead_code"), {.observer = observer});
  }
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("sfsdp_print_ir_test_" + std::to_string(::getpid()))) {}
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& file = "") const { return (file.empty() ? path_ : path_ / file).string(); }
  std::string read(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(path(file)).rdbuf();
    return text.str();
  }

 private:
  fs::path path_;
};

TEST_CASE("print_ir writes a numbered file after each pass, and goes on counting with the next graph") {
  const Folder folder;
  std::ostringstream out, err;
  run({.after_all = folder.path("graphs/of/it"), .diff = folder.path("diffs")}, out, err);
  CHECK(out.str().empty());
  CHECK(err.str().empty());
  CHECK(folder.read("graphs/of/it/00-start.txt") == kText);
  CHECK(folder.read("graphs/of/it/01-merge_duplicates.txt") == kText);
  const ir::Graph last = ir::parse_or_throw(folder.read("graphs/of/it/02-dead_code.txt"));
  CHECK(last.ops().size() == 2);
  CHECK(fs::exists(folder.path("diffs/01-merge_duplicates.diff")));
  CHECK(folder.read("diffs/01-merge_duplicates.diff").empty());
  CHECK(folder.read("diffs/02-dead_code.diff") ==
        "--- 01-merge_duplicates\n+++ 02-dead_code\n@@ -1,6 +1,5 @@\n graph mesh [] view local\n"
        "   %x = input name=x : f32[2]\n fwd:\n-  %dead = aten.neg %x : f32[2]\n   %y = aten.relu %x : f32[2]\n"
        "   return %y\n");
  CHECK(folder.read("graphs/of/it/03-start.txt") == kText);
  CHECK_FALSE(fs::exists(folder.path("diffs/03-start.diff")));  // another graph is no change of the last one
  CHECK(folder.read("diffs/05-dead_code.diff").starts_with("--- 04-merge_duplicates\n"));
}

TEST_CASE("print_ir writes to the streams, and says where nothing changed") {
  std::ostringstream out, err;
  run({.after_all = "stdout", .diff = "stderr"}, out, err);
  CHECK(out.str().starts_with(std::string("// ---- 00-start.txt\n") + kText + "// ---- 01-merge_duplicates.txt\n"));
  CHECK(err.str().starts_with("// ---- 01-merge_duplicates.diff: no change\n// ---- 02-dead_code.diff\n--- 01-"));
  CHECK_FALSE(static_cast<bool>(print_ir({}, out, err)));
}

TEST_CASE("print_ir names a file that cannot be written") {
  const Folder folder;
  std::ofstream(folder.path()) << "a file, no folder";
  std::ostringstream out, err;
  CHECK_THROWS_WITH_AS(run({.after_all = folder.path()}, out, err),
                       doctest::Contains("expected stdout, stderr or a folder that can be written"), UserError);
}

}  // namespace
}  // namespace sfsdp::passes::print_ir_test
