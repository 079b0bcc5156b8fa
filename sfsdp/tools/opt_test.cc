// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "sfsdp/testing/source_dir.h"
#include "sfsdp/tools/commands.h"

namespace sfsdp::tools::opt_test {
namespace {

struct Run {
  int status;
  std::string out, err;
};

Run run(std::vector<std::string> args) {
  std::ostringstream out, err;
  const int status = run_command(find_command("opt"), args, run_opt, out, err);
  return {status, out.str(), err.str()};
}

// A file of IR, gone at the end of the test.
class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("sfsdp_opt_test_" + std::to_string(::getpid()) + ".ir")) {
    std::ofstream(path_) << text;
  }
  ~TextFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

constexpr const char* kText =
    "graph mesh [] view local\n"
    "  %x = input name=x : f32[2]\n"
    "fwd:\n"
    "  %y = aten.relu %x : f32[2]\n"
    "  %z = aten.relu %x : f32[2]\n"
    "  %d = aten.neg %x : f32[2]\n"
    "  return %y, %z\n";

TEST_CASE("opt --verify lists the ops whose types nobody checks, with their number") {
  const TextFile file(
      "graph mesh [] view local\n  %x = input name=x : f32[2]\nfwd:\n  %y = aten.erfc %x : f32[2]\n"
      "  %z = aten.erfc %y : f32[2]\n  %r = aten.relu %z : f32[2]\n  return %r\n");
  const Run result = run({file.path(), "--verify"});
  CHECK(result.status == 0);
  CHECK(result.err == "verified: 4 ops, 2 of unknown types\n  aten.erfc: 2 ops, no rule in sfsdp/ir/atenset.def\n");
}

TEST_CASE("opt runs passes in order and prints the text") {
  const TextFile file(kText);
  const Run result = run({file.path(), "--pass", "merge_duplicates,dead_code", "--metrics"});
  CHECK(result.status == 0);
  CHECK(result.out ==
        "graph mesh [] view local\n"
        "  %x = input name=x : f32[2]\n"
        "fwd:\n"
        "  %y = aten.relu %x : f32[2]\n"
        "  return %y, %y\n");
  CHECK(result.err.find("merge_duplicates: changed") == 0);
  CHECK(result.err.find("dead_code: changed") != std::string::npos);
  const Run predicted = run({file.path(), "--pass", "merge_duplicates", "--metrics", "--machine",
                             testing::source_dir() + "/machines/dgx_h100.toml"});
  CHECK(predicted.out.find("return %y, %y") != std::string::npos);
  CHECK(predicted.err.find("; step ms 0.0") != std::string::npos);
}

TEST_CASE("opt without a pass checks and prints") {
  const TextFile file(kText);
  CHECK(run({file.path()}).out == kText);
}

TEST_CASE("opt names what is wrong, by file and line") {
  const TextFile broken("graph mesh [] view local\n  %x = inptu name=x : f32[2]\n");
  const Run result = run({broken.path()});
  CHECK(result.status == 2);
  CHECK(result.out.empty());
  CHECK(result.err == "error: " + broken.path() + ":2:3: unknown opcode inptu\n  did you mean input?\n");
  CHECK(run({"/nowhere/at/all.ir"}).status == 2);
  const TextFile fine(kText);
  CHECK(run({fine.path(), "--pass", "dead_cod"}).err.find("did you mean dead_code?") != std::string::npos);
}

TEST_CASE("opt leaves passes out, and says which it does not know") {
  const TextFile file(kText);
  const std::string passes = "merge_duplicates,dead_code";
  CHECK(run({file.path(), "--pass", passes, "--disable-pass", "dead_code"}).out.find("aten.neg") != std::string::npos);
  CHECK(run({file.path(), "--pass", passes, "--disable-pass", passes}).out == kText);
  const Run wrong = run({file.path(), "--pass", passes, "--disable-pass", "dead_cod"});
  CHECK(wrong.status == 2);
  CHECK(wrong.err.find("did you mean dead_code?") != std::string::npos);
  CHECK(run({file.path(), "--pass", "split_collectives, sink_waits", "--disable-pass", "split_collectives"})
            .err.find("sink_waits can do nothing without it") != std::string::npos);
}

TEST_CASE("opt shows the graph after each pass, and what each changed, beside its output") {
  const TextFile file(kText);
  const Run all = run({file.path(), "--pass", "dead_code", "--print-ir-after-all"});
  CHECK(all.err == std::string("// ---- 00-start.txt\n") + kText + "// ---- 01-dead_code.txt\n" + all.out);
  const Run diff = run({file.path(), "--pass", "dead_code", "--print-ir-diff"});
  CHECK(diff.out == all.out);
  CHECK(diff.err.find("\n-  %d = aten.neg %x : f32[2]\n   return %y, %z\n") != std::string::npos);
  const std::string folder = file.path() + ".d";
  CHECK(run({file.path(), "--pass", "dead_code", "--print-ir-after-all=" + folder}).err.empty());
  CHECK(std::filesystem::exists(folder + "/01-dead_code.txt"));
  std::filesystem::remove_all(folder);
  CHECK(run({file.path(), "--print-ir-after-all="}).status == 2);
}

TEST_CASE("opt explains itself") {
  CHECK(run({"--help"}).out.find("--disable-pass LIST") != std::string::npos);
  CHECK(run({"--list"}).out.find("merge_duplicates: ") != std::string::npos);
  CHECK(run({}).err == "error: FILE is missing\n  expected a file of IR text, or - for standard input\n");
  CHECK(run({}).status == 2);
  CHECK(run({"a", "b"}).status == 2);
  CHECK(run({"a", "--pass"}).status == 2);
  CHECK(run({"a", "--disable-passes", "x"}).err.find("did you mean --disable-pass?") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::tools::opt_test
