// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/tensorboard.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::tensorboard_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Another way to the same numbers than tensorboard.cc's: CRC-32C bit by bit from the definition, fields by a walk over
// the wire format.
uint32_t crc_by_bits(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data)
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = ((crc ^ (static_cast<uint8_t>(c) >> bit)) & 1) != 0;
      crc = low ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
    }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

struct Reader {
  std::string_view rest;
  uint64_t fixed(size_t bytes) {
    REQUIRE(rest.size() >= bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(rest[i])} << (8 * i);
    rest.remove_prefix(bytes);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint64_t byte = fixed(1);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view take(size_t bytes) {
    REQUIRE(rest.size() >= bytes);
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    return taken;
  }
};

// Fields of a message by number; those of a message within stay encoded.
std::multimap<uint64_t, std::string> fields_of(std::string_view message) {
  std::multimap<uint64_t, std::string> fields;
  for (Reader reader{message}; !reader.rest.empty();) {
    const uint64_t key = reader.varint();
    switch (key & 7) {
      case 0: fields.emplace(key >> 3, std::to_string(reader.varint())); break;
      case 1: fields.emplace(key >> 3, reader.take(8)); break;
      case 2: fields.emplace(key >> 3, reader.take(reader.varint())); break;
      case 5: fields.emplace(key >> 3, reader.take(4)); break;
      default: FAIL("wire type ", key & 7);
    }
  }
  return fields;
}

std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  for (Reader reader{file}; !reader.rest.empty();) {
    const std::string_view length_bytes = reader.rest.substr(0, 8);
    const uint64_t length = reader.fixed(8);
    CHECK(reader.fixed(4) == crc_by_bits(length_bytes));
    const std::string_view data = reader.take(length);
    CHECK(reader.fixed(4) == crc_by_bits(data));
    records.emplace_back(data);
  }
  return records;
}

float float_of(const std::string& bytes) {
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

// RFC 3720, B.4: CRC-32C of 32 bytes of zeros is 8A9136AA, of ones 62A8AB43, of 0 … 31 46DD794E.
TEST_CASE("checksums are those of RFC 3720, masked as TFRecord masks them") {
  const auto mask = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; };
  std::string counted;
  for (char c = 0; c < 32; ++c) counted += c;
  CHECK(masked_crc32c(std::string(32, '\0')) == mask(0x8A9136AAu));
  CHECK(masked_crc32c(std::string(32, '\xFF')) == mask(0x62A8AB43u));
  CHECK(masked_crc32c(counted) == mask(0x46DD794Eu));
}

// tests/fixtures/make_tensorboard.py wrote these events with the tensorboard package.
TEST_CASE("events are those that the tensorboard package writes, byte for byte") {
  std::string long_tag;
  for (int i = 0; i < 20; ++i) long_tag += "a long tag ";
  const auto one = [](double time, int64_t step, const Scalar& scalar) {
    return framed(scalar_event(time, step, {&scalar, 1}));
  };
  const Scalar two[] = {{"loss_metrics/global_avg_loss", 8.0491}, {"grad_norm", -1.5}};
  const std::string written =
      framed(version_event(1700000000.25)) + framed(restart_event(1700000000.5, 301)) + one(1700000001, 0, {"lr", 0}) +
      framed(scalar_event(1700000002, 1, two)) + one(1700000003, 300, {"n_tokens_seen", 16777216}) +
      one(1700000004, 5000000000, {"grad_norm", -kNan}) + one(1700000005, 5000000001, {"grad_norm", kInf}) +
      one(1700000006, 5000000002, {long_tag, 1e-40});
  CHECK(written == read_file(testing::source_dir() + "/tests/fixtures/tensorboard.events"));
}

TEST_CASE("an event file reads back: its version first, then each step's values") {
  const testing::TemporaryFolder folder;
  std::string path;
  {
    TensorBoardFile file(folder / "tb/run", 0, {});
    path = file.path();
    const Scalar step_1[] = {{"lr", 0.5}, {"grad_norm", 2}}, step_300[] = {{"lr", 0.25}};
    file.write(1, step_1);
    file.write(300, step_300);
  }
  CHECK(std::filesystem::path(path).filename().string().starts_with("events.out.tfevents."));
  const auto records = records_of(read_file(path));
  REQUIRE(records.size() == 3);
  CHECK(fields_of(records[0]).find(3)->second == "brain.Event:2");
  std::map<std::string, float> values;
  const auto first = fields_of(records[1]), second = fields_of(records[2]);
  for (const auto& [number, value] : fields_of(first.find(5)->second)) {
    CHECK(number == 1);
    const auto fields = fields_of(value);
    values[fields.find(1)->second] = float_of(fields.find(2)->second);
  }
  CHECK(values == std::map<std::string, float>{{"grad_norm", 2}, {"lr", 0.5}});
  CHECK(first.find(2)->second == "1");
  CHECK(second.find(2)->second == "300");
}

TEST_CASE("a run that goes on after step 40 has TensorBoard drop what was written from step 41 on") {
  const testing::TemporaryFolder folder;
  TensorBoardFile file(folder / "tb", 40, {});
  const Scalar step_41[] = {{"lr", 0.5}};
  file.write(41, step_41);
  const auto records = records_of(read_file(file.path()));
  REQUIRE(records.size() == 3);
  const auto restart = fields_of(records[1]);
  CHECK(restart.find(2)->second == "41");
  CHECK(fields_of(restart.find(7)->second).find(1)->second == "1");  // SessionLog.START
}

TEST_CASE("a folder that cannot be made names itself and the cure") {
  const testing::TemporaryFolder folder;
  folder.write("tb", "a file");
  CHECK_THROWS_WITH_AS(TensorBoardFile(folder / "tb/run", 0, {}), doctest::Contains("set --job.dump_folder"),
                       UserError);
}

}  // namespace sfsdp::train::tensorboard_test
