// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tensor_source.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/loader.h"

namespace sfsdp::train::tensor_source_test {
namespace {

// A safetensors file of tensors of f32: name, shape, values counting on from `first`.
struct Tensor {
  std::string name, shape;
  int64_t numel = 0;
  float first = 0;
};

std::string file_of(const std::vector<Tensor>& tensors) {
  std::string header = "{", data;
  for (const Tensor& t : tensors) {
    const size_t begin = data.size();
    for (int64_t i = 0; i < t.numel; ++i) {
      const float value = t.first + static_cast<float>(i);
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header += concat(header.size() > 1 ? ", " : "", "\"", t.name, "\": {\"dtype\": \"F32\", \"shape\": [", t.shape,
                     "], \"data_offsets\": [", begin, ", ", data.size(), "]}");
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + data;
}

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> read(TensorSource& source, int64_t sample, size_t tensor) {
  MicroBatch batch(source.layout());
  source.append(sample, batch.tensors);
  return floats(batch.tensors[tensor]);
}

TEST_CASE("samples of tensors are rows of all files, one after the other, by name") {
  const testing::TemporaryFolder folder;
  folder.write("b.safetensors", file_of({{"y", "2", 2, 50}, {"x", "2, 3", 6, 9}}));
  folder.write("a.safetensors", file_of({{"x", "3, 3", 9, 0}, {"y", "3", 3, 40}}));
  folder.write("readme.txt", "no data");
  TensorSource source(folder.path(), {.shuffle = false});
  REQUIRE(source.size() == 5);
  CHECK(source.layout() == std::vector<SampleTensor>{{"x", ir::DType::f32, {3}}, {"y", ir::DType::f32, {}}});
  CHECK(read(source, 0, 0) == std::vector<float>{0, 1, 2});
  CHECK(read(source, 2, 1) == std::vector<float>{42});
  CHECK(read(source, 3, 0) == std::vector<float>{9, 10, 11});
  CHECK(read(source, 4, 1) == std::vector<float>{51});
  CHECK(read(source, 8, 0) == read(source, 3, 0));  // the second epoch
  CHECK(source.describe() == "5 samples in 2 files: x f32[3], y f32[]");
}

TEST_CASE("shuffled samples are each read once an epoch, in another order, which the seed decides") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("a.safetensors", file_of({{"x", "20", 20, 0}}));
  TensorSource source(path, {.shuffle = true, .seed = 3}), same(path, {.shuffle = true, .seed = 3}),
      other(path, {.shuffle = true, .seed = 4});
  std::vector<float> first, second;
  for (int64_t i = 0; i < 20; ++i) {
    first.push_back(read(source, i, 0)[0]);
    second.push_back(read(source, 20 + i, 0)[0]);
    CHECK(read(same, i, 0)[0] == first.back());
  }
  CHECK(std::set<float>(first.begin(), first.end()).size() == 20);
  CHECK(std::set<float>(second.begin(), second.end()).size() == 20);
  CHECK(first != second);
  CHECK(!std::ranges::is_sorted(first));
  std::vector<float> others;
  for (int64_t i = 0; i < 20; ++i) others.push_back(read(other, i, 0)[0]);
  CHECK(others != first);
}

TEST_CASE("ranks share out samples of tensors, and go on after a stop on another number of ranks") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("a.safetensors", file_of({{"x", "24", 24, 0}}));
  const auto loader = [&](int64_t rank, int64_t ranks) {
    std::vector<WeightedSource> sources;
    sources.emplace_back(TensorSource(path, {.shuffle = true, .seed = 1}), 1);
    return std::make_unique<Loader>(std::move(sources), LoaderOptions{12 / ranks, 1, rank, ranks});
  };
  const auto rows = [](Loader& from) { return floats(from.next().micro_batches[0].tensors[0]); };
  const auto one = loader(0, 1);
  const std::vector<float> first = rows(*one), second = rows(*one);
  std::vector<float> shared, resumed;
  LoaderState state;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto mine = loader(rank, 3);
    const std::vector<float> part = rows(*mine);
    shared.insert(shared.end(), part.begin(), part.end());
    state = mine->state();
  }
  CHECK(shared == first);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto mine = loader(rank, 2);
    mine->restore(state);
    const std::vector<float> part = rows(*mine);
    resumed.insert(resumed.end(), part.begin(), part.end());
  }
  CHECK(resumed == second);
}

TEST_CASE("files of samples that do not fit each other are refused by name") {
  const testing::TemporaryFolder folder;
  const auto refused = [&](const std::string& path, const char* with) {
    CHECK_THROWS_WITH_AS(TensorSource(path, {}), doctest::Contains(with), UserError);
  };
  refused(folder.write("none.safetensors", file_of({})), "holds no tensors");
  refused(folder.write("zero.safetensors", file_of({{"x", "0, 3", 0, 0}})), "holds no samples");
  refused(folder.write("one.safetensors", file_of({{"x", "", 1, 0}})), "is one number");
  refused(folder.write("uneven.safetensors", file_of({{"x", "2", 2, 0}, {"y", "3", 3, 0}})),
          "tensor y has 3 samples, x has 2");
  refused(folder.path() + "/missing", "missing");
  const testing::TemporaryFolder two;
  two.write("a.safetensors", file_of({{"x", "2, 3", 6, 0}}));
  two.write("b.safetensors", file_of({{"x", "2, 4", 8, 0}}));
  refused(two.path(), "b.safetensors: has other tensors than");
}

}  // namespace
}  // namespace sfsdp::train::tensor_source_test
