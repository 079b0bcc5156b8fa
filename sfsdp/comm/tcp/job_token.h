// SPDX-License-Identifier: BSD-3-Clause
// The secret of one run: who holds it may join. It is never printed, sent or written to a file; ranks prove that they hold it
// (handshake.h). docs/security.md says what it protects.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace sfsdp::comm {

class JobToken {
 public:
  static constexpr const char* kVariable = "SFSDP_JOB_TOKEN";       // 32 to 128 hexadecimal digits
  static constexpr const char* kFdVariable = "SFSDP_JOB_TOKEN_FD";  // a descriptor that they can be read from

  JobToken() = default;  // empty: whoever can connect may join
  ~JobToken();           // overwrites it
  JobToken(const JobToken&) = default;
  JobToken& operator=(const JobToken&) = default;

  // 256 bits of the system's generator.
  static JobToken fresh();
  // From the descriptor, which is then closed, or else the variable. Both variables are taken out of the environment and
  // overwritten, so that neither children nor /proc/<pid>/environ show the token. Empty if neither is set.
  //   throws: UserError for what is no token; the message does not hold it
  static JobToken take_from_environment();
  //   throws: UserError
  static JobToken from_hex(const std::string& digits);

  bool empty() const { return size_ == 0; }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }
  std::string hex() const;  // for the launcher, which hands it on

 private:
  std::array<std::byte, 64> bytes_{};
  size_t size_ = 0;
};

// Fills with the system's random numbers.   throws: std::runtime_error
void fill_random(std::span<std::byte> bytes);

}  // namespace sfsdp::comm
