// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <utility>

#include "sfsdp/base/check.h"

namespace sfsdp::train {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);  // the polynomial, bits reversed
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = crc_table();

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xFF);
  return text;
}

// Protocol buffers' encoding: a field is its number and wire type, then its value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(0x80 | (value & 0x7F));
  return text + static_cast<char>(value);
}
std::string tag(uint32_t field, WireType type) { return varint(field << 3 | type); }
std::string bytes_field(uint32_t field, std::string_view value) {
  return concat(tag(field, kBytes), varint(value.size()), value);
}
// A field of the default value, 0, is left out.
std::string int_field(uint32_t field, int64_t value) {
  return value == 0 ? "" : tag(field, kVarint) + varint(static_cast<uint64_t>(value));
}
std::string double_field(uint32_t field, double value) {
  return tag(field, kFixed64) + little_endian(std::bit_cast<uint64_t>(value), 8);
}
// One of several alternatives, so 0 is written too. A nan is the quiet one without sign.
std::string float_field(uint32_t field, double value) {
  const float narrow = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value);
  return tag(field, kFixed32) + little_endian(std::bit_cast<uint32_t>(narrow), 4);
}

// Event: wall_time = 1, step = 2, then one of file_version = 3, summary = 5, session_log = 7.
std::string event(double wall_time, int64_t step, std::string_view what) {
  return concat(double_field(1, wall_time), int_field(2, step), what);
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name() {
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return concat("events.out.tfevents.", static_cast<int64_t>(unix_seconds()), ".", host.data(), ".", ::getpid());
}

}  // namespace

std::string version_event(double wall_time) { return event(wall_time, 0, bytes_field(3, "brain.Event:2")); }

std::string restart_event(double wall_time, int64_t step) {
  return event(wall_time, step, bytes_field(7, int_field(1, 1)));  // SessionLog: status = 1, of which START is 1
}

// Summary: value = 1, repeated. Value: tag = 1, simple_value = 2.
std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars)
    summary += bytes_field(1, bytes_field(1, scalar.tag) + float_field(2, scalar.value));
  return event(wall_time, step, bytes_field(5, summary));
}

uint32_t masked_crc32c(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

std::string framed(std::string_view data) {
  const std::string length = little_endian(data.size(), 8);
  return concat(length, little_endian(masked_crc32c(length), 4), data, little_endian(masked_crc32c(data), 4));
}

std::string minute_text(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm local = {};
  ::localtime_r(&time, &local);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M", &local);
  return text.data();
}

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t last_step, Say say)
    : file_(folder + "/" + file_name(), std::move(say)), begin_(framed(version_event(unix_seconds()))) {
  if (last_step > 0) begin_ += framed(restart_event(unix_seconds(), last_step + 1));
}

void TensorBoardFile::write(int64_t step, std::span<const Scalar> scalars) {
  if (file_.write(begin_ + framed(scalar_event(unix_seconds(), step, scalars)))) begin_.clear();
}

}  // namespace sfsdp::train
