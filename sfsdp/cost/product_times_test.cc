// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_times.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::cost::product_times_test {
namespace {

constexpr ir::ProductShape kShape = {ir::DType::f32, 512, 2048, 768, false, true};
constexpr ir::ProductShape kOther = {ir::DType::f64, 1, 2, 3, true, false};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}
// The file of key "one", and the lock.
std::set<std::string> file_alone() {
  return {std::filesystem::path(products_file("", "one")).filename().string(), "products.lock"};
}

// What `body` does where no file may have more than so many bytes.
//   on_signal: what becomes of a process that writes more
template <class Body>
void with_small_files(rlim_t bytes, void (*on_signal)(int), const Body& body) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, on_signal);
  const rlimit small = {bytes, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  body();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_CASE("times of products come back from their file to the bit, those of several writes together, by machine") {
  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/not/there/yet";
  CHECK(read_product_times(folder, "one").times.empty());
  CHECK(read_product_times(folder, "one").fault.empty());
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}, {"onednn.matmul", 1.0 / 3}}}});
  add_product_times(folder, "one", {{kOther, {{"aten.mm", 1e-9}}}, {kShape, {{"aten.mm", 0.2}}}});
  const ProductTimes expected = {{kShape, {{"aten.mm", 0.2}, {"onednn.matmul", 1.0 / 3}}},
                                 {kOther, {{"aten.mm", 1e-9}}}};
  CHECK(read_product_times(folder, "one").times == expected);
  CHECK(read_product_times(folder, "two").times.empty());
}

TEST_CASE("a file of times that is damaged, cut, of another machine or no file is told of and not read") {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}}}});
  const std::string path = products_file(folder, "one"), good = text_of(path);
  const auto with_hash = [](const std::string& text) { return concat(text, "hash ", hex(xxh3(text)), '\n'); };
  const auto fault_of = [&](const std::string& text) {
    std::ofstream(path) << text;
    const KeptProducts kept = read_product_times(folder, "one");
    CHECK(kept.times.empty());
    CHECK(kept.fault.starts_with(path + ": "));
    return kept.fault.substr(path.size() + 2);
  };
  CHECK(fault_of("") == "it does not begin as such a file");
  CHECK(fault_of("sfsdp products 2\n") == "it does not begin as such a file");
  for (size_t length = 18; length < good.size(); ++length) CHECK(fault_of(good.substr(0, length)) == "it is damaged");
  std::string damaged = good;
  damaged[good.find("0.1")] = '9';
  CHECK(fault_of(damaged) == "it is damaged");
  CHECK(fault_of(text_of((add_product_times(folder, "two", {}), products_file(folder, "two")))) ==
        "it is of another machine");
  for (const char* line : {"f32:1x2x3:nn aten.mm", "f32:1x2x3:nn aten.mm 0.0", "f32:1x2x3:nn aten.mm x", "words", " "})
    CHECK(fault_of(with_hash(concat("sfsdp products 1\nkey one\n", line, '\n'))) == "line 3 is no time of a product");
  CHECK(fault_of(std::string(2 << 20, 'x')) == "it is no file of such a size");
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}}}});  // which mends it
  CHECK(read_product_times(folder, "one").fault.empty());
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK(read_product_times(folder, "one").fault == path + ": it is no file of such a size");
  CHECK_THROWS_AS(add_product_times(folder, "one", {}), UserError);
  CHECK_THROWS_AS(add_product_times("/proc/no_such_folder", "one", {}), UserError);
  CHECK_THROWS_AS(add_product_times("/dev/null/folder", "one", {}), UserError);
}

TEST_CASE(
    "of many that write at once none loses anything, whoever reads finds a whole file, and no other file is left") {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::vector<std::thread> writers;
  for (int64_t w = 1; w <= 4; ++w)
    writers.emplace_back([&, w] {
      for (int64_t i = 1; i <= 30; ++i)
        add_product_times(folder, "one", {{{ir::DType::f32, w, i, 1}, {{"aten.mm", 0.5}}}});
    });
  for (int i = 0; i < 200; ++i) CHECK(read_product_times(folder, "one").fault.empty());
  for (std::thread& writer : writers) writer.join();
  CHECK(read_product_times(folder, "one").times.size() == 120);
  CHECK(names_in(folder) == file_alone());
}

