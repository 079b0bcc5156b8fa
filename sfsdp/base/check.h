// SPDX-License-Identifier: BSD-3-Clause
// Invariant checks that print values. A failed check is a bug in sfsdp, never a user's mistake: those are UserError.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace sfsdp {

// Thrown by SFSDP_CHECK. The message holds file, line, the condition and the values passed.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// "a" + 1 + x: anything with operator<<.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace sfsdp

#define SFSDP_CHECK(condition, ...)                                                                        \
  do {                                                                                                     \
    if (!(condition)) ::sfsdp::check_failed(__FILE__, __LINE__, #condition, ::sfsdp::concat(__VA_ARGS__)); \
  } while (false)
