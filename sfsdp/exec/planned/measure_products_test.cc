// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/measure_products.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::exec {
namespace measure_products_test {

const std::vector<ir::ProductShape> kShapes = {{ir::DType::f32, 40, 30, 20, false, true},
                                               {ir::DType::f32, 30, 20, 40, true, false},
                                               {ir::DType::f32, 0, 20, 40, true, false}};

// Seconds that a test gives: by kernel, of this rank.
auto given(const cost::ProductSeconds& seconds, std::atomic<int>* calls = nullptr) {
  return [seconds, calls](const ir::ProductShape&, const std::vector<ProductKernel>& kernels) {
    if (calls) ++*calls;
    cost::ProductSeconds found;
    for (const ProductKernel kernel : kernels) found[to_string(kernel)] = seconds.at(to_string(kernel));
    return found;
  };
}

// LibTorch offers oneDNN's product with AVX-512 alone; times that tests give choose nothing without it.
bool has_choice() {
  if (!has_product(ProductKernel::OneDnn)) MESSAGE("skipped: LibTorch offers no product of oneDNN on this processor");
  return has_product(ProductKernel::OneDnn);
}

TEST_CASE("ranks that measure different times choose alike, by the sum of them, and what is kept chooses so again") {
  if (!has_choice()) return;
  const testing::TemporaryFolder folder;
  const cost::ProductSeconds of_rank[] = {{{"aten.mm", 1.0}, {"onednn.matmul", 1.5}, {"openblas.gemm", 9.0}},
                                          {{"aten.mm", 3.0}, {"onednn.matmul", 1.0}, {"openblas.gemm", 9.0}},
                                          {{"aten.mm", 1.0}, {"onednn.matmul", 1.5}, {"openblas.gemm", 9.0}}};
  std::atomic<int> calls = 0;
  std::mutex mutex;
  for (const bool again : {false, true}) {
    std::vector<ProductChoice> choices(3);
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      const auto rank = static_cast<size_t>(world.rank());
      ProductChoice choice = choose_products(kShapes, {"aten.mm", folder.path(), given(of_rank[rank], &calls)}, &world);
      const std::lock_guard lock(mutex);
      choices[rank] = std::move(choice);
    });
    CAPTURE(again);
    const passes::ProductTable expected = {{kShapes[0], "onednn.matmul"}, {kShapes[1], "onednn.matmul"}};
    for (const ProductChoice& choice : choices) {
      CHECK((choice.table == expected));
      CHECK((choice.seconds == choices[0].seconds));
      CHECK(choice.seconds.at(kShapes[0]).at("aten.mm") == doctest::Approx(5.0 / 3));
    }
    CHECK(calls == 3 * 2);  // once: what is kept is not measured again
  }
}

TEST_CASE("what one rank has kept and another not, both measure") {
  if (!has_choice()) return;
  const testing::TemporaryFolder folder, other;
  std::atomic<int> calls = 0;
  const auto time = given({{"aten.mm", 2.0}, {"onednn.matmul", 1.0}, {"openblas.gemm", 9.0}}, &calls);
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    choose_products(kShapes, {"", folder.path(), time}, &world);
    choose_products(kShapes, {"", world.rank() == 0 ? folder.path() : other.path(), time}, &world);
  });
  CHECK(calls == 2 * 2 + 2 * 2);
}

TEST_CASE("ranks with other shapes choose nothing: that their programs differ is said when these are compared") {
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    const std::vector<ir::ProductShape> shapes(kShapes.begin(), kShapes.begin() + 1 + world.rank());
    const auto choice = choose_products(shapes, {"", "", given({})}, &world);
    CHECK(choice.table.empty());
  });
}

TEST_CASE("a cache that is damaged is measured anew and mended, one that cannot be written costs a line") {
  if (!has_choice()) return;
  const testing::TemporaryFolder folder;
  std::atomic<int> calls = 0;
  const auto time = given({{"aten.mm", 2.0}, {"onednn.matmul", 1.0}, {"openblas.gemm", 9.0}}, &calls);
  const auto choose = [&](const std::string& path) { return choose_products(kShapes, {"", path, time}, nullptr); };
  CHECK(choose(folder.path()).notes.size() == 1);
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".txt") file = entry.path();
  std::ofstream(file) << "sfsdp products 1\nwhat";
  const ProductChoice anew = choose(folder.path());
  REQUIRE(anew.notes.size() == 2);
  CHECK(anew.notes[0] == concat("Products: ", file, ": it is damaged; they are measured again"));
  CHECK(calls == 4);
  CHECK(choose(folder.path()).notes.size() == 1);
  CHECK(calls == 4);
  for (const char* path : {"/dev/null/folder", "/proc/nothing"}) {
    const ProductChoice unkept = choose(path);
    CHECK((unkept.table == anew.table));
    REQUIRE(unkept.notes.size() == 2);
    CHECK(unkept.notes[1].starts_with("Products: they will be measured again, as their times cannot be kept: "));
  }
  CHECK(choose("").notes.size() == 1);
  CHECK(calls == 10);
}

TEST_CASE("every library is timed, also for a product that is cut") {
  const auto kernels = product_kernels(ir::DType::f32);
  for (const ir::ProductShape& shape : {ir::ProductShape{ir::DType::f32, 64, 32, 48, true, true},
                                        ir::ProductShape{ir::DType::f32, 3000, 3000, 3000, false, false},
                                        ir::ProductShape{ir::DType::f32, 1, 1, 1, false, true}}) {
    const cost::ProductSeconds seconds = time_product(shape, kernels);
    CHECK(seconds.size() == kernels.size());
    for (const auto& [kernel, value] : seconds) CHECK(value > 0);
  }
}

}  // namespace measure_products_test
}  // namespace sfsdp::exec