// A signal of the system ends it in the middle of its file.
TEST_CASE("a writer that is killed holds nobody up, and the next one removes what it has left") {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}}}});
  add_product_times(folder, "two", {{kShape, {{"aten.mm", 0.2}}}});
  const pid_t writer = fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    with_small_files(20, SIG_DFL, [&] { add_product_times(folder, "one", {{kOther, {{"aten.mm", 0.3}}}}); });
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(writer, &status, 0) == writer);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGXFSZ);
  CHECK(names_in(folder).size() == 4);  // two files, the lock, and what the writer was writing
  CHECK(read_product_times(folder, "one").times.at(kShape).at("aten.mm") == 0.1);
  add_product_times(folder, "two", {});
  CHECK(names_in(folder).size() == 4);  // it is of another file
  add_product_times(folder, "one", {{kOther, {{"aten.mm", 0.4}}}});
  CHECK(names_in(folder).size() == 3);
  CHECK(read_product_times(folder, "one").times ==
        ProductTimes{{kShape, {{"aten.mm", 0.1}}}, {kOther, {{"aten.mm", 0.4}}}});
}

TEST_CASE("a writer that is stopped with the lock holds the others up for a moment only, and what it writes stays") {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}}}});
  const Fd lock(open((folder + "/products.lock").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(flock(lock.get(), LOCK_EX) == 0);
  const std::string unfinished = products_file(folder, "one") + ".host-0123456789abcdef";
  std::ofstream(unfinished) << "sfsdp pro";
  const auto begin = std::chrono::steady_clock::now();
  add_product_times(folder, "one", {{kOther, {{"aten.mm", 0.4}}}});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // 2 s are promised
  CHECK(read_product_times(folder, "one").times.size() == 2);
  CHECK(std::filesystem::exists(unfinished));
}

TEST_CASE("where the disk is full or the folder may only be read, nothing is left, and what is kept is read") {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  add_product_times(folder, "one", {{kShape, {{"aten.mm", 0.1}}}});
  std::string said;
  with_small_files(20, SIG_IGN, [&] {
    try {
      add_product_times(folder, "one", {{kOther, {{"aten.mm", 0.4}}}});
    } catch (const UserError& error) {
      said = error.what();
    }
  });
  CHECK(said.find("cannot be written") != std::string::npos);
  CHECK(names_in(folder) == file_alone());
  CHECK(read_product_times(folder, "one").times == ProductTimes{{kShape, {{"aten.mm", 0.1}}}});
  // In /proc/self nobody makes a file, root neither.
  CHECK_THROWS_WITH_AS(add_product_times("/proc/self", "one", {}), doctest::Contains("cannot be made"), UserError);
}

TEST_CASE("the cache's folder is the user's") {
  const auto with = [](const char* cache, const char* home) {
    const char *cache_before = std::getenv("XDG_CACHE_HOME"), *home_before = std::getenv("HOME");
    const std::string kept_cache = cache_before ? cache_before : "", kept_home = home_before ? home_before : "";
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("HOME", home, 1);
    const std::string folder = cache_folder();
    cache_before ? setenv("XDG_CACHE_HOME", kept_cache.c_str(), 1) : unsetenv("XDG_CACHE_HOME");
    home_before ? setenv("HOME", kept_home.c_str(), 1) : unsetenv("HOME");
    return folder;
  };
  CHECK(with("/a", "/b") == "/a/sfsdp");
  CHECK(with("", "/b") == "/b/.cache/sfsdp");
  CHECK(with("a", "/b") == "/b/.cache/sfsdp");
  CHECK(with("", "") == "");
}

}  // namespace
}  // namespace sfsdp::cost::product_times_test
