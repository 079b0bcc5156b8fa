// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train::checkpoint::manifest_test {
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

// The same, but `w` was cut in dimension 1 over tp, and its first half over data ranks.
Manifest boxed() {
  Manifest m = small();
  m.tensors[0].boxes = {{{0, 10}, {0, 2}}, {{0, 10}, {2, 1}}};
  m.tensors[0].ranges = {{0, 16, 0, 200, {5}, 0}, {16, 20, 1, 200, {6}, 0}, {0, 10, 1, 216, {7}, 1}};
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

std::string with(const std::string& from, const std::string& to, const Manifest& manifest = small()) {
  std::string text = print(manifest);
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

TEST_CASE("a manifest says boxes of a tensor in place of ranges, and nothing else of one that has none") {
  CHECK(parse_manifest(print(boxed()), "F") == boxed());
  const std::string text = print(boxed());
  CHECK(
      text.find(R"("shape": [10, 3], "boxes": [{"box": [[0, 10], [0, 2]], "ranges": [[0, 16, 0, 200, )"
                R"("0000000000000005"], [16, 20, 1, 200, "0000000000000006"]]}, {"box": [[0, 10], [2, 3]], "ranges": )"
                R"([[0, 10, 1, 216, "0000000000000007"]]}]},)") != std::string::npos);
  CHECK(print(small()).find(R"("shape": [10, 3], "ranges": [[0, 20, 0, 200, "0000000000000005"], [20, 30, 1, 200, )"
                            R"("0000000000000006"]]},)") != std::string::npos);
}

// [10, 3] in 5 blocks of 2 rows, each of which one rank has the first row and the other one the second.
Manifest in_blocks() {
  Manifest m = boxed();
  m.tensors[0].block_shape = {5, 2, 3};
  m.tensors[0].boxes = {{{0, 5}, {0, 1}, {0, 3}}, {{0, 5}, {1, 1}, {0, 3}}};
  m.tensors[0].ranges = {{0, 10, 0, 200, {5}, 0}, {10, 15, 1, 200, {6}, 0}, {0, 15, 1, 300, {7}, 1}};
  return m;
}

TEST_CASE("boxes of blocks stand after the shape whose ranges they are, which is the tensor's with blocks") {
  CHECK(parse_manifest(print(in_blocks()), "F") == in_blocks());
  CHECK(print(in_blocks()).find(R"("shape": [10, 3], "block_shape": [5, 2, 3], "boxes": [{"box": [[0, 5], [0, 1], )") !=
        std::string::npos);
  const std::vector<std::vector<int64_t>> others = {{10, 3}, {5, 3, 2}, {5, 2, 3, 1}, {4, 2, 3}, {5, 2, 4}, {10, 3, 3}};
  for (const std::vector<int64_t>& wrong : others) {
    Manifest m = in_blocks();
    m.tensors[0].block_shape = wrong;
    CHECK_THROWS_WITH_AS(parse_manifest(print(m), "F"), doctest::Contains("with one dimension as blocks"),
                         DamagedError);
  }
}

TEST_CASE("boxes of a manifest whose hash is right and whose content is not are refused by name") {
  const struct {
    const char *from, *to, *says;
  } cases[] = {
      {"[[0, 10], [2, 3]]", "[[0, 10], [1, 3]]", "boxes [0:10,0:2] and [0:10,1:3] overlap"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [0, 2]]", "boxes [0:10,0:2] and [0:10,0:2] overlap"},
      {"[[0, 10], [2, 3]]", "[[0, 9], [2, 3]]", "its boxes have 29 elements"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [2, 4]]", "2 to 4 of dimension 1"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [3, 3]]", "3 to 3 of dimension 1"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [2, 9223372036854775807]]", "both inside its size, 3"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [-1, 3]]", "2^63"},
      {"[[0, 10], [2, 3]]", "[[0, 10]]", "a box of 1 dimensions\n  expected 2"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [2, 3], [0, 1]]", "a box of 3 dimensions"},
      {"[[0, 10], [2, 3]]", "[[0, 10], [2, 3, 4]]", "[begin, end]"},
      {"[[0, 10], [2, 3]]", "[[0, 10], 2]", "[begin, end]"},
      {"[[0, 10], [2, 3]]", "7", "a list"},
      {"[16, 20, 1,", "[17, 20, 1,", "box [0:10,0:2]: elements 16 to 17 are nowhere"},
      {"[16, 20, 1,", "[15, 20, 1,", "box [0:10,0:2]: element 15 twice"},
      {"[16, 20, 1,", "[16, 21, 1,", "box [0:10,0:2]: an element 20"},
      {"[16, 20, 1,", "[16, 19, 1,", "box [0:10,0:2]: elements 19 to 20 are nowhere"},
      {"[16, 20, 1, 200,", "[16, 20, 1, 700,", "box [0:10,0:2]: range 16 to 20 is 16 bytes at 700"},
      {"[16, 20, 1, 200,", "[16, 20, 2, 200,", "one of the 2 files"},
      {"[[0, 10, 1, 216, \"0000000000000007\"]]", "[]", "box [0:10,2:3]: no ranges"},
      {"\"boxes\": [", "\"ranges\": [], \"boxes\": [", "both ranges and boxes"},
      {"\"boxes\": [", "\"boxes\": [1, ", "an object"},
      {"[10, 3]", "[10, 4]", "its boxes have 30 elements"},
      {"[10, 3]", "[10, 3, 1]", "a box of 2 dimensions"},
  };
  for (const auto& bad : cases) {
    CAPTURE(std::string(bad.to));
    const std::string message = message_of(with(bad.from, bad.to, boxed()));
    CAPTURE(message);
    CHECK(message.starts_with("F: tensor \"w\""));
    CHECK(message.find(bad.says) != std::string::npos);
    CHECK(message.find("\n  expected ") != std::string::npos);
  }
}

