// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train::checkpoint {
namespace {

Manifest small() {
  Manifest m;
  m.run = {.step = 20,
           .tokens = 4096,
           .seed = 7,
           .lr_offset = 3,
           .skipped = 2,
           .data = {{"samples", 80}, {"credit", -2}},
           .schedule = {{"decay", "linear \"x\""}},
           .kernels = {{"products", "onednn.matmul"}}};
  m.world_size = 2;
  m.data_ranks = 2;
  m.save = 17;
  m.saved_at = 1700000000;
  m.model = "llama3";
  m.model_args = {{"n_heads", "4"}, {"tied", "false"}};
  m.launch = "launch-host-7 \"x\"";
  m.mesh = "[dp_shard=2]";
  m.plan = "0123456789abcdef";
  m.sfsdp_version = "0.1.0";
  m.torch_version = "2.13";
  m.files = {{"rank-00000.safetensors", 1000, 200, 1}, {"rank-00001.safetensors", 700, 200, 2}};
  m.tensors = {{"w", TensorKind::Parameter, ir::DType::f32, {10, 3}, -1, {{0, 20, 0, 200, {5}}, {20, 30, 1, 200, {6}}}},
               {"stats", TensorKind::Buffer, ir::DType::i64, {2}, 1, {{0, 2, 1, 240, {7}}}},
               {"none", TensorKind::Optimizer, ir::DType::bf16, {0, 4}, -1, {}},
               {"one", TensorKind::Optimizer, ir::DType::f32, {}, -1, {{0, 1, 0, 280, {8}}}}};
  return m;
}

// What is said of a text whose first line has the right hash, as a careful enemy would write it.
std::string message_of(std::string text) {
  const size_t line = text.find('\n');
  const std::string rest = text.substr(line + 1);
  text = concat("{\"format\": \"sfsdp checkpoint 1\", \"xxh3\": \"", hex(xxh3(rest)), "\",\n", rest);
  try {
    parse_manifest(text, "F");
  } catch (const DamagedError& error) {
    return error.what();
  }
  return "";
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = print(small());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a manifest reads back as it was") {
  CHECK(parse_manifest(print(small()), "F") == small());
  CHECK(message_of(print(small())) == "");
  CHECK(small().find("stats", 1)->dtype == ir::DType::i64);
  CHECK(small().find("stats") == nullptr);
}

TEST_CASE("a manifest of before launches and skipped steps were written down still reads") {
  std::string text = with(", \"skipped\": 2", "");
  const std::string launch = ", \"launch\": \"launch-host-7 \\\"x\\\"\"";
  REQUIRE(text.find(launch) != std::string::npos);
  text.erase(text.find(launch), launch.size());
  CHECK(message_of(text) == "");
}

TEST_CASE("every flipped bit, cut and added byte of a manifest is found") {
  const std::string good = print(small());
  for (size_t at = 0; at < good.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      CAPTURE(at);
      CHECK_THROWS_AS(parse_manifest(bad, "F"), DamagedError);
    }
  for (size_t size = 0; size < good.size(); ++size)
    CHECK_THROWS_AS(parse_manifest(good.substr(0, size), "F"), DamagedError);
  CHECK_THROWS_AS(parse_manifest(good + " ", "F"), DamagedError);
}

TEST_CASE("a manifest whose hash is right and whose content is not is refused by name") {
  const struct {
    const char *from, *to, *says;
  } cases[] = {
      {"rank-00000.saf", "../rank-00.saf", "same folder"},
      {"rank-00000.saf", "/etc/rank0.saf", "same folder"},
      {"\"rank-00000.safetensors\"", "\"\"", "same folder"},
      {"\"rank-00000.safetensors\"", "\"..\"", "same folder"},
      {"\"rank-00000.safetensors\"", "\"a\\u0000b\"", "same folder"},
      {"rank-00001.saf", "rank-00000.saf", "twice"},
      {"\"header_bytes\": 200", "\"header_bytes\": 7", "from 8 to"},
      {"\"header_bytes\": 200", "\"header_bytes\": 1001", "from 8 to"},
      {"\"bytes\": 1000", "\"bytes\": -1", "2^63"},
      {"\"bytes\": 1000", "\"bytes\": 9223372036854775808", "2^63"},
      {"\"bytes\": 1000", "\"bytes\": 1e3", "2^63"},
      {"[0, 20, 0, 200,", "[0, 19, 0, 200,", "elements 19 to 20 are nowhere"},
      {"[0, 20, 0, 200,", "[0, 21, 0, 200,", "element 20 twice"},
      {"[0, 20, 0, 200,", "[1, 20, 0, 200,", "elements 0 to 1 are nowhere"},
      {"[0, 20, 0, 200,", "[0, 20, 2, 200,", "one of the 2 files"},
      {"[0, 20, 0, 200,", "[0, 20, 0, 199,", "a place from 200"},
      {"[0, 20, 0, 200,", "[0, 20, 0, 921,", "a place from 200"},
      {"[0, 20, 0, 200,", "[0, 20, 0, 9223372036854775807,", "a place from 200"},
      {"[0, 20, 0, 200,", "[20, 20, 0, 200,", "a begin below its end"},
      {"[0, 20, 0, 200,", "[0, 9223372036854775807, 0, 200,", "a begin below its end"},
      {"[0, 20, 0, 200, \"0000000000000005\"]", "[0, 20, 0, 200]", "0 hashes"},
      {"[0, 20, 0, 200, \"0000000000000005\"]", "[0, 20, 0]", "hashes..."},
      {"\"0000000000000005\"", "\"000000000000000G\"", "16 hexadecimal digits"},
      {"\"0000000000000005\"", "5", "16 hexadecimal digits"},
      {"[10, 3]", "[9, 3]", "element 29"},
      {"[10, 3]", "[11, 3]", "elements 30 to 33 are nowhere"},
      {"[10, 3]", "[4611686018427387904, 4]", "2^60"},
      {"\"F32\"", "\"F33\"", "dtype"},
      {"\"parameter\"", "\"parametre\"", "kind"},
      {"\"name\": \"w\"", "\"name\": \"\"", "1 to 4096 bytes"},
      {"\"name\": \"one\"", "\"name\": \"none\"", "twice"},
      {"\"rank\": 1", "\"rank\": 2", "below data_ranks"},
      {"\"data_ranks\": 2", "\"data_ranks\": 0", "at least 1"},
      {"\"credit\": -2", "\"credit\": \"x\"", "2^63"},
      {"\"step\": 20", "\"stop\": 20", "no step"},
      {"\"model_only\": false", "\"model_only\": 0", "true or false"},
      {"\"block_bytes\": 4194304", "\"block_bytes\": 1", "4194304"},
      {"\"files\": [", "\"files\": 1, \"x\": [", "a list"},
      {"\"seed\": 7", "\"seed\": 7, \"seed\": 8", "twice"},
      {"\"step\": 20", "\"step\": 9223372036854775807", "2^60"},
      {"\"tokens\": 4096", "\"tokens\": 9223372036854775807", "2^60"},
      {"\"tokens\": 4096", "\"tokens\": 1152921504606846977", "2^60"},
      {"\"save\": 17", "\"save\": 9223372036854775807", "2^60"},
      {"\"lr_offset\": 3", "\"lr_offset\": 9223372036854775807", "20, its step"},
      {"\"lr_offset\": 3", "\"lr_offset\": 21", "20, its step"},
      {"\"skipped\": 2", "\"skipped\": 21", "20, its step"},
  };
  for (const auto& bad : cases) {
    CAPTURE(std::string(bad.to));
    const std::string message = message_of(with(bad.from, bad.to));
    CAPTURE(message);
    CHECK(message.starts_with("F: "));
    CHECK(message.find(bad.says) != std::string::npos);
    CHECK(message.find("\n  expected ") != std::string::npos);
  }
}

TEST_CASE("fragments of ranks become one manifest; a rank's part that is missing is found") {
  Manifest first = small(), second = small();
  first.files = {small().files[0]};
  first.tensors = {small().tensors[0], small().tensors[2], small().tensors[3]};
  first.tensors[0].ranges = {small().tensors[0].ranges[0]};
  second.files = {small().files[1]};
  second.tensors = {small().tensors[0], small().tensors[1], small().tensors[2]};
  second.tensors[0].ranges = {small().tensors[0].ranges[1]};
  for (Manifest* part : {&first, &second})
    for (StoredTensor& t : part->tensors)
      for (StoredRange& r : t.ranges) r.file = 0;
  CHECK(parse_fragment(print(second), "F") == second);
  CHECK_THROWS_AS(parse_manifest(print(second), "F"), DamagedError);
  Manifest all = merge({first, second});
  CHECK(all.files == small().files);
  for (const StoredTensor& t : small().tensors) CHECK(*all.find(t.name, t.rank) == t);
  CHECK_THROWS_AS(merge({first}), InternalError);
}

TEST_CASE("the hash is XXH3 as xxhsum -H3 prints it") {
  CHECK(hex(xxh3("")) == "2d06800538d394c2");  // of the specification's own test vectors, seed 0
  CHECK(parse_hash("2d06800538d394c2") == 0x2d06800538d394c2u);
  CHECK_FALSE(parse_hash("2D06800538D394C2"));
  CHECK_FALSE(parse_hash("2d06800538d394c"));
}

}  // namespace sfsdp::train::checkpoint
