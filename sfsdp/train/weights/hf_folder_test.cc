// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_folder.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train::hf_folder_test {
namespace {

namespace fs = std::filesystem;

HfConfig gpt_config() {
  HfConfig config;
  config.architecture = "GPT2LMHeadModel";
  config.model = "gpt";
  config.args = {{"n_layers", int64_t{1}}, {"tied", true}, {"bias", true}, {"rope", false}};
  return config;
}

// Three parameters of a GPT-2: one as it is, one transposed, one vector.
const std::vector<HfSource> kSources = {
    {"wte.weight", {10, 4}}, {"h.0.attn.c_attn.weight", {12, 4}}, {"h.0.attn.c_attn.bias", {12}}};

float value_of(size_t tensor, int64_t element) {
  return static_cast<float>(1000 * tensor) + static_cast<float>(element);
}

// What rank `rank` of `ranks` writes.
void write_rank(HfFolderWriter& writer, int64_t ranks, int64_t rank) {
  for (size_t i = 0; i < kSources.size(); ++i) {
    const HfPlaced* placed = writer.layout().find(kSources[i].name);
    REQUIRE(placed);
    int64_t count = 1;
    for (const int64_t size : kSources[i].shape) count *= size;
    const Chunk range = chunk_of(count, ranks, rank);
    std::vector<float> values;
    for (int64_t e = 0; e < range.length; ++e) values.push_back(value_of(i, range.offset + e));
    writer.write(*placed, plan::whole_box(kSources[i].shape, range), std::as_bytes(std::span(values)), ir::DType::f32);
  }
  writer.flush();
}

float element(const TensorView& view, int64_t at) {
  float value = 0;
  view.read(static_cast<uint64_t>(4 * at), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace

TEST_CASE("hf_folder: what three processes write is one checkpoint that reads back, under its name at the end alone") {
  for (const uint64_t max_file_bytes : {uint64_t{1000}, uint64_t{200}}) {
    const testing::TemporaryFolder folder;
    const std::string out = folder / "out", assets = folder / "assets";
    folder.write("assets/tokenizer.json", "{}");
    folder.write("assets/other.bin", "x");
    folder.write("out.incomplete/model.safetensors", "of an export that died");
    const HfLayout layout = lay_out_hf(kSources, gpt_config(), ir::DType::f32, max_file_bytes);
    CHECK(layout.files.size() == (max_file_bytes == 1000 ? 1 : 3));
    std::vector<HfFolderWriter> writers;
    for (int i = 0; i < 3; ++i) writers.emplace_back(layout, out + "/", 64);
    writers[0].create("{\"a\": 1}", assets);
    for (int64_t rank = 0; rank < 3; ++rank) {
      CHECK_FALSE(fs::exists(out));
      write_rank(writers[static_cast<size_t>(rank)], 3, rank);
      CHECK(writers[static_cast<size_t>(rank)].staging_bytes() == 64);
    }
    writers[0].publish();
    CHECK_FALSE(fs::exists(out + ".incomplete"));
    CHECK(writers[0].set_aside() == out + ".incomplete-2");
    CHECK(read_text_file(out + ".incomplete-2/model.safetensors", 100) == "of an export that died");
    CHECK(read_text_file(out + "/config.json", 100) == "{\"a\": 1}");
    CHECK(read_text_file(out + "/tokenizer.json", 100) == "{}");
    CHECK_FALSE(fs::exists(out + "/other.bin"));

    const auto checkpoint = SafetensorsCheckpoint::open(out);
    CHECK(checkpoint.files().size() == layout.files.size());
    for (const SafetensorsFile& file : checkpoint.files()) CHECK(file.metadata().at("format") == "pt");
    const TensorView& table = checkpoint.at("transformer.wte.weight");
    CHECK(table.shape == std::vector<int64_t>{10, 4});
    for (int64_t i = 0; i < 40; ++i) CHECK(element(table, i) == value_of(0, i));
    const TensorView& matrix = checkpoint.at("transformer.h.0.attn.c_attn.weight");
    CHECK(matrix.shape == std::vector<int64_t>{4, 12});
    for (int64_t r = 0; r < 12; ++r)
      for (int64_t c = 0; c < 4; ++c) CHECK(element(matrix, c * 12 + r) == value_of(1, 4 * r + c));
    for (int64_t i = 0; i < 12; ++i)
      CHECK(element(checkpoint.at("transformer.h.0.attn.c_attn.bias"), i) == value_of(2, i));
  }
}

TEST_CASE("hf_folder: a folder with files in it is left as it is, and so is one that another process writes") {
  const testing::TemporaryFolder folder;
  const HfLayout layout = lay_out_hf(kSources, gpt_config(), ir::DType::bf16);
  folder.write("full/notes.txt", "mine");
  HfFolderWriter full(layout, folder / "full");
  CHECK_THROWS_WITH_AS(full.create("{}", ""), doctest::Contains("is there already, and not empty"), UserError);
  CHECK(fs::exists(folder / "full/notes.txt"));
  CHECK_FALSE(fs::exists(folder / "full.incomplete"));

  std::optional<HfFolderWriter> first(std::in_place, layout, folder / "out");
  first->create("{}", "");
  HfFolderWriter second(layout, folder / "out");
  CHECK_THROWS_WITH_AS(second.create("{}", ""), doctest::Contains("out.incomplete is being written by another"),
                       UserError);
  first.reset();  // its process dies
  second.create("{}", "");
  write_rank(second, 1, 0);
  fs::create_directory(folder / "out");  // an empty one is no obstacle
  second.publish();
  CHECK(SafetensorsCheckpoint::open(folder / "out").names().size() == 3);
}

TEST_CASE("hf_folder: what the system and the dtype refuse names file and tensor, and leaves nothing") {
  const testing::TemporaryFolder folder;
  const HfLayout layout = lay_out_hf(kSources, gpt_config(), ir::DType::f16);
  folder.write("file", "no folder");
  HfFolderWriter under(layout, folder / "file/out");
  CHECK_THROWS_WITH_AS(under.create("{}", ""), doctest::Contains("file/out.incomplete cannot be made"), UserError);

  HfFolderWriter writer(layout, folder / "out");
  writer.create("{}", "");
  std::vector<float> values(12, 70000.0F);
  CHECK_THROWS_WITH_AS(
      writer.write(*writer.layout().find("h.0.attn.c_attn.bias"), plan::whole_box({12}),
                   std::as_bytes(std::span(values)), ir::DType::f32),
      doctest::Contains("h.0.attn.c_attn.bias: 12 of the values become infinite as f16\n  expected values that"),
      UserError);
  fs::remove(folder / "out.incomplete/model.safetensors");
  HfFolderWriter other(layout, folder / "out");
  CHECK_THROWS_WITH_AS(other.write(*other.layout().find("wte.weight"), plan::whole_box({10, 4}, {0, 12}),
                                   std::as_bytes(std::span(values)), ir::DType::f32),
                       doctest::Contains("out.incomplete/model.safetensors: cannot be opened: No such file"),
                       UserError);
  other.abandon();  // not its own
  CHECK(fs::exists(folder / "out.incomplete"));
  writer.abandon();
  CHECK_FALSE(fs::exists(folder / "out.incomplete"));
  HfLayout huge = layout;
  huge.files[0].bytes = uint64_t{1} << 60;  // no disk has it
  HfFolderWriter full(huge, folder / "full");
  CHECK_THROWS_WITH_AS(full.create("{}", ""), doctest::Contains("model.safetensors: "), UserError);
  CHECK_FALSE(fs::exists(folder / "full.incomplete"));
  CHECK_FALSE(fs::exists(folder / "out"));
}

TEST_CASE("hf_folder: a folder of assets that is not there is refused, one without a tokenizer is said") {
  const testing::TemporaryFolder folder;
  CHECK(check_hf_assets("").empty());
  CHECK_THROWS_WITH_AS(check_hf_assets(folder / "none"),
                       doctest::Contains(((folder / "none") + ": there is no such folder").c_str()), UserError);
  folder.write("config.json", "{}");
  CHECK_THROWS_AS(check_hf_assets(folder / "config.json"), UserError);
  CHECK(check_hf_assets(folder.path())
            .ends_with(": no tokenizer's files; the Hugging Face folder of the last step will have none"));
  folder.write("merges.txt", "");  // nothing without its vocabulary
  CHECK_FALSE(check_hf_assets(folder.path()).empty());
  folder.write("vocab.json", "{}");
  CHECK(check_hf_assets(folder.path()).empty());
}

}  // namespace sfsdp::train::hf_folder_test