TEST_CASE("more boxes than any mesh has are refused before they are compared") {
  Manifest many = boxed();
  StoredTensor& t = many.tensors[0];
  t.shape = {30000};
  t.boxes.clear();
  t.ranges.clear();
  for (int64_t i = 0; i < 30000; ++i) {
    t.boxes.push_back({{i, 1}});
    t.ranges.push_back({0, 1, 0, 200, {5}, i});
  }
  CHECK(message_of(print(many)).find("30000 boxes\n  expected at most 4096") != std::string::npos);
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

TEST_CASE("fragments that hold boxes are joined by box, whichever rank names one first") {
  const auto fragment = [](const std::vector<Chunk>& box, StoredRange range) {
    Manifest m = boxed();
    m.tensors = {m.tensors[0]};
    m.tensors[0].boxes = {box};
    range.file = range.box = 0;
    m.tensors[0].ranges = {range};
    m.files = {{concat("rank-", range.hashes[0]), 1000, 200, 1}};
    CHECK(parse_fragment(print(m), "F") == m);
    return m;
  };
  const std::vector<Chunk> left = {{0, 10}, {0, 2}}, right = {{0, 10}, {2, 1}};
  const Manifest one = fragment(left, {16, 20, 0, 200, {6}}), two = fragment(right, {0, 10, 0, 216, {7}}),
                 three = fragment(left, {0, 16, 0, 200, {5}});
  const StoredTensor t = merge({one, two, three}).tensors.at(0);
  CHECK(t.boxes == std::vector<std::vector<Chunk>>{left, right});
  CHECK(t.ranges ==
        std::vector<StoredRange>{{0, 16, 2, 200, {5}, 0}, {16, 20, 0, 200, {6}, 0}, {0, 10, 1, 216, {7}, 1}});
  CHECK_THROWS_AS(merge({one, three}), InternalError);
  CHECK_THROWS_AS(merge({one, two}), InternalError);
  Manifest whole = one;
  whole.files[0].name = "whole";
  whole.tensors[0].boxes.clear();
  whole.tensors[0].ranges = {{0, 30, 0, 200, {9}}};
  CHECK_THROWS_AS(merge({one, two, three, whole}), InternalError);
}

TEST_CASE("the hash is XXH3 as xxhsum -H3 prints it") {
  CHECK(hex(xxh3("")) == "2d06800538d394c2");  // of the specification's own test vectors, seed 0
  CHECK(parse_hash("2d06800538d394c2") == 0x2d06800538d394c2u);
  CHECK_FALSE(parse_hash("2D06800538D394C2"));
  CHECK_FALSE(parse_hash("2d06800538d394c"));
}

}  // namespace sfsdp::train::checkpoint::manifest_test
