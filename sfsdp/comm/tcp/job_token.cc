// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/job_token.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

constexpr size_t kLeastDigits = 32, kMostDigits = 128;

[[noreturn]] void refuse(const char* variable, const std::string& why) {
  throw UserError(
      concat("environment variable ", variable, ": ", why, "\n  expected ", kLeastDigits, " to ", kMostDigits,
             " hexadecimal digits, the same for all ranks of the run; make them with: ", "openssl rand -hex 32"));
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The variable's value; its place in the environment is overwritten before it goes.
std::optional<std::string> take(const char* variable) {
  char* value = std::getenv(variable);
  if (!value) return std::nullopt;
  std::string text = value;
  explicit_bzero(value, text.size());
  unsetenv(variable);
  return text;
}

JobToken read_token(const char* variable, std::string text) {
  const std::string digits(trim(text));
  explicit_bzero(text.data(), text.size());
  try {
    return JobToken::from_hex(digits);
  } catch (const UserError& error) {
    refuse(variable, error.what());
  }
}

std::string read_fd(const std::string& number) {
  const std::optional<int64_t> fd = parse_int(number);
  if (!fd || *fd < 3 || *fd > 1 << 20) refuse(JobToken::kFdVariable, "no number of a descriptor");
  std::array<char, kMostDigits + 2> text{};
  // From its begin, as all ranks of a launcher share one memory file; a pipe has no begin.
  ssize_t size = pread(static_cast<int>(*fd), text.data(), text.size(), 0);
  if (size < 0 && errno == ESPIPE) size = read(static_cast<int>(*fd), text.data(), text.size());
  const int error = errno;
  close(static_cast<int>(*fd));
  if (size < 0) refuse(JobToken::kFdVariable, concat("descriptor ", *fd, " cannot be read: ", std::strerror(error)));
  return {text.data(), static_cast<size_t>(size)};
}

}  // namespace

void fill_random(std::span<std::byte> bytes) {
  // Up to 256 bytes come at once, without being interrupted.
  SFSDP_CHECK(bytes.size() <= 256, bytes.size());
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error(concat("getrandom: ", std::strerror(errno)));
}

JobToken::~JobToken() { explicit_bzero(bytes_.data(), bytes_.size()); }

JobToken JobToken::fresh() {
  JobToken token;
  token.size_ = 32;
  fill_random(std::span(token.bytes_).first(token.size_));
  return token;
}

JobToken JobToken::from_hex(const std::string& digits) {
  if (digits.size() < kLeastDigits || digits.size() > kMostDigits || digits.size() % 2 != 0)
    throw UserError(concat(digits.size(), " characters"));
  JobToken token;
  token.size_ = digits.size() / 2;
  for (size_t i = 0; i < token.size_; ++i) {
    const int high = digit(digits[2 * i]), low = digit(digits[2 * i + 1]);
    if (high < 0 || low < 0) throw UserError("a character that is no hexadecimal digit");
    token.bytes_[i] = static_cast<std::byte>(high * 16 + low);
  }
  return token;
}

JobToken JobToken::take_from_environment() {
  const std::optional<std::string> fd = take(kFdVariable), digits = take(kVariable);
  if (fd) return read_token(kFdVariable, read_fd(*fd));
  if (digits) return read_token(kVariable, *digits);
  return {};
}

std::string JobToken::hex() const {
  std::string text;
  for (const std::byte b : bytes()) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[std::to_integer<int>(b) >> 4], kDigits[std::to_integer<int>(b) & 15]};
  }
  return text;
}

}  // namespace sfsdp::comm
