// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/exported/read_graph.h"
#include "sfsdp/exported/read_values.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/zip_bytes.h"

namespace sfsdp::exported::read_program_test {
namespace {

std::string fixture(const std::string& name) {
  return testing::source_dir() + "/tests/fixtures/exported/" + name + ".pt2";
}

const StateTensor& find(const Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.state, name, &StateTensor::name);
  REQUIRE(found != program.state.end());
  return *found;
}

TEST_CASE("an exported program: parameters, buffers, inputs, outputs and nodes with their modules and lines") {
  const Program program = read_program(fixture("decoder"));
  CHECK(program.state.size() == 22);
  const StateTensor& weight = find(program, "layers.1.gate_proj.weight");
  CHECK(weight.sizes == std::vector<int64_t>{24, 16});
  CHECK(weight.requires_grad);
  CHECK(find(program, "inv_freq").kind == StateTensor::Kind::Buffer);
  CHECK(!find(program, "inv_freq").persistent);
  REQUIRE(program.inputs.size() == 2);
  CHECK(program.inputs[0].name == "input_ids");
  CHECK(program.graph.values[static_cast<size_t>(program.inputs[0].slot)].tensor->sizes[0].expr != "");
  REQUIRE(program.outputs.size() == 2);
  CHECK(program.outputs[0].name == "loss");
  CHECK(program.outputs[1].name == "logits");
  REQUIRE(program.ranges.size() == 2);  // of the same symbols as the sizes
  const auto& sizes = program.graph.values[static_cast<size_t>(program.inputs[0].slot)].tensor->sizes;
  for (const SymInt& size : sizes) CHECK(std::ranges::count(program.ranges, size.expr, &Program::Range::symbol) == 1);
  const auto node =
      std::ranges::find_if(program.graph.nodes, [](const Node& n) { return n.module_path == "layers.1.gate_proj"; });
  REQUIRE(node != program.graph.nodes.end());
  CHECK(node->target == "torch.ops.aten.linear.default");
  CHECK(node->python.starts_with("make_exported.py:"));
  CHECK(node->python.ends_with("return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))"));
}

TEST_CASE("an exported program: tied weights lie in one entry, constants are tensors, lists are named by place") {
  const Program program = read_program(fixture("shared"));
  CHECK(find(program, "table.weight").entry == find(program, "out.weight").entry);
  CHECK(!find(program, "frozen").requires_grad);
  CHECK(find(program, "mix").strides == std::vector<int64_t>{1, 16});
  CHECK(std::ranges::count(program.state, StateTensor::Kind::Constant, &StateTensor::kind) == 1);
  std::vector<std::string> names;
  for (const OutputValue& output : program.outputs) names.push_back(output.name);
  CHECK(names == std::vector<std::string>{"loss", "parts.0", "parts.1"});
}

TEST_CASE("values of a tensor that is stored column by column come in rows, from any element on") {
  const Program program = read_program(fixture("shared"));
  const StateTensor& mix = find(program, "mix");
  const ZipEntry& entry = program.archive.entries()[mix.entry];
  std::vector<float> stored(entry.bytes / sizeof(float)), whole(16 * 8);
  program.archive.read(entry, 0, std::as_writable_bytes(std::span(stored)));
  read_values(program.archive, mix, 0, std::as_writable_bytes(std::span(whole)));
  REQUIRE(mix.sizes == std::vector<int64_t>{16, 8});
  for (size_t r = 0; r < 16; ++r)
    for (size_t c = 0; c < 8; ++c) CHECK(whole[r * 8 + c] == stored[r + c * 16]);
  for (const size_t first : {size_t{0}, size_t{5}, size_t{127}}) {
    std::vector<float> part(std::min<size_t>(9, whole.size() - first));
    read_values(program.archive, mix, static_cast<int64_t>(first), std::as_writable_bytes(std::span(part)));
    CHECK(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST_CASE("module paths and Python lines of an exported node") {
  CHECK(module_path_of("L__self__,,Net;L__self___layers_0,layers.0@1,a.Block") == "layers.0");
  CHECK(module_path_of("L__self__,,Net") == "");
  CHECK(module_path_of("") == "");
  CHECK(python_line_of("File \"/x/net.py\", line 7, in forward\n    return self.up(x)\nFile "
                       "\"/lib/torch/nn/modules/linear.py\", line 125, in forward\n    return F.linear(") ==
        "net.py:7: return self.up(x)");
  CHECK(python_line_of("nothing") == "");
}

// The parts of a fixture, to be written again with a change.
testing::ZipParts parts_of(const std::string& name) {
  const ZipArchive archive = ZipArchive::open(fixture(name));
  testing::ZipParts parts;
  for (const ZipEntry& entry : archive.entries()) parts.emplace_back(entry.name, archive.read_text(entry, 1 << 20));
  return parts;
}

std::string refusal(const testing::ZipParts& parts) {
  const std::string path = concat(std::filesystem::temp_directory_path().string(), "/sfsdp-program-", getpid(), ".pt2");
  std::ofstream(path, std::ios::binary) << testing::zip_of(parts);
  try {
    static_cast<void>(read_program(path));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

struct Edit {
  std::string entry, from, to, refused;
};

TEST_CASE("an archive with a wrong name, number, kind or graph is refused where it is wrong") {
  const std::string model = "shared/models/model.json", weights = "shared/data/weights/model_weights_config.json";
  const std::vector<Edit> edits = {
      {"shared/archive_format", "pt2", "pt3", "format"},
      {"shared/byteorder", "little", "bigger", "big-endian"},
      {model, R"("major": 8)", R"("major": 9)", "schema 9"},
      {model, R"("as_tensor": {"name": "p_mix"})", R"("as_tensor": {"name": "p_max"})", "p_max"},
      {model, R"({"name": "self", "arg": {"as_tensor": {"name": "embedding"}})",
       R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}})", "not there yet"},
      {model, R"("outputs": [{"as_tensor": {"name": "embedding"}}])",
       R"("outputs": [{"as_tensor": {"name": "p_mix"}}])", "there already"},
      {model, R"("outputs": [{"as_tensor": {"name": "embedding"}}])", R"("outputs": [{"as_tensor": {"name": "lost"}}])",
       "no type"},
      {model, R"("outputs": [{"as_tensor": {"name": "embedding"}}])", R"("outputs": [{"as_graph": {"name": "e"}}])",
       "as_graph"},
      {model, R"("parameter_name": "frozen")", R"("parameter_name": "thawed")", "has no values"},
      {model, R"("parameter_name": "frozen")", R"("parameter_name": "mix")", "another type"},
      {weights, R"("use_pickle": false)", R"("use_pickle": true)", "pickle"},
      {weights, R"("path_name": "weight_0")", R"("path_name": "weight_9")", "no entry"},
      {weights, R"("path_name": "weight_3")", R"("path_name": "../../x")", "no entry"},
      {weights, R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": 9223372036854775807})", "beyond"},
      {weights, R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": -1})", "beyond"},
      {weights, R"("sizes": [{"as_int": 8}])", R"("sizes": [{"as_int": -8}])", "0 or more"},
      {weights, R"("strides": [{"as_int": 1}])", R"("strides": [{"as_int": 4611686018427387904}])", "beyond"},
      {weights, R"("layout": 7)", R"("layout": 1)", "layout 1"},
      {weights, R"("dtype": 7)", R"("dtype": 11)", "COMPLEXDOUBLE"},
      {weights, R"("dtype": 7)", R"("dtype": 99)", "dtype 99"},
      {weights, R"("config")", R"("conf")", "no member config"},
  };
  const testing::ZipParts good = parts_of("shared");
  CHECK(refusal(good).empty());
  for (const Edit& edit : edits) {
    CAPTURE(edit.from);
    testing::ZipParts parts = good;
    const auto part = std::ranges::find(parts, edit.entry, &std::pair<std::string, std::string>::first);
    REQUIRE(part != parts.end());
    const size_t at = part->second.find(edit.from);
    REQUIRE(at != std::string::npos);
    part->second.replace(at, edit.from.size(), edit.to);
    const std::string refused = refusal(parts);
    CAPTURE(refused);
    CHECK(refused.find(edit.refused) != std::string::npos);
  }
}

TEST_CASE("files that are no archives of torch.export say what to write") {
  CHECK(refusal({{"x/data.pkl", "abc"}, {"x/version", "3"}}).find("pickle") != std::string::npos);
  CHECK(refusal({{"readme", "abc"}}).find("no archive_format") != std::string::npos);
  CHECK(refusal({{"x/archive_format", "pt2"}}).find("holds 0 models") != std::string::npos);
  CHECK(refusal({{"x/archive_format", "pt2"}, {"x/models/model.json", std::string(5000, '[')}}).find("deep") !=
        std::string::npos);
}

TEST_CASE("an archive whose JSON has other bytes anywhere is read or refused, never more") {
  const testing::ZipParts good = parts_of("shared");
  std::mt19937_64 random(11);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    testing::ZipParts parts = good;
    std::vector<std::string*> texts;
    for (auto& [name, bytes] : parts)
      if (name.ends_with(".json")) texts.push_back(&bytes);
    std::string& text = *texts[static_cast<size_t>(i) % texts.size()];
    const size_t at = random() % text.size();
    if (i % 3 == 0)
      text.erase(at, 1 + random() % 40);
    else if (i % 3 == 1)
      text[at] = static_cast<char>('0' + random() % 60);
    else
      text.insert(at, text.substr(random() % text.size(), random() % 60));
    refused += !refusal(parts).empty();
  }
  CHECK(refused > 150);
}

}  // namespace
}  // namespace sfsdp::exported::read_program_test
